"""Takes the steps that meet jobs whose GPUs do nothing: tells their users, tells them again, and cancels the jobs of
VCs that say so. Each step is kept before the next is looked for, and stands in the job's story.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lucid.adapters.slurm.clients.port import SlurmClient
from lucid.adapters.slurm.records.field_parsers import says
from lucid.adapters.store.port import SEEN, Store
from lucid.config import IdleSettings, Settings
from lucid.core.job import Running
from lucid.efficiency.judge import JobUse
from lucid.efficiency.ladder import Step, due, works
from lucid.errors import ActionRefused, ConfigError
from lucid.escaping import shown
from lucid.profiler.use import GpuUse

__all__ = ["VIEW", "IdleJobs", "Message", "message", "teller"]

_LOG = logging.getLogger("lucidd")
VIEW = "idle"
"""Where the store has the steps taken: by job, when the run began, and each step with its time."""
_EVERY_S = 60.0
_AGAIN_S = 600.0
"""A message that could not be sent is tried again so much later."""
_TELLER_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
Tell = Callable[["Message"], None]
Steps = tuple[tuple[Step, float], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """To the user of a job."""

    user: str
    subject: str
    text: str


def teller(settings: Settings, client: SlurmClient) -> Tell:
    """Sends a message as ``idle.tell`` says. What it returns raises ``ConfigError`` where that failed."""

    def tell(sent: Message) -> None:
        if _NAME.fullmatch(sent.user) is None:
            raise ConfigError(f"the name {shown(sent.user)!r} cannot be given to a mail program")
        if settings.idle.tell == "mail":
            program = client.config().get("MailProg", "").strip()
            if not program:
                raise ConfigError("idle.tell = 'mail', and Slurm does not tell its MailProg: name a program there")
            command = [*settings.slurm.prefix, program]
        else:
            command = [settings.idle.tell]
        command += ["-s", sent.subject, sent.user]
        try:
            done = subprocess.run(
                command, input=sent.text, capture_output=True, text=True, timeout=_TELLER_S, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"{command[-4]} did not send it: {error}") from None
        if done.returncode:
            raise ConfigError(
                f"{command[-4]} ended with status {done.returncode}: {shown(done.stderr[:200].strip())}"
            )

    return tell


class IdleJobs:
    """``uses``: how each job used its GPUs; ``tell`` raises ``ConfigError`` where a message could not be sent."""

    def __init__(
        self,
        settings: IdleSettings,
        store: Store,
        token: int,
        uses: Callable[[], Mapping[str, tuple[GpuUse, ...]]],
        tell: Tell,
        cancel: Callable[[str], None],
    ) -> None:
        self._settings, self._store, self._token = settings, store, token
        self._uses, self._tell, self._cancel = uses, tell, cancel
        self._next_s = float("-inf")
        self._not_before_s: dict[str, float] = {}

    def due(self, now_s: float) -> bool:
        """Is there anything to look for now? Nothing where nobody is told, and not more often than once a minute."""
        return bool(self._settings.tell) and not self._next_s - 3600.0 <= now_s < self._next_s

    def look(
        self, running: Iterable[Running], comments: Mapping[str, str], packed: Collection[str], now_s: float
    ) -> None:
        """Take the steps that are due. ``comments``: of jobs, by id, as Slurm has them; a job whose comment is not
        known, or says ``lucid:off``, meets none. ``packed``: VCs in which lucidd acts; nobody is cancelled elsewhere.
        """
        if not self.due(now_s):
            return
        self._next_s = now_s + _EVERY_S
        uses, kept = self._uses(), self._kept()
        present = {entry.job.id: entry.start_s for entry in running}
        self._not_before_s = {job: at_s for job, at_s in self._not_before_s.items() if job in present}
        steps = {job: taken for job, taken in kept.items() if present.get(job) == taken[0]}
        if len(steps) < len(kept):
            self._keep(steps)
        for entry in running:
            job_id, job = entry.job.id, _use_of(entry, uses.get(entry.job.id, ()), now_s)
            _, taken = steps.get(job_id, (0.0, ()))
            if taken and works(job):
                del steps[job_id]  # what was told of a stretch that is over does not count for the next
                self._keep(steps)
            elif job_id in comments and not says(comments[job_id], "off"):
                step = self._step(job, taken, packed, now_s)
                if step is not None:
                    steps[job_id] = entry.start_s, (*taken, (step, now_s))
                    self._keep(steps)

    def _kept(self) -> dict[str, tuple[float, Steps]]:
        try:
            return {
                job: (float(begin_s), tuple((Step(step), float(at_s)) for step, at_s in steps))
                for job, (begin_s, steps) in (self._store.view(VIEW) or {}).items()
            }
        except (AttributeError, TypeError, ValueError):
            return {}  # of another version of Lucid: its users are told once more

    def _keep(self, steps: Mapping[str, tuple[float, Steps]]) -> None:
        self._store.put_view(
            VIEW, {job: [begin_s, [[str(s), at] for s, at in taken]] for job, (begin_s, taken) in steps.items()}
        )

    def _step(self, job: JobUse, taken: Steps, packed: Collection[str], now_s: float) -> Step | None:
        """The step that was taken at this look."""
        found = due(job, taken, self._settings)
        if found is None or now_s < self._not_before_s.get(job.job_id, 0.0):
            return None
        step, since_s = found
        if step is Step.CANCEL and job.vc not in packed:
            return None
        try:
            self._end(job, since_s) if step is Step.CANCEL else self._send(job, step, since_s)
        except (ActionRefused, ConfigError) as error:
            self._not_before_s[job.job_id] = now_s + _AGAIN_S
            _LOG.warning("an idle job", extra={"facts": {"job": job.job_id, "step": str(step), "why": str(error)}})
            return None
        self._not_before_s.pop(job.job_id, None)
        return step

    def _send(self, job: JobUse, step: Step, since_s: float) -> None:
        self._tell(message(job, since_s, self._settings, again=step is Step.TELL_AGAIN))
        which = "the second message" if step is Step.TELL_AGAIN else "a message"
        words = f"nothing on its GPUs since {_at(since_s)}; {which} was sent to {shown(job.user)}"
        action = self._store.begin_action(job.end_s, job.job_id, "does", words, self._token)
        self._store.end_action(action, SEEN, self._token)
        _LOG.info("an idle job", extra={"facts": {"job": job.job_id, "step": str(step)}})

    def _end(self, job: JobUse, since_s: float) -> None:
        words = f"it does nothing on its GPUs since {_at(since_s)}, and {shown(job.user)} was told twice"
        action = self._store.begin_action(job.end_s, job.job_id, "cancel", words, self._token)
        try:
            self._cancel(job.job_id)
        except ActionRefused as error:
            self._store.end_action(action, f"refused: {error}", self._token)
            raise
        self._store.end_action(action, "done", self._token)
        _LOG.warning("an idle job", extra={"facts": {"job": job.job_id, "step": str(Step.CANCEL)}})


def message(job: JobUse, since_s: float, settings: IdleSettings, again: bool = False) -> Message:
    """What the job's user is told: what was seen, GPU by GPU, and what to do."""
    gpus = "its GPU does" if job.gpus == 1 else f"its {job.gpus} GPUs do"
    lines = [
        f"Your job {job.job_id} ({shown(job.name)[:60]}) runs, but {gpus} nothing: since",
        f"{_at(since_s)}, {_hours(job.end_s - since_s)} by now. Others wait for GPUs.",
        "",
        *(
            f"  {shown(use.gpu)[:50]}: worked {_hours(use.worked_s)} of {_hours(use.measured_s)} that were measured"
            for use in job.use
        ),
        "",
        "If you do not need it any more, end it:",
        f"  scancel {job.job_id}",
        "If it should compute: do its processes still run, and do they find the GPU?",
        f"What Lucid knows of it: lucidctl explain {job.job_id}",
    ]
    if again:
        lines += ["", "This is the second message about it, and the last."]
    if job.vc in settings.cancel:
        wait_s = settings.cancel_after_s + (0.0 if again else settings.again_after_s)
        lines += ["", f"If its GPUs still do nothing in {_hours(wait_s)}, it is cancelled."]
    which = "still does" if again else "does"
    return Message(job.user, f"Job {job.job_id} {which} nothing on its GPUs", "\n".join(lines) + "\n")


def _use_of(entry: Running, use: Sequence[GpuUse], now_s: float) -> JobUse:
    job = entry.job
    return JobUse(
        job.id, job.user, job.account, job.vc, job.name, entry.gpus, entry.start_s, now_s, running=True,
        state="RUNNING", time_limit_s=job.time_limit_s, use=tuple(one for one in use if one.end_s > entry.start_s),
    )  # fmt: skip


def _at(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600.0:.1f} h"
