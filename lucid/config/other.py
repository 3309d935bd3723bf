"""Settings of ``lucid-web`` (where it listens, who may see what) and of the report of waste."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from lucid.config.section import Section


class Anonymous(StrEnum):
    """What the pages show to a reader whose name nobody vouches for."""

    NOTHING = "nothing"
    """An error page that says how to sign in; /metrics for those alone who send the token of metrics_token_file."""
    NO_NAMES = "no-names"
    """What public.json has: jobs with their numbers, sizes and decisions, users numbered, no accounts, no names."""
    EVERYTHING = "everything"
    """All of it, names too: for a page that only administrators can reach."""


class Others(StrEnum):
    """What a reader with a name sees of other people's jobs."""

    AS_SLURM = "as-slurm"
    """What Slurm's PrivateData lets squeue and sreport show him."""
    NOTHING = "nothing"
    """His own jobs alone; administrators see all."""


class WebSettings(Section, frozen=True, kw_only=True):
    """The read-only pages beside lucidd (docs/web.md)."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8765
    """Port to listen on; 0: any that is free."""
    socket: str = ""
    """A Unix socket to listen on instead: the reader is then the user at the other end of it."""
    root_path: str = ""
    """The path under which a proxy shows the pages, such as /lucid."""
    user_header: str = "X-Remote-User"
    """The header in which a trusted proxy names the reader."""
    trusted_proxies: tuple[str, ...] = ()
    """Who is believed about that header: addresses and networks (127.0.0.1, 10.0.0.0/8), and users at the other end
    of the socket (unix:www-data). Without an entry the header is passed over."""
    admins: tuple[str, ...] = ()
    """Users who see everything; root and lucidd's own user are, where the socket tells."""
    others: Others = Others.AS_SLURM
    """What a reader sees of other people's jobs."""
    anonymous: Anonymous = Anonymous.NO_NAMES
    """What a reader without a name sees, on loopback too: everybody with an account on that host can reach it. Where
    PrivateData has jobs, no job is shown to such a reader either way, unless this is everything."""
    metrics_token_file: str = ""
    """A file with a token: who sends it (Authorization: Bearer …) reads /metrics, though anonymous is nothing."""


class EfficiencySettings(Section, frozen=True, kw_only=True):
    """What `lucidctl efficiency` calls waste. Each bound is set so that ordinary work stays below it."""

    idle_after_s: Annotated[float, Meta(ge=300)] = 3600.0
    """A GPU that worked and then did nothing for so long was idle after activity, s. Evaluations on the CPU and
    checkpoints to slow storage take up to half an hour; an hour is twice that."""
