"""Why a job ended badly, from what Slurm and the samplers saw, and what would have helped."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_NEAR = 0.95
"""Memory used to this share counts as full: samples are seconds apart."""
_MORE = 1.5
"""The proposed size, as a multiple of what was full."""
_NODE = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")


class Cause(StrEnum):
    """The cause of an end."""

    HOST_MEMORY = "host_memory"
    GPU = "gpu"
    GPU_MEMORY = "gpu_memory"
    TIME_LIMIT = "time_limit"
    NODE = "node"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ending:
    """The facts about an end. Memory in MiB: ``mem_mib`` granted on each node, ``peak_mib`` the most that one of its
    tasks used; ``gpu_mem_mib`` the most that was measured on one GPU, ``of_gpu_mib`` a GPU's own; 0: unknown.
    ``last_util``: how busy its GPUs were in its last minute, percent; ``None``: not measured. ``limit_s``, ``ran_s``:
    seconds. ``step_states``: of the job's steps; ``exit_code``, ``signal``: of its script, or of the first step that
    failed. ``by``: who cancelled it. ``gpu_fault``: what one of its GPUs reported meanwhile, and which GPU;
    ``whose``: whose fault that is (`GpuFault.whose`); ``gpu_out``: whether that GPU gets no new start."""

    state: str
    exit_code: int = 0
    signal: int = 0
    step_states: Sequence[str] = field(default_factory=tuple)
    mem_mib: float = 0.0
    peak_mib: float = 0.0
    gpu_mem_mib: float = 0.0
    of_gpu_mib: float = 0.0
    limit_s: float | None = None
    ran_s: float = 0.0
    nodes: str = ""
    by: str = ""
    gpu_fault: str = ""
    whose: str = ""
    gpu_out: bool = False
    last_util: float | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job ended. ``seen``: what was seen, as a sentence; ``advice``: what would have helped, or where to
    look."""

    cause: Cause
    seen: str
    advice: str


def why_ended(end: Ending) -> Why | None:
    """Why the job ended badly; ``None`` for a job that ended well."""
    if end.state == "COMPLETED":
        return None
    full = end.mem_mib > 0 and end.peak_mib >= _NEAR * end.mem_mib
    killed = end.signal == signal.SIGKILL or end.exit_code == 128 + signal.SIGKILL
    if "OUT_OF_MEMORY" in (end.state, *end.step_states) or (full and (killed or end.state == "FAILED")):
        return _host_memory(end)
    if end.state in ("TIMEOUT", "DEADLINE"):
        return _time_limit(end)
    if end.state in _NODE:
        return Why(
            Cause.NODE,
            f"A node of it failed ({end.state}{(f', on {end.nodes}' if end.nodes else '')}).",
            "This is not the program's fault. Submit it again; with --requeue Slurm does that by itself.",
        )
    if end.state == "PREEMPTED":
        return Why(
            Cause.PREEMPTED,
            "Slurm stopped it for a job that goes before it (preemption).",
            "Submit it again; with --requeue, and a checkpoint, it goes on by itself.",
        )
    if end.state == "CANCELLED":
        return Why(Cause.CANCELLED, f"{end.by or 'Somebody'} cancelled it (scancel).", "Nothing needs to be mended.")
    if end.gpu_fault:
        return _gpu(end)
    if end.of_gpu_mib and end.gpu_mem_mib >= _NEAR * end.of_gpu_mib:
        return Why(
            Cause.GPU_MEMORY,
            f"Its program failed ({_code(end)}), and the memory of a GPU was full when it was last measured: "
            f"{_gib(end.gpu_mem_mib)} of {_gib(end.of_gpu_mib)}.",
            "A smaller batch, or a GPU with more memory; the program's output says whether it was out of GPU memory.",
        )
    if end.signal or end.exit_code > 128:
        return _signal(end)
    if end.exit_code:
        return Why(
            Cause.EXIT_CODE,
            f"Its program ended with exit code {end.exit_code}.{_last_minute(end)}",
            "The program itself reported this: the last lines of its output say why.",
        )
    return Why(
        Cause.UNKNOWN,
        f"It ended as {end.state}, and nothing says why.{_last_minute(end)}",
        "sacct -l -j may know more.",
    )


def _host_memory(end: Ending) -> Why:
    seen = "The memory of its host was full: "
    seen += f"it was granted {_gib(end.mem_mib)} on a node" if end.mem_mib else "it passed what it was granted"
    if end.peak_mib:
        seen += f", and one of its tasks peaked at {_gib(end.peak_mib)}"
    ask = max(end.mem_mib, end.peak_mib) * _MORE
    return Why(
        Cause.HOST_MEMORY,
        seen + ".",
        f"Ask for more: --mem={max(-int(-ask // 1024), 1)}G." if ask else "Ask for more with --mem.",
    )


def _time_limit(end: Ending) -> Why:
    if end.state == "DEADLINE":
        return Why(Cause.TIME_LIMIT, "Its deadline passed (--deadline).", "Ask for a later deadline.")
    limit_s = end.limit_s or end.ran_s
    return Why(
        Cause.TIME_LIMIT,
        f"It ran until its time limit of {_hms(limit_s)}, and Slurm ended it.",
        f"Ask for more time (--time={_hms(limit_s * _MORE)}), or write checkpoints and go on from the last one.",
    )


def _gpu(end: Ending) -> Why:
    """The end by a GPU's fault. The driver's word goes before the program's: a program whose GPU fails ends with a
    code of its own."""
    if end.whose == "application":
        advice = "By NVIDIA's list that is most likely the program's own fault, such as a wrong address."
    elif end.gpu_out:
        advice = "This is not the program's fault. Submit it again: Lucid leaves that GPU out of new starts."
    else:
        advice = (
            "That may be the GPU's fault or the program's. If it comes again on another GPU, it is the program's."
        )
    return Why(
        Cause.GPU,
        f"Its program failed ({_code(end)}) after a GPU of it had reported a fault: {end.gpu_fault}.",
        advice,
    )


def _signal(end: Ending) -> Why:
    number = end.signal or end.exit_code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    known: dict[int, str] = {
        signal.SIGKILL: "Somebody or something killed it from outside; on a host without cgroups that may be the "
        "kernel, which had no memory left.",
        signal.SIGSEGV: "A fault within the program or one of its libraries.",
        signal.SIGABRT: "The program gave up by itself: the last lines of its output say why.",
        signal.SIGBUS: "Often /dev/shm is full: fewer loader processes, or more shared memory.",
        signal.SIGTERM: "A user or a program asked it to end.",
    }
    advice = known.get(number, "The last lines of its output may say why.")
    return Why(Cause.SIGNAL, f"Its program was ended by {name}.{_last_minute(end)}", advice)


def _last_minute(end: Ending) -> str:
    return (
        ""
        if end.last_util is None
        else f" In its last minute its GPUs were at work for {end.last_util:.0f} % of the time."
    )


def _code(end: Ending) -> str:
    return f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"


def _hms(seconds: float) -> str:
    """The seconds as ``--time`` takes them."""
    minutes = max(round(seconds / 60), 1)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00" if days else f"{rest // 60}:{rest % 60:02}:00"
