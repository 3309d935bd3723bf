"""``Site``: what every page is made from (source, root, form), and who reads it (``Viewer``).

What a reader may see follows from Slurm's ``PrivateData`` and the settings. ``PrivateData`` counts as lucidd recorded
it; where nothing is recorded the pages show what they would under ``PrivateData=jobs,usage``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Any

from jinja2 import Environment
from msgspec import structs

from lucid.config.live import Anonymous, Others, WebSettings
from lucid.core.decision import DecisionRow
from lucid.core.job import Job
from lucid.core.names import without_names
from lucid.core.reason import Reason, reason_to_dict
from lucid.files import user_name
from lucid.store.port import holder_is_dead
from lucid.web.source import Source, View
from lucid.web.starts import WhatIf

UNIX = "unix"
"""Stands for a client's address: the peer of a Unix socket, its uid in place of the port."""


class Sight(StrEnum):
    """How much of other people's jobs is shown."""

    ALL = "all"
    NAMELESS = "nameless"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Viewer:
    """A reader. ``name``: empty where no proxy or socket vouches for one. ``usage``: how much of other people's usage
    of GPUs is shown. ``refused``: nothing is shown at all."""

    name: str
    admin: bool
    jobs: Sight
    usage: Sight
    refused: bool = False

    def sees(self, user: str) -> Sight:
        """How much is shown of a job of ``user``: all of it, no names, or (``OWN``) nothing."""
        return Sight.ALL if self.name and self.name == user else self.jobs

    def sees_usage(self, user: str) -> Sight:
        """How much is shown of the usage of ``user``."""
        return Sight.ALL if self.name and self.name == user else self.usage


def viewer_of(
    settings: WebSettings,
    client: tuple[str, int] | None,
    headers: Mapping[str, str],
    private: Collection[str] | None,
    own_uid: int,
) -> Viewer:
    """Who asks.

    Args:
        settings: whom to believe, and what to show to whom.
        client: address and port, or ``("unix", uid)``.
        headers: with names in lower case.
        private: the words of Slurm's PrivateData; ``None`` where lucidd has recorded none.
        own_uid: of this process, which has lucidd's rights."""
    name, admin = "", False
    if client is not None and client[0] == UNIX and f"unix:{user_name(client[1])}" not in settings.trusted_proxies:
        name, admin = user_name(client[1]), client[1] in (0, own_uid)
    elif _trusted(settings, client):
        name = headers.get(settings.user_header.lower(), "")
    if admin or (name and name in settings.admins):
        return Viewer(name, True, Sight.ALL, Sight.ALL)
    hidden = {"jobs", "usage"} if private is None else {word.lower() for word in private}
    if "all" in hidden:
        hidden |= {"jobs", "usage"}
    if name:
        own_only = settings.others is Others.NOTHING
        jobs = Sight.OWN if own_only or "jobs" in hidden else Sight.ALL
        return Viewer(name, False, jobs, Sight.OWN if own_only or "usage" in hidden else jobs)
    if settings.anonymous is Anonymous.EVERYTHING:
        return Viewer("", False, Sight.ALL, Sight.ALL)
    jobs = Sight.OWN if "jobs" in hidden or settings.anonymous is Anonymous.NOTHING else Sight.NAMELESS
    return Viewer("", False, jobs, Sight.OWN, settings.anonymous is Anonymous.NOTHING)


def _trusted(settings: WebSettings, client: tuple[str, int] | None) -> bool:
    if client is None:
        return False
    host, port = client
    if host == UNIX:
        return f"unix:{user_name(port)}" in settings.trusted_proxies
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(
        address in ip_network(entry, strict=False)
        for entry in settings.trusted_proxies
        if not entry.startswith("unix:")
    )


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

    def job_of(self, job: Job, viewer: Viewer) -> Job | None:
        """The job as this viewer may see it; ``None`` where the viewer may not."""
        sight = viewer.sees(job.user)
        if sight is Sight.OWN:
            return None
        if sight is Sight.ALL:
            return job
        return replace(job, user=self.view.alias(job.user), account="", name="", whole_because="")

    def row_of(self, row: DecisionRow, viewer: Viewer) -> DecisionRow:
        """A decision without the names that this viewer may not read."""
        if viewer.jobs is Sight.ALL:
            return row
        return structs.replace(row, reasons=tuple(self._reason(reason, viewer) for reason in row.reasons))

    def _reason(self, reason: Reason, viewer: Viewer) -> Reason:
        def alias(user: str) -> str:
            return user if not user or user == viewer.name else self.view.alias(user)

        return Reason.from_json(without_names(type(reason), reason_to_dict(reason), alias))

    def alive(self) -> tuple[bool, str]:
        """Whether a lucidd holds the lease, and which."""
        with self.source.store() as store:
            lease = store.lease()
        lives = lease is not None and lease.until_s > self.now_s() and not holder_is_dead(lease.holder)
        return lives, "" if lease is None else lease.holder
