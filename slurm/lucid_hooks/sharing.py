"""A job that may share its GPUs begins or ends: see to its MPS daemon, or say why it will be time-slicing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lucid_hooks.control import Control
from lucid_hooks.plan import Limits, exports
from lucid_hooks.processes import Deadline, run_as
from lucid_hooks.state import Busy, GpuSet, State, key_of, overlap

__all__ = ["Job", "begin", "check", "end"]


@dataclass(frozen=True)
class Job:
    """A job that may share: on these GPUs, by UUID."""

    id: str
    uid: int
    gpus: Sequence[str]
    limits: Limits


def _mig(job: Job, path: str, deadline: Deadline) -> str:
    """Why these GPUs cannot be shared under MPS at all; empty where they can."""
    if any(gpu.startswith("MIG-") for gpu in job.gpus):
        return "MIG: an instance is not shared by pairs"
    words = ["nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"]
    for line in run_as(job.uid, words, {"PATH": path}, deadline.part(3.0)).text.splitlines():
        uuid, _, mode = line.partition(",")
        if mode.strip() == "Enabled" and uuid.strip() in job.gpus:
            return f"MIG: {uuid.strip()} is in MIG mode"
    return ""


def begin(state: State, control: Control, job: Job, path: str, deadline: Deadline) -> list[str]:
    """Prolog. Returns lines to print: ``sharing=mps``, ``mps-v3`` or ``time-slicing``, and what goes with it."""
    with state.node_lock(deadline):
        state.forget(job.id)  # a requeued job is judged anew; where it was before, its epilog may have been lost
        for other in state.sets():
            if other.key != key_of(job.gpus):
                other.leave(job.id)
    reason = _mig(job, path, deadline)
    if not reason and control.program is None:
        reason = "no MPS: nvidia-cuda-mps-control is not installed"
    joined: GpuSet | None = None
    for _ in range(3):
        if reason or joined is not None:
            break
        with state.node_lock(deadline):
            reason, leftovers = _in_the_way(state, job)
            if not reason and not leftovers:
                joined = state.join(job.gpus, job.uid, job.id)
        for left in leftovers:
            _clear_away(state, control, left, deadline)
    if joined is None:
        return _slice(state, job, reason or "a daemon that an earlier job left on these GPUs does not end")
    try:
        with state.set_lock(joined.key, deadline):
            reason = _under_mps(state, control, joined, job, deadline)
            if not reason:
                return [f"sharing=mps{'-v3' if joined.protocol == 3 else ''}", f"pipe={joined.pipe}"]
            with state.node_lock(deadline):
                joined.leave(job.id)
                alone = not joined.clients
            if alone:
                _clear(state, control, joined, deadline)
    except Busy:
        reason = "the MPS daemon of these GPUs takes too long for another job"
        joined.leave(job.id)
    return _slice(state, job, reason)


def _slice(state: State, job: Job, reason: str) -> list[str]:
    state.slice(job.id, job.gpus, reason)
    return ["sharing=time-slicing", f"reason={reason}"]


def _in_the_way(state: State, job: Job) -> tuple[str, list[GpuSet]]:
    """Why the job cannot have a daemon of these GPUs; else sets that nobody uses any more and that have to go first
    (their epilog was cut short)."""
    leftovers = []
    for other in state.sets():
        if not overlap(other.gpus, job.gpus):
            continue
        same = other.key == key_of(job.gpus)
        clients = other.clients
        if same and (other.uid == job.uid) and clients:
            continue
        if not clients:
            leftovers.append(other)
        elif same:
            return (
                f"cross-user: the daemon of these GPUs is user {other.uid}'s, and MPS serves one user at a time",
                [],
            )
        else:
            return f"another daemon serves one of these GPUs, for job {' '.join(clients)}", []
    return "", leftovers


def _under_mps(state: State, control: Control, joined: GpuSet, job: Job, deadline: Deadline) -> str:
    """Bring the job under the set's daemon, under the set's lock. Returns why it was not to be, or nothing."""
    with state.node_lock(deadline):
        partner = next((name for name, gpus in state.sliced().items() if overlap(gpus, job.gpus)), None)
        cut = joined.half_begun(job.id)
    if partner is not None or cut:
        return f"partner {partner or cut[0]} began without MPS"
    _mend(state, control, joined, job, deadline, job.id)
    if not control.answers(joined, deadline):
        if not control.finish(joined, deadline):  # one that is there and does not answer
            return "a daemon on these GPUs does not end"
        why = control.launch(joined, job.id, job.limits, deadline)
        if why:
            return f"the MPS daemon did not start: {why}"
    if not control.admit(joined, job.id, job.limits, deadline):
        return "the MPS daemon did not let the job in"
    version = joined.protocol
    with state.node_lock(deadline):
        lines = exports(version, joined.gpus, str(joined.pipe), str(joined.log), job.id, job.limits)
        state.tell(job.id, lines)
        state.shared(job.id, version, job.limits)
        joined.mark(job.id, ready=True)
    return ""


def _mend(state: State, control: Control, of: GpuSet, job: Job | None, deadline: Deadline, seen_by: str) -> list[str]:
    """A client's fatal fault has broken the server: every client on these GPUs has been hit, and no new one is let
    in until all are gone. Say whose jobs they were, end the server and begin anew. Returns what to print."""
    if of.daemon is None:
        return []
    server = control.broken(of, deadline)
    if not server:
        return []
    told = _told_of_fault(state, of, server, deadline, seen_by)
    control.drop(of, server, deadline)
    return [told, *_relaunch(state, control, of, job, deadline)]


def _told_of_fault(state: State, of: GpuSet, server: str, deadline: Deadline, seen_by: str) -> str:
    with state.node_lock(deadline):
        clients = of.clients
        state.fault(of.gpus, server, clients, seen_by)
    return f"fault=server {server} of GPUs {','.join(of.gpus)} was broken; hit: {' '.join(clients)}"


def _relaunch(state: State, control: Control, of: GpuSet, job: Job | None, deadline: Deadline) -> list[str]:
    """A new daemon for clients that stay. Under version 3 each of them gets the namespace again that it was told."""
    stay = [name for name in of.clients if job is None or name != job.id]
    first = job.id if job is not None else stay[0] if stay else "none"
    limits = {name: state.limits_of(name) for name in stay}
    why = "" if control.finish(of, deadline) else "the old one does not end"
    why = why or control.launch(of, first, job.limits if job is not None else limits.get(first, Limits()), deadline)
    if why:
        return [f"fault=no new daemon came up for GPUs {','.join(of.gpus)}: {why}"]
    for name in stay:
        control.admit(of, name, limits[name], deadline)
    return []


def _clear(state: State, control: Control, of: GpuSet, deadline: Deadline) -> None:
    """End the daemon of a set without clients, under the set's lock, and forget the set."""
    if not control.finish(of, deadline):
        return
    with state.node_lock(deadline):
        if not of.clients:
            state.remove(of)


def _clear_away(state: State, control: Control, of: GpuSet, deadline: Deadline) -> None:
    try:
        with state.set_lock(of.key, deadline):
            with state.node_lock(deadline):
                unused = of.path.is_dir() and not of.clients
            if unused:
                _clear(state, control, of, deadline)
    except Busy:
        pass


def end(state: State, control: Control, job: str, deadline: Deadline) -> list[str]:
    """Epilog: the last job of a GPU set ends its daemon. May come twice, and for a job that never had one."""
    with state.node_lock(deadline):
        state.forget(job)
        mine = [each for each in state.sets() if job in each.clients]
    told: list[str] = []
    for each in mine:
        try:
            with state.set_lock(each.key, deadline):
                server = "" if each.daemon is None else control.broken(each, deadline)
                if server:
                    told.append(_told_of_fault(state, each, server, deadline, job))
                    control.drop(each, server, deadline)
                with state.node_lock(deadline):
                    each.leave(job)
                    stay = each.clients
                if not stay:
                    _clear(state, control, each, deadline)
                elif server:
                    told += _relaunch(state, control, each, None, deadline)
                else:
                    control.dismiss(each, job, deadline)
        except Busy:
            each.leave(job)  # the next start, stop or check on these GPUs ends the daemon
    state.empty_trash(deadline)
    return told


def check(state: State, control: Control, deadline: Deadline) -> list[str]:
    """A timer, or an administrator: broken servers are reported and mended, a daemon that died while its jobs run is
    started again for their next processes, and one that nobody uses any more is ended."""
    told: list[str] = []
    for each in state.sets():
        try:
            with state.set_lock(each.key, deadline):
                clients = each.clients
                if not clients:
                    _clear(state, control, each, deadline)
                elif each.daemon is None:
                    told.append(f"fault=the daemon of GPUs {','.join(each.gpus)} had died; jobs {' '.join(clients)}")
                    told += _relaunch(state, control, each, None, deadline)
                else:
                    told += _mend(state, control, each, None, deadline, "check")
        except Busy:
            told.append(f"fault=GPUs {','.join(each.gpus)} are being seen to by another command for too long")
    state.empty_trash(deadline)
    return told
