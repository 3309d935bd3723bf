"""The site's own prologs and epilogs, beside jobs that share GPUs: with all of a job's GPUs in their environment, and
each when the site chose. Lines of node.conf: ``site-prolog /opt/prolog.sh`` and ``site-epilog /opt/epilog.d/*`` are
what slurm.conf had; ``site-run first-last /opt/prolog.sh`` says when, and a script without it runs always.

``first-last``: in a prolog for the first job on a GPU, in an epilog for the last; the script sees those of the job's
GPUs that no other job holds, and is not run where there is none. ``not-guests``: not for a job that started on a GPU
on which another ran. A job without GPUs runs all of them.

Slurm tells a prolog only the last GPU of a job where each has a type of its own, so slurmctld is asked (``scontrol
show job -d``); where it does not answer, what Slurm told counts. Who holds which GPU stands in
``/run/lucid-site/NODE/jobs/ID``, written by the job's prolog and removed by its epilog; a boot takes it away as it
does the jobs. It may stay behind where slurmd was killed: it counts until slurmctld says that its job is not (or no
longer) on this node. Jobs with a step here and without a file are asked for: their prologs ran before. ``gpus/N`` is
locked while scripts of a job on that GPU run: those of one that starts do not overtake those of one that ends.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import subprocess
import syslog
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lucid_hooks.processes import Deadline, run_as
from lucid_hooks.state import Unsafe, write

__all__ = ["Node", "run_scripts", "with_gpus"]

_VARIABLES = (b"SLURM_JOB_GPUS", b"CUDA_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL", b"ROCR_VISIBLE_DEVICES")
_HOLDS = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_ANSWER_S, _TURN_S = 10.0, 60.0
"""So long an answer of slurmctld is waited for, and the scripts of another job on the same GPU."""
Environ = Mapping[bytes, bytes]


def _log(words: str) -> None:
    syslog.syslog(syslog.LOG_AUTHPRIV | syslog.LOG_WARNING, f"lucid: {words}")


def _words(gpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(gpus)))


def _places(text: str) -> frozenset[int]:
    """GPUs in ``0,2-3``."""
    found = re.findall(r"(?<![0-9])([0-9]{1,4})(?:-([0-9]{1,4}))?", text)
    return frozenset(place for first, last in found for place in range(int(first), int(last or first) + 1))


def _of_gres(text: str) -> frozenset[int]:
    """GPUs in ``gpu:g0:1(IDX:0,2-3),shard:g1:1(0/2,1/2)``."""
    found = frozenset[int]()
    for kind, inside in re.findall(r"\b(gpu|shard)(?::[^(,]*)?\((?:IDX:)?([^)]*)\)", text):
        used = (place for place, one in enumerate(inside.split(",")) if not one.startswith("0/"))
        found |= frozenset(used) if kind == "shard" else _places(inside)
    return found


def running() -> list[str]:
    """Jobs that have a step here, as root's slurmstepd say of themselves: their prologs have ended."""
    found = set[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            step = re.match(rb"slurmstepd: \[([0-9]+)\.", (process / "cmdline").read_bytes())
            if step and process.stat().st_uid == os.geteuid():
                found.add(step[1].decode())
    return sorted(found)


class Node:
    """Who holds which GPU of this node, by their places. ``ask`` runs a command of Slurm's; ``None``: no answer."""

    def __init__(self, name: str, folder: Path, ask: Callable[[Sequence[str]], str | None]) -> None:
        self._name, self._folder, self._ask = name, folder, ask

    def prepare(self) -> None:
        """Raises Unsafe where a folder is not root's alone, OSError where it cannot be made."""
        for each in (self._folder.parent, self._folder, self._folder / "jobs", self._folder / "gpus"):
            each.mkdir(mode=0o755, parents=True, exist_ok=True)
            found = each.lstat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022 or each.is_symlink():
                raise Unsafe(f"{each} does not belong to root alone")

    def gpus(self, job: str) -> frozenset[int] | None:
        """Those that a job holds here, as slurmctld says; none where it is not here (any more). ``None``: nobody
        knows, as of one that completes: until its epilog has ended it is here, and slurmctld tells no GPUs of it."""
        said = self._ask(["scontrol", "show", "job", "-d", job])
        records = [] if said is None else re.split(r"\n(?=JobId=)", said)
        record = next((one for one in records if re.match(rf"JobId={job}\b", one)), "")
        state = re.search(r"\bJobState=(\w+)", record)
        if said is None or state is None or state[1] not in _HOLDS:
            return None if said is None else frozenset()
        lines = re.findall(r"^ *Nodes=(\S+) .*?\bGRES=(\S*)", record, re.MULTILINE)
        for names, gres in lines:
            listed = self._ask(["scontrol", "show", "hostnames", names]) if re.search(r"[\[,]", names) else names
            if listed is None or self._name in listed.split():
                return None if listed is None or (state[1] == "COMPLETING" and not gres) else _of_gres(gres)
        return frozenset() if lines else None

    def noted(self, job: str) -> tuple[frozenset[int], bool] | None:
        """The GPUs of a job, and whether it is a guest: another ran on one of them when it started."""
        with suppress(OSError):
            text = (self._folder / "jobs" / job).read_text()
            return _places(text), "guest" in text
        return None

    def note(self, job: str, gpus: frozenset[int], guest: bool = False) -> None:
        """Write a job down."""
        write(self._folder / "jobs" / job, _words(gpus) + " guest" * guest + "\n")

    def gone(self, job: str) -> None:
        """The job has ended."""
        (self._folder / "jobs" / job).unlink(missing_ok=True)

    def others(self, job: str, gpus: frozenset[int]) -> frozenset[int]:
        """Those of these GPUs that other jobs hold, or may hold. What is noted of a job that is not here goes."""
        taken, steps = frozenset[int](), running()
        for one in steps:
            if one != job and self.noted(one) is None:
                its = self.gpus(one)
                if its is None:
                    taken = gpus  # it holds nobody knows which
                else:
                    self.note(one, its)  # also one without GPUs: it is not asked for again
        for path in (self._folder / "jobs").iterdir():
            noted = self.noted(path.name) if path.name.isdecimal() and path.name != job else None
            if noted is not None and noted[0] & gpus and self.gpus(path.name) != frozenset():
                taken |= noted[0] & gpus
            elif noted is not None and (noted[0] & gpus or not (noted[0] or path.name in steps)):
                self.gone(path.name)
        return taken

    @contextmanager
    def turn(self, gpus: frozenset[int]) -> Iterator[None]:
        """Inside, the scripts of no other job on these GPUs run; but none waits for ever."""
        deadline = Deadline(_TURN_S)
        with ExitStack() as stack:
            for gpu in sorted(gpus):
                lock = stack.enter_context((self._folder / "gpus" / str(gpu)).open("a"))
                while deadline.left():
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    time.sleep(0.05)
                else:
                    _log(f"a script of another job on GPU {gpu} runs for over {_TURN_S:g} s: it is not waited for")
            yield


def _environ() -> Environ:
    """Of the shell that called this, as Slurm made it."""
    block = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    return dict(one.split(b"=", 1) for one in block.split(b"\0") if b"=" in one)


class _Site:
    """The site's scripts, as node.conf has them."""

    def __init__(self, file: Path, verb: str) -> None:
        lines = [line.split(None, 1) for line in file.read_text(errors="surrogateescape").splitlines()]
        said = [(words[0], words[1].strip()) for words in lines if len(words) == 2]
        last = dict(said)
        self.path = last.get("path", "/usr/sbin:/usr/bin:/sbin:/bin")
        self.folder = Path(last.get("site-dir", "/run/lucid-site"))
        self._patterns = [text for key, text in said if key == verb]
        chosen = [text.split(None, 1) for key, text in said if key == "site-run"]
        self._runs = {words[1]: words[0] for words in chosen if len(words) == 2}

    def run(self, given: Callable[[str], Environ | None]) -> int:
        """Each script in the environment that its choice gives, in Slurm's order (the files of a pattern from the
        last to the first), until one fails; where nothing fits a pattern, Slurm fails, too."""
        for pattern in self._patterns:
            found = sorted(glob.glob(pattern), reverse=True)  # noqa: PTH207 - of whole paths
            for script in found or [pattern]:
                environ = given(self._runs.get(script) or self._runs.get(pattern, "always"))
                code = 0 if environ is None else subprocess.run([script], env=environ, check=False).returncode
                if code:
                    return code if code > 0 else 128 - code
        return 0


def run_scripts(verb: str, file: Path) -> int:
    """``site-prolog`` or ``site-epilog``; the exit code of the first script that fails, or 0."""
    site, environ = _Site(file, verb), _environ()
    texts = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in environ.items()}
    job, name = texts.get("SLURM_JOB_ID", ""), texts.get("SLURMD_NODENAME", "")
    if not texts.get("SLURM_JOB_GPUS") or not job.isdecimal() or not re.fullmatch(r"[\w-][\w.-]*", name):
        return site.run(lambda _: environ)
    words = {"PATH": site.path, "LC_ALL": "C", **{k: texts[k] for k in ("SLURM_CONF",) if k in texts}}

    def ask(command: Sequence[str]) -> str | None:
        answer = run_as(os.geteuid(), command, words, Deadline(_ANSWER_S))
        return answer.text if answer.code == 0 else "" if "Invalid job id" in answer.text else None

    return with_gpus(verb, job, environ, Node(name, site.folder / name, ask), site.run)


def with_gpus(
    verb: str, job: str, environ: Environ, node: Node, run: Callable[[Callable[[str], Environ | None]], int]
) -> int:
    """The same for a job that has GPUs here."""
    told, starts = environ[b"SLURM_JOB_GPUS"], verb == "site-prolog"
    noted = None if starts else node.noted(job)
    gpus, guest = noted or (node.gpus(job) or frozenset[int](), False)
    if not gpus >= _places(told.decode()):
        gpus = _places(told.decode())
        _log(f"slurmctld does not say which GPUs job {job} has: the site's scripts see {_words(gpus)}, as Slurm told")

    def seen(those: frozenset[int]) -> Environ | None:
        fresh = _words(those).encode()
        changed = {key: fresh for key in _VARIABLES if environ.get(key) == told}
        return {**environ, **changed} if those else None

    with ExitStack() as stack:
        taken = frozenset[int]()
        try:
            node.prepare()
            stack.enter_context(node.turn(gpus))
            taken = node.others(job, gpus)
            guest = bool(taken) if starts else guest
            if starts:
                node.note(job, gpus, guest)
            else:
                stack.callback(node.gone, job)
        except (Unsafe, OSError) as error:
            _log(f"who holds which GPU is not known ({error}): the site's scripts take job {job} for the only one")
        choices = {"first-last": gpus - taken, "not-guests": frozenset[int]() if guest else gpus}
        return run(lambda choice: seen(choices.get(choice, gpus)))
