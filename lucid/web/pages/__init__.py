"""The pages, each with its own address and its content as plain values: the same for HTML and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lucid.web.pages.cluster import cluster
from lucid.web.pages.job import job
from lucid.web.pages.people import health, people, person
from lucid.web.pages.queue import changes, queue
from lucid.web.pages.shown import NotShown
from lucid.web.site import Site, Viewer

__all__ = ["PAGES", "NotShown", "Page"]

Data = Callable[[Site, Viewer, Mapping[str, str], Mapping[str, str]], Mapping[str, Any]]
"""Makes a page's content (a model of ``shown``) from the site, the viewer, and the parameters of the path and of the
query."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page. ``path``: as Starlette writes it; ``section``: the entry of the navigation that it belongs to."""

    path: str
    section: str
    template: str
    data: Data

    @property
    def twin(self) -> str:
        """The path of the page's JSON."""
        return f"{self.path if self.path != '/' else '/cluster'}.json"


PAGES = (
    Page("/", "cluster", "cluster.html.j2", cluster),
    Page("/queue/changes", "queue", "changes.html.j2", changes),
    Page("/queue", "queue", "queue.html.j2", queue),
    Page("/job/{job_id}", "queue", "job.html.j2", job),
    Page("/people/{user}", "people", "person.html.j2", person),
    Page("/people", "people", "people.html.j2", people),
    Page("/health", "health", "health.html.j2", health),
)
