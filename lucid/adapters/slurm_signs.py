"""What Lucid's tag says beside the user's request: that a lucidd lives (``beat``), and that lucid-release let a job
go while none did (``let``). Both stand in the AdminComment, which every host can read and no user can write.
"""

from __future__ import annotations

from lucid.adapters.slurm_client import Changes
from lucid.adapters.slurm_hands import Hands
from lucid.adapters.slurm_nouns import SlurmJob
from lucid.adapters.slurm_text import MARK, parse_mark
from lucid.adapters.slurm_view import Facts
from lucid.errors import ActionRefused

__all__ = ["SignOfLife", "let_go_by_release", "with_word"]

_EVERY_S = 60.0
_ORDERED = f"{MARK}skip=order"
"""The tag of a job that Lucid only orders: nobody takes it for one that Lucid holds."""
_MOST = 900
"""Slurm keeps about 1,024 characters."""


def with_word(tag: str, key: str, value: str | None) -> str:
    """The tag with ``key=value`` as its last word, in place of what it said of *key*; ``None`` takes the word out."""
    words = [word for word in tag.removeprefix(MARK).split(";") if word and not word.startswith(f"{key}=")]
    return MARK + ";".join(words if value is None else [*words, f"{key}={value}"])


def let_go_by_release(record: SlurmJob) -> bool:
    """Did lucid-release let it go, because no lucidd decided? By hand (``--all``) it leaves no such word."""
    return "let" in (parse_mark(record.admin_comment) or {})


class SignOfLife:
    """Writes ``beat=UNIX TIME`` into the tag of one waiting job, once a minute, and at once into another's when that
    one waits no more. Nothing is written while Lucid neither holds nor orders a job."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._job, self._at_s = "", float("-inf")
        self._refused: set[str] = set()

    def show(self, facts: Facts) -> None:
        """After a look. What Slurm declines is tried on another job the next time."""
        hands = self._hands
        bearers = {job.id: job for job in facts.jobs if job.pending and self._bears(job)}
        if self._job in bearers and 0 <= facts.now_s - self._at_s < _EVERY_S:
            return
        self._refused &= bearers.keys()
        able = [job for job in bearers.values() if job.id not in self._refused]
        if not able or hands.full(1):
            return
        job = bearers.get(self._job) or min(able, key=_first)
        if job.id in self._refused:
            job = min(able, key=_first)
        tag = with_word(job.admin_comment or _ORDERED, "beat", f"{facts.now_s:.0f}")
        try:
            hands.quietly(lambda: hands.client.update(job.id, Changes(admin_comment=tag)))
        except ActionRefused:
            self._refused.add(job.id)
            return
        self._job, self._at_s = job.id, facts.now_s

    def _bears(self, job: SlurmJob) -> bool:
        note = self._hands.notes.get(job.id)
        if job.id in self._hands.touched or len(job.admin_comment) > _MOST:
            return False
        if self._hands.viewer.holds(job, note):
            return True
        return note is not None and bool(note.site_factor) and _only_ordered(job.admin_comment)


def _only_ordered(tag: str) -> bool:
    return not tag or tag.startswith(_ORDERED)


def _first(job: SlurmJob) -> tuple[bool, int, str]:
    """Single jobs first: to change one task of an array Slurm has to part it from the others."""
    return "_" in job.id, job.number, job.id
