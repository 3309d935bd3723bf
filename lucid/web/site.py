"""``Site``: what every page is made from (source, root, form), and words that several pages use."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from jinja2 import Environment
from msgspec import structs

from lucid.config.other import WebSettings
from lucid.core.decision import DecisionRow
from lucid.core.job import Job
from lucid.core.names import without_names
from lucid.core.reason import Reason, reason_to_dict
from lucid.store.port import holder_is_dead
from lucid.web.source import Source, View
from lucid.web.starts import WhatIf
from lucid.web.viewer import Sight, Viewer


@dataclass(frozen=True)
class Site:
    """The site of the pages. ``root``: the path under which a proxy shows the pages, without a slash at its end."""

    source: Source
    root: str
    environment: Environment
    what_if: WhatIf = field(default_factory=WhatIf)
    findings: dict[str, Any] = field(default_factory=dict)
    """doctor's last findings, with the time."""

    @property
    def settings(self) -> WebSettings:
        """The settings of the pages."""
        return self.source.settings.web

    @property
    def view(self) -> View:
        """The last view of the store; there is one wherever a page is made."""
        assert self.source.view is not None
        return self.source.view

    def now_s(self) -> float:
        """The time on the pages."""
        return self.source.now_s()

    def user_of(self, job: Job, viewer: Viewer) -> str:
        """The user's name as this viewer may know it."""
        return job.user if viewer.sees(job.user) is Sight.ALL else self.view.aliases.get(job.user, "a user")

    def job_of(self, job: Job, viewer: Viewer) -> Job | None:
        """The job as this viewer may see it; ``None`` where the viewer may not."""
        sight = viewer.sees(job.user)
        if sight is Sight.OWN:
            return None
        if sight is Sight.ALL:
            return job
        return replace(job, user=self.user_of(job, viewer), account="", name="", whole_because="")

    def row_of(self, row: DecisionRow, viewer: Viewer) -> DecisionRow:
        """A decision without the names that this viewer may not read."""
        if viewer.jobs is Sight.ALL:
            return row
        return structs.replace(row, reasons=tuple(self._reason(reason, viewer) for reason in row.reasons))

    def _reason(self, reason: Reason, viewer: Viewer) -> Reason:
        def alias(user: str) -> str:
            return user if not user or user == viewer.name else self.view.aliases.get(user, "a user")

        return Reason.from_json(without_names(type(reason), reason_to_dict(reason), alias))

    def alive(self) -> tuple[bool, str]:
        """Whether a lucidd holds the lease, and which."""
        with self.source.store() as store:
            lease = store.lease()
        lives = lease is not None and lease.until_s > self.now_s() and not holder_is_dead(lease.holder)
        return lives, "" if lease is None else lease.holder


def clock(at_s: float) -> str:
    """A moment of Unix time as the site's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
