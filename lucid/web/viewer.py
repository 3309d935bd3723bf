"""``Viewer``: who reads the pages, and what that reader may see, by Slurm's ``PrivateData`` and settings.

``PrivateData`` counts as lucidd recorded it; where nothing is recorded the pages show what they would under
``PrivateData=jobs,usage``."""

from __future__ import annotations

import pwd
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address, ip_network

from lucid.config.other import Anonymous, Others, WebSettings

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


def peer_name(uid: int) -> str:
    """The user behind a uid; the number where there is no such user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
    if client is not None and client[0] == UNIX and f"unix:{peer_name(client[1])}" not in settings.trusted_proxies:
        name, admin = peer_name(client[1]), client[1] in (0, own_uid)
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
        return f"unix:{peer_name(port)}" in settings.trusted_proxies
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(
        address in ip_network(entry, strict=False)
        for entry in settings.trusted_proxies
        if not entry.startswith("unix:")
    )
