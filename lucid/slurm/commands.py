"""``CommandClient``: Slurm through its own commands, behind a prefix (``chroot DIR``, ``ssh HOST``); and munge.

No shell is used: each command is a list of words, job ids are checked, and what comes from users (names, comments) is
never sent at all. Munge seals a few words so that only root on the cluster's hosts can open them, and nobody can
change them."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable
from lucid.left_out import LeftOut
from lucid.slurm.changed_jobs import KnownJobs
from lucid.slurm.client import Breaker, Changes, HeldGpu, checked_id, declined, guarded
from lucid.slurm.records.configuration import (
    ASSOC_LIMITS,
    QOS_FIELDS,
    QOS_LIMITS,
    GroupLimit,
    Limits,
    Network,
    Partition,
    Reservation,
    clock_from,
    config_from_text,
    fair_shares_from,
    gpu_limits_from,
    group_limits_from,
    network_from,
    partitions_from,
    reservations_from,
    tiers_from,
)
from lucid.slurm.records.fields import partition_settings_from
from lucid.slurm.records.from_json import jobs_from, nodes_from, reads_whole, version_of
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.json import accounting_trouble, loads
from lucid.slurm.records.preemption import QOS_PREEMPTION, Preemption, preemption_from
from lucid.slurm.records.request import JobDefaults, defaults_from
from lucid.text import digits

MUNGE: Final = ("munge", "-u", "root", "-s")
"""The command, before the text. The text is no secret: what counts is who made the credential."""
_CREDENTIAL: Final = re.compile(r"MUNGE:[A-Za-z0-9+/=]{16,1000}:")
_TIMEOUT_S: Final = 5.0


def credential(words: Sequence[str], timeout_s: float = _TIMEOUT_S) -> str:
    """The credential that this munge command prints.

    Raises: ActionRefused: there is no munge, or it does not answer in time, or not with a credential."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ActionRefused(f"munge does not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ActionRefused(f"munge cannot be run ({error.strerror})") from None
    said = done.stdout.strip()
    if done.returncode or _CREDENTIAL.fullmatch(said) is None:
        words_said = " ".join((done.stderr or said).split())[:200]
        raise ActionRefused(f"munge cannot seal ({words_said or f'exit status {done.returncode}'})")
    return said


_TRY_AGAIN = (
    "unable to contact slurm controller",
    "connection refused",
    "connect failure",
    "socket timed out",
    "zero bytes were transmitted",
    "slurm backup controller in standby mode",
    "rate limit",
    "slurmctld is not responding",
    "protocol authentication error",
    "munge",
    "unexpected message received",
)
"""Slurm's words where it does not answer at present, as opposed to declining."""

_MANY = 1_000
_WHOLE = "--json=v0.0.44"
"""The option for the form of JSON that is complete, where the default leaves out something that matters here."""


_FIRST = 4_294_967_293
"""Slurm's highest priority."""


def _after(jobs: Sequence[str]) -> str:
    return "Dependency=afterany:" + ":".join(map(checked_id, jobs))


def silent(said: str) -> bool:
    """Whether Slurm's words mean that it does not answer at present."""
    return any(words in said.lower() for words in _TRY_AGAIN)


class CommandClient:
    """Slurm by its commands. ``prefix`` stands before every command; a command that takes longer than ``timeout_s``
    is killed and counts as no answer. ``left_out`` learns of what cannot be read. Every method raises
    ``ClusterUnavailable`` where Slurm does not answer in time; methods that write raise ``ActionRefused`` with
    Slurm's words where it declines."""

    name = "commands"

    def __init__(
        self,
        prefix: Sequence[str],
        breaker: Breaker,
        timeout_s: float = 20.0,
        left_out: LeftOut | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        many: int = _MANY,
    ) -> None:
        """``many``: with more jobs than this only changed ones are read (``changed_jobs``)."""
        self.left_out = LeftOut() if left_out is None else left_out
        self._prefix = list(prefix)
        self._ssh = any(word.rpartition("/")[2] == "ssh" for word in prefix)
        self._breaker = breaker
        self._timeout_s = timeout_s
        self._most = many
        self._version: tuple[int, int] | None = None
        self._json = "--json"
        self._many: bool | None = None
        """Whether there are too many jobs to read whole each time; ``None`` before the first poll."""
        self._known = KnownJobs(self.some_jobs, clock_s)
        self._accounting = {"partitions": "", "sacctmgr": ""}

    @property
    def accounting(self) -> str:
        """What the last answer about partitions said of slurmdbd; or sacctmgr's, for from 26.05 on only sacctmgr asks
        slurmdbd."""
        return self._accounting["partitions"] or self._accounting["sacctmgr"]

    def version(self) -> tuple[int, int]:
        """Slurm's release, from the last answer, or by asking."""
        if self._version is None:
            words = self._run(["scontrol", "--version"]).split()
            major, minor = [digits(part) for part in [*(words or [""])[-1].split("."), ""][:2]]
            if major is None or minor is None:
                raise ClusterError(f"scontrol --version says {' '.join(words)[:80]!r}, which names no Slurm release")
            self._version = major, minor
        return self._version

    def jobs(self) -> list[SlurmJob]:
        """All jobs that slurmctld knows, also those that ended a short while ago, by one ``squeue`` over all states;
        where there are many, by one listing and one ``squeue`` of those that changed. The first on 26.05 is asked
        again in a form that is complete."""
        if self._many is None:
            self._many = self._listing().count("JobId=") > self._most
        if not self._many:
            self._known.forget()
            jobs = jobs_from(self._squeue(), self.left_out)
            self._many = len(jobs) > self._most
            return jobs
        jobs = self._known.poll(self._listing)
        with self.left_out.reading("jobs") as look:
            for job in jobs:
                if job.unread:
                    look.add(f"job {job.number}", job.unread)
        self._many = len(jobs) > 0.7 * self._most
        return jobs

    def _listing(self) -> str:
        return self.say(["scontrol", "--oneliner", "show", "job"])

    def _squeue(self, *options: str) -> Any:
        document = self.ask(["squeue", self._json, "--states=all", *options])
        if self._json == "--json" and not reads_whole(document):
            document = self.ask(["squeue", _WHOLE, "--states=all", *options])
            self._json = _WHOLE
        return document

    def some_jobs(self, numbers: Sequence[int | str]) -> list[SlurmJob]:
        """The jobs with these numbers that Slurm still knows, by one ``squeue``."""
        try:
            document = self._squeue(f"--jobs={','.join(map(str, numbers))}")
        except ActionRefused as error:
            if "invalid job id" in str(error).lower():
                return []  # none of them is left
            raise
        return jobs_from(document)

    def nodes(self) -> list[SlurmNode]:
        """All nodes, by one ``scontrol show nodes``."""
        return nodes_from(self.ask(["scontrol", "show", "nodes", "--json"]), self.left_out)

    def reservations(self) -> list[Reservation]:
        """Reservations, by one ``scontrol show reservation``."""
        return reservations_from(self.ask(["scontrol", "show", "reservation", "--json"]), self.left_out)

    def node_states(self) -> str:
        """A text that changes when a node's state does, by one ``sinfo``: it costs less than all nodes."""
        return self.say(["sinfo", "-h", "-a", "-o", "%T %N"])

    def job_defaults(self) -> dict[str, JobDefaults]:
        """JobDefaults by partition, from ``scontrol show partition`` and ``show config`` as text: the JSON of 24.11
        leaves them empty."""
        return defaults_from(self.say(["scontrol", "-o", "show", "partition"]), self.config())

    def network(self) -> Network:
        """The topology, from ``scontrol show topology`` and ``show config`` as text."""
        try:
            text = self.say(["scontrol", "show", "topology"])
        except ClusterUnavailable:
            raise
        except ClusterError:  # some versions have an error for a cluster without a topology
            text = ""
        return network_from(text, self.config())

    def preemption(self) -> Preemption:
        """The rules of preemption, from ``scontrol show config``; where anybody is preempted also ``show partition``
        and ``sacctmgr show qos``."""
        config = self.config()
        found = preemption_from(config)
        if not found.by:
            return found
        partitions, qos = self.say(["scontrol", "-o", "show", "partition"]), ""
        if found.by == "qos":
            qos = self.say(["sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_PREEMPTION)}"])
        return preemption_from(config, partitions, qos)

    def qos_priorities(self) -> dict[str, int]:
        """Priorities of QOS from ``sacctmgr``, where the configuration gives them a weight."""
        config = self.config()
        if not tiers_from("all|1", config):
            return {}
        return tiers_from(self.say(["sacctmgr", "-nP", "show", "qos", f"format={QOS_FIELDS}"]), config)

    def fair_shares(self) -> dict[tuple[str, str], float]:
        """Fair-share factors (0 to 1) by account and user, by one ``sshare``. Raises ``ClusterError`` where there are
        none."""
        return fair_shares_from(self.ask(["sshare", "-a", "--json"]), self.left_out)

    def config(self) -> dict[str, str]:
        """The configuration, by ``scontrol show config``."""
        return config_from_text(self.say(["scontrol", "show", "config"]))

    def partitions(self) -> list[Partition]:
        """All partitions, by ``scontrol show partitions``."""
        document = self.ask(["scontrol", "show", "partitions", "--json"])
        self._accounting["partitions"] = accounting_trouble(document)
        return partitions_from(document, self.left_out)

    def clock_s(self) -> float | None:
        """slurmctld's clock, from ``sdiag``."""
        return clock_from(self.ask(["sdiag", "--json"]))

    def rights(self, user: str = "") -> tuple[str, str] | None:
        """``user``, or the user behind the prefix by ``id``, with their rights by ``sacctmgr``."""
        user = user or self._run(["id", "-un"]).strip()
        try:
            level = self._run(["sacctmgr", "-nP", "show", "user", user, "format=adminlevel"]).strip().lower()
        except ActionRefused:
            return None
        return user, level or "none"

    def partition_settings(self) -> dict[str, dict[str, str]]:
        """Settings of partitions, from ``scontrol show partition`` as text."""
        return partition_settings_from(self.say(["scontrol", "-o", "show", "partition"]))

    def gpu_limits(self) -> tuple[Limits, dict[str, GroupLimit]]:
        """Limits on GPUs in words, and those of GrpTRES, from ``sacctmgr`` about QOS and associations."""
        qos, assocs = (
            self.say(["sacctmgr", "-nP", "show", what, f"format={','.join(fields)}"])
            for what, fields in (("qos", QOS_LIMITS), ("assoc", ASSOC_LIMITS))
        )
        return gpu_limits_from(qos, assocs), group_limits_from(qos, assocs)

    def ask(self, command: Sequence[str]) -> Any:
        """The JSON that a command prints.

        Raises:
            ClusterUnavailable: no answer in time.
            ClusterError: an answer that is no JSON."""
        text = self.say(command)
        try:
            document = loads(text)
        except ValueError as error:
            start = text[:80].replace("\n", " ")
            raise ClusterError(f"{command[0]}: its answer is not JSON ({str(error)[:200]}): {start!r}") from None
        self._version = version_of(document) or self._version
        return document

    def say(self, command: Sequence[str]) -> str:
        """The text that a command prints.

        Raises:
            ClusterUnavailable: no answer in time.
            ClusterError: it fails."""
        self._breaker.calls.reads += 1
        return self._run(command)

    def update(self, job_id: str, changes: Changes) -> None:
        """Change a job by ``scontrol update``, twice where one cannot do it."""
        if changes.first is not None:
            self.update(job_id, changes.first)
        begin = None if changes.start_at_s is None else f"uts{changes.start_at_s:.0f}"
        fields = {
            "Partition": changes.partition,
            "TresPerNode": changes.tres_per_node,
            "TresPerJob": changes.tres_per_job,
            "TresPerSocket": changes.tres_per_socket,
            "TresPerTask": changes.tres_per_task,
            "NumNodes": changes.nodes,
            "ReqNodeList": changes.req_nodes,
            "Switches": None if changes.switches is None else f"{changes.switches}@00:00:01",
            "StartTime": "now" if changes.start_now else begin,
            "SiteFactor": None if changes.site_factor is None else str(changes.site_factor),
            "Extra": changes.extra,
            "CpusPerTres": changes.cpus_per_tres,
            "MemPerTres": changes.mem_per_tres,
            "NumCPUs": None if changes.num_cpus is None else str(changes.num_cpus),
            "MinMemoryNode": None if changes.mem_node_mib is None else str(changes.mem_node_mib),
        }
        words = [f"{key}={value}" for key, value in fields.items() if value is not None]
        if words:
            self._write(["scontrol", "update", f"JobId={checked_id(job_id)}", *words])

    def set_begin(self, job_ids: Sequence[str], begin_s: float) -> None:
        """Set the begin time (Unix s) of pending jobs by one ``scontrol update`` with a list of jobs. Where Slurm
        declines for one of them, it may have changed the others."""
        listed = ",".join(map(checked_id, job_ids))
        self._write(["scontrol", "update", f"JobId={listed}", f"StartTime=uts{begin_s:.0f}"])

    def who(self) -> tuple[int, str]:
        """Number and name of the user behind the prefix, by ``id``."""
        uid, name = self._run(["id", "-u"]).strip(), self._run(["id", "-un"]).strip()
        number = digits(uid)
        if number is None:
            raise ClusterError(f"id -u says {uid[:80]!r}, which is no user's number")
        return number, name

    def hold_gpu(self, held: HeldGpu) -> str:
        """Submit the job by ``sbatch`` without a GPU and with a begin time, then ask for the GPU by one ``scontrol
        update``: a request that names single GPUs is refused at submission."""
        words = ["sbatch", "--parsable", f"--job-name={held.name}", f"--partition={held.partition}"]
        words += [f"--nodelist={held.node}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=1M"]
        words += ["--no-requeue", f"--time={held.limit_min}", "--begin=now+1hour", f"--comment={held.words}"]
        words += ["--chdir=/", "--output=/dev/null", "--wrap=exec sleep infinity"]
        self._breaker.calls.writes += 1
        job_id = checked_id(self._run(words).strip().partition(";")[0])
        changes = [f"TresPerNode={held.gres}", "StartTime=now", f"Priority={_FIRST}"]
        changes += [_after(held.after)] if held.after else []
        try:
            self._write(["scontrol", "update", f"JobId={job_id}", *changes])
        except ActionRefused:
            self.cancel(job_id)
            raise
        return job_id

    def renew_held_gpu(self, job_id: str, limit_min: int | None, after: Sequence[str]) -> None:
        """Set the time limit and dependency by ``scontrol update``."""
        words = [] if limit_min is None else [f"TimeLimit={limit_min}"]
        words += [_after(after)] if after else []
        self._write(["scontrol", "update", f"JobId={checked_id(job_id)}", *words])

    def cancel(self, job_id: str) -> None:
        """End a job by ``scancel``."""
        self._write(["scancel", checked_id(job_id)])

    def seal(self, text: str) -> str:
        """The text sealed by ``munge``, so that only root on the cluster's hosts can open it. Its troubles are not
        Slurm's, so the breaker does not count them."""
        words = [*MUNGE, text]
        return credential([*self._prefix, *(map(shlex.quote, words) if self._ssh else words)])

    def number(self, job_id: str) -> int:
        """Slurm's number of a job, by ``squeue``."""
        text = self.say(["squeue", "--noheader", "--format=%A", f"--jobs={checked_id(job_id)}"]).strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= 10):
            raise ActionRefused(f"squeue did not give the number of job {job_id}")
        return int(text)

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        """Hold a pending job by ``scontrol update``. ``begin_s``: its begin time from now on (Unix s); 0 for none.
        That a begin time is set beside it shows job_submit.lua that this hold is Lucid's."""
        begin = f"uts{begin_s:.0f}" if begin_s else "now"
        self._write(["scontrol", "update", f"JobId={checked_id(job_id)}", "Priority=0", f"StartTime={begin}"])

    def release(self, job_id: str) -> None:
        """Release a job by ``scontrol release``."""
        self._write(["scontrol", "release", checked_id(job_id)])

    def requeue_hold(self, job_id: str) -> None:
        """Requeue a job by ``scontrol requeuehold``. Without ``Incomplete`` it would run a job that has just ended a
        second time."""
        self._write(["scontrol", "requeuehold", "Incomplete", checked_id(job_id)])

    def _write(self, command: Sequence[str]) -> None:
        self._breaker.calls.writes += 1
        self._run(command)

    def _run(self, command: Sequence[str]) -> str:
        # ssh joins its words and gives them to a shell over there
        words = map(shlex.quote, command) if self._ssh else command
        return guarded(self._breaker, lambda: self._once([*self._prefix, *words], command[0]))

    def _once(self, words: Sequence[str], name: str) -> str:
        try:
            done = subprocess.run(
                words,
                shell=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise ClusterUnavailable(f"{name}: no answer within {self._timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in slurm.prefix
            why = getattr(error, "strerror", None) or error
            raise ClusterUnavailable(f"{words[0]}: cannot be run ({why}); check slurm.prefix") from None
        if done.returncode == 0:
            if name == "sacctmgr":
                self._accounting[name] = ""
            return done.stdout
        said = " ".join((done.stderr or done.stdout).split())[:500]
        if name == "sacctmgr" and silent(said):
            self._accounting[name] = said  # slurmdbd's silence says nothing of slurmctld
        elif done.returncode in (126, 127) or silent(said):
            raise ClusterUnavailable(f"{name}: {said or f'exit status {done.returncode}'}")
        raise declined(f"{name}: {said or f'exit status {done.returncode}'}")
