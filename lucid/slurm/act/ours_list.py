"""``OursList``: the file that lists Lucid's jobs, for lucid-release and for a lucidd without its store.

Sites write AdminComment too (a prolog at each start), over the tag that job_submit.lua puts there. The store's notes
keep the tags of the jobs that Lucid touched; this list, beside ``released`` in ``daemon.state_dir``, keeps them
without SQLite. A job is listed before Slurm is asked to hold it. Jobs that have left are removed now and then, so the
list is no longer than Slurm's own."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lucid.files import read_regular, write_atomic
from lucid.slurm.own.state import Ownership
from lucid.slurm.records.fields import MARK
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.view.observation import tagged, with_tag
from lucid.store.port import JobNote

_MOST = 64 << 20
_LINE = re.compile(rb"^([0-9]{1,12}) ([0-9]{1,12}) ([0-9]{1,10}|-) (lucid:[!-~]{0,1024})$", re.MULTILINE)
_NOT_WRITABLE = re.compile(r"[^!-~]+")
_KEPT_GONE = 50
"""How many jobs that have left may stay in the list; or a quarter of all."""


class _Entry(NamedTuple):
    """One job, or one array, of the list. ``uid``: -1 where it is not known."""

    number: int
    submit_s: int
    uid: int
    tag: str

    def line(self) -> str:
        return f"{self.number} {self.submit_s} {self.uid if self.uid >= 0 else '-'} {self.tag}\n"

    def means(self, record: SlurmJob) -> bool:
        """Whether the entry is this job. Slurm uses a number again; only a requeue changes the time of a job's
        submission."""
        same_user = self.uid < 0 or record.uid < 0 or record.uid == self.uid
        submit_s = int(record.submit_s)
        return same_user and (submit_s >= self.submit_s if record.restarts else submit_s == self.submit_s)


@lru_cache(maxsize=16_384)
def _writable(admin_comment: str) -> str:
    """The tag at the beginning of the AdminComment, as one word."""
    return MARK + _NOT_WRITABLE.sub("", admin_comment.split()[0].removeprefix(MARK))[:1024]


def _number(record: SlurmJob) -> int:
    """The job's number, or that of its array."""
    base = record.id.partition("_")[0]
    return int(base) if base.isdecimal() else record.number


class OursList:
    """Reads the list as it was left, and keeps it up to date if it ``writes``."""

    def __init__(self, folder: Path, ownership: Ownership, writes: bool) -> None:
        self.path = folder / "ours"
        self.lost: Sequence[str] = ()
        """Jobs of the last poll whose AdminComment somebody else has overwritten."""
        self.trouble = ""
        """Why the list could not be written; empty where it could."""
        self._ownership = ownership
        self._writes = writes
        self._entries: dict[int, _Entry] = {}
        self._there: set[int] = set()
        """Numbers of the jobs of the last poll."""
        self._left: tuple[int, int] | None = None
        """Size and time of the file as it was left; ``None``: the whole file is to be written anew."""
        self._restored: dict[str, tuple[SlurmJob, str, SlurmJob]] = {}
        try:
            text = read_regular(self.path, _MOST)
        except OSError:
            return
        for number, submit_s, uid, tag in _LINE.findall(text):
            user = -1 if uid == b"-" else int(uid)
            self._entries[int(number)] = _Entry(int(number), int(submit_s), user, tag.decode("ascii"))

    def restored(self, jobs: Sequence[SlurmJob], notes: Mapping[str, JobNote]) -> Sequence[SlurmJob]:
        """The jobs, each with its tag as noted, or else as listed. The same record gives the same object."""
        found, before = dict[str, tuple[SlurmJob, str, SlurmJob]](), self._restored
        for job in jobs:
            note = notes.get(job.id)
            if job.tag is not None or (note is None and not job.asks and not job.held):
                continue
            tag = tagged(job, note)
            if not tag and (entry := self._entries.get(_number(job))) is not None and entry.means(job):
                tag = entry.tag
            if tag:
                made = before.get(job.id)
                same = made is not None and made[0] is job and made[1] == tag
                found[job.id] = made if made is not None and same else (job, tag, with_tag(job, tag))
        self._restored = found
        self.lost = sorted(job_id for job_id, (job, _, _) in found.items() if not job.ended)
        return [found[job.id][2] if job.id in found else job for job in jobs] if found else jobs

    def update(self, jobs: Iterable[SlurmJob]) -> None:
        """Add new jobs of ours to the list."""
        if not self._writes:
            return
        fresh: dict[int, _Entry] = {}
        self._there = set()
        for job in jobs:
            if job.tag is None or not self._ownership.ours(job):
                continue
            number = _number(job)
            self._there.add(number)
            if job.ended or not job.asks:
                continue
            known, tag = self._entries.get(number), _writable(job.admin_comment)
            if number not in fresh and not (known is not None and known.tag == tag and known.means(job)):
                fresh[number] = _Entry(number, int(job.submit_s), job.uid, tag)
        if fresh or (self._entries and self._left != self._seen()):
            self._write(fresh)

    def drop(self, unread: Collection[str]) -> None:
        """Remove the jobs that have left. *unread*: the numbers of jobs whose records could not be read, which
        stay."""
        if len(self._entries) <= len(self._there) + _KEPT_GONE:
            return
        gone = [number for number in self._entries if number not in self._there and str(number) not in unread]
        if len(gone) > max(_KEPT_GONE, len(self._entries) // 4):
            for number in gone:
                del self._entries[number]
            self._left = None

    def has(self, job_id: str, number: int) -> bool:
        """Whether the list on disk has this job, or its array."""
        base = job_id.partition("_")[0]
        return not self._writes or (int(base) if base.isdecimal() else number) in self._entries

    def _write(self, fresh: Mapping[int, _Entry]) -> None:
        """Append the new entries; write the whole file anew where somebody else changed it, or a write failed."""
        try:
            if self._left is None or self._left != self._seen():
                self._left = None
                text = "".join(entry.line() for entry in {**self._entries, **fresh}.values())
                write_atomic(self.path, text.encode("ascii"), durable=True, mode=0o600)
            else:
                self._left = None
                with self.path.open("ab") as file:
                    file.write("".join(entry.line() for entry in fresh.values()).encode("ascii"))
                    file.flush()
                    os.fsync(file.fileno())
            self._left, self.trouble = self._seen(), ""
        except OSError as error:
            self.trouble = (
                f"{self.path} cannot be written ({error.strerror or error}): no job is held that is not in it"
            )
            return
        self._entries.update(fresh)

    def _seen(self) -> tuple[int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size
