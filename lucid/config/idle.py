"""Settings of what happens to jobs whose GPUs do nothing."""

from __future__ import annotations

from pydantic import Field, model_validator

from lucid.config.base import Section, fixed

__all__ = ["IdleSettings"]


class IdleSettings(Section):
    """What Lucid does about a job all of whose GPUs do nothing. Each step is off by default, and has a switch of its
    own. Jobs that said `lucid:off`, and jobs that were not measured, meet none of them."""

    tell: str = Field("", max_length=4096)
    """Who tells the job's user: `mail` (by Slurm's MailProg), or the path of a program of the site. It is called as
    MailProg is, with `-s SUBJECT USER` and the text on its standard input. Empty: nobody is told."""
    tell_after_s: float = Field(7200.0, ge=3600)
    """The user is told once all GPUs of the job have done nothing for so long, s. A job that was measured for less
    than an hour is never told of."""
    again_after_s: float = fixed(3600.0, ge=600)
    """So long after the first message the second one is sent, if the job still does nothing, s."""
    cancel: tuple[str, ...] = ()
    """VCs whose jobs are cancelled after the second message, if they still do nothing. Needs `tell`."""
    cancel_after_s: float = Field(3600.0, ge=600)
    """So long after the second message, s."""

    @model_validator(mode="after")
    def _told_first(self) -> IdleSettings:
        if self.cancel and not self.tell:
            raise ValueError("idle.cancel needs idle.tell: nobody's job is cancelled without two messages before")
        return self
