"""Plans of the profiling partition (rows L2-L7): which jobs are profiled, for how long, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter

from msgspec import Struct

from lucid.config.policy import ProfilingSettings
from lucid.core.decision import Action, Decision, EndProfiling, Hold, Keep, PartitionPlan, Start
from lucid.core.job import Job, Pending, Running, Stage, may_restart
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus
from lucid.core.reason import Reason
from lucid.core.reasons.profiling import (
    CarryNode,
    HomeHasRoom,
    HomeWaits,
    NobodyWaits,
    ProfilerPressure,
    ProfileTime,
    ProfilingFits,
    ProfilingTaken,
    SkipsProfiling,
    WaitedForProfiling,
)
from lucid.core.reasons.queue import BehindHead, FreeGpus
from lucid.core.snapshot import ArrivalForecast, Partition
from lucid.core.times import ROUNDING

_BURST_WAIT_S = 80.0
"""A burst is a profiling queue that would take longer than this at the usual T_prof."""
_LEAST_T_PROF_S = 40.0
"""T_prof in the worst of bursts: what a sampler needs at the least."""
_GPUS = attrgetter("job.gpus")
_COLD_START = 3.0
"""T_prof is longer by this factor for a job marked 'long cold start'."""


def goes_through_profiling(job: Job, settings: ProfilingSettings) -> bool:
    """Whether a new job is profiled before it may enter its VC. Jobs above N_prof are not, but are measured where
    they run (L2); nor are jobs that hold no GPU, ask for several nodes, or may not be requeued. Where not all jobs
    may be started over (``restarts``) there is no stage: jobs are measured in their VC while they run."""
    if not settings.enabled or settings.restarts != "allowed":
        return False
    profiled = job.gpus > 0 and job.min_nodes <= 1 and job.requeueable
    return profiled and not SkipsProfiling(job.gpus, settings.n_prof)


def t_prof_s(job: Job, settings: ProfilingSettings) -> float:
    """Longest profiling run of this job: T_prof, longer where the user marked a long cold start (L7)."""
    return settings.t_prof_s * (_COLD_START if job.long_cold_start else 1.0)


def measured_after_s(job: Job, settings: ProfilingSettings) -> float:
    """Seconds into a run at which a sampler's readings of this job make a profile."""
    full_s = t_prof_s(job, settings)
    return min(full_s, _LEAST_T_PROF_S) if settings.time_aware and not job.long_cold_start else full_s


def plan_profiling(
    partition: Partition,
    now_s: float,
    settings: ProfilingSettings,
    waiting_at_home: Mapping[str, int],
    room_at_home: Callable[[Job, bool], HomeHasRoom | None] | None = None,
    arrivals: ArrivalForecast | None = None,
    ledger_of: Callable[[Partition, float], Ledger] = Ledger,
) -> PartitionPlan:
    """Start profiling runs fewest GPUs first, and end those that have reached T_prof.

    A job whose time is up is released to its own VC, or carries on in place: where jobs already wait in its VC
    (``waiting_at_home``: how many, by VC), no job waits for profiling nodes, and it runs on one of the nodes set
    aside for that; or where it may not be started over. A job that ended within T_prof is simply gone (L6). Queue
    order: GPU demand ascending, then time of arrival (L4); placement is exclusive and consolidated on one node. A job
    that no profiling node could ever hold, or that has waited too long behind smaller ones, is released unprofiled:
    it will be measured where it runs. In a burst (``_profiling_scale``, by ``arrivals`` too) T_prof and N_prof are
    lower, and a job that cannot start now goes home if ``room_at_home`` says (and notes) that the job could start
    there. With ``home_if_room`` that holds outside of bursts, too, and for a job that could be profiled now, if home
    has GPUs to spare. Nor does a job wait for GPUs that jobs of others than Lucid hold: a job that finds no other
    GPUs goes home. Nodes that sleep are out unless ``wake_nodes`` lets them be woken. ``ledger_of``: gives a ledger
    of a partition at a time, which may be changed."""
    if not settings.wake_nodes:
        partition = _asleep_out(partition)
    decisions: dict[str, Decision] = {}
    actions: list[Action] = []
    waiting = len(partition.pending)
    wake_s = inf
    leaving: list[Running] = []
    scale = _profiling_scale(partition, partition.pending, settings, arrivals or ArrivalForecast())
    shorter = scale.t_prof_s / settings.t_prof_s
    usual_s, long_s = settings.t_prof_s * shorter, settings.t_prof_s * _COLD_START * shorter
    for entry in partition.running:
        if entry.stage is not Stage.PROFILE:
            continue
        limit_s = long_s if entry.job.long_cold_start else usual_s
        if now_s - entry.start_s < limit_s - ROUNDING:
            if entry.start_s + limit_s < wake_s:
                wake_s = entry.start_s + limit_s
            continue
        time_up = ProfileTime(entry.elapsed_s(now_s), limit_s)
        decision: Keep | EndProfiling
        may_requeue = may_restart(entry.job, settings.restarts)
        unwanted = NobodyWaits(waiting)
        carry_nodes = [node.name for node in partition.nodes[: int(settings.carry_on_share * len(partition.nodes))]]
        place = CarryNode(entry.placement[0].node, entry.placement[0].node in carry_nodes)
        home = HomeWaits(entry.job.vc, waiting_at_home.get(entry.job.vc, 0))
        if not may_requeue:
            decision = Keep((time_up, may_requeue))
        elif home and unwanted and place:
            decision = Keep((time_up, home, unwanted, place))
        else:
            decision = EndProfiling((time_up, *[test for test in (home, unwanted, place) if not test]))
            leaving.append(entry)
        decisions[entry.job.id] = decision
        actions.append(Action(entry.job.id, partition.name, decision))
    if waiting:
        ledger = ledger_of(partition, now_s)
        ledger.give_back(leaving)
        taken = ProfilingTaken(_others_gpus(partition))
        is_taken = bool(taken)
        order = _in_order(partition, settings)
        blocker: Job | None = None
        skipping = _skipping(partition, order, now_s, settings)
        for job_id, skips in skipping.items():
            out = ledger.out() if isinstance(skips, ProfilingFits) else None
            release = EndProfiling((skips,) if out is None else (skips, out))
            decisions[job_id] = release
            actions.append(Action(job_id, partition.name, release))
        for pending in order:
            job = pending.job
            if job.id in skipping:
                continue
            if pending.since_s + settings.max_wait_s < wake_s:
                wake_s = pending.since_s + settings.max_wait_s
            node = (
                None
                if blocker is not None
                else ledger.tightest(job.gpus, partial(ledger.host_fits, job=job, gpus_here=job.gpus))
            )
            why: tuple[Reason, ...] = (taken,) if node is None and is_taken else ()
            if (
                not why
                and room_at_home is not None
                and (settings.home_if_room or (scale.borrow and (node is None or job.gpus > scale.n_prof)))
            ):
                # unmeasured it cannot share, so that it goes home only where it need not
                home_room = room_at_home(job, node is not None and not scale.borrow)
                why = (scale.pressure, home_room) if home_room else ()
            if why:
                release = EndProfiling(why)
                decisions[job.id] = release
                actions.append(Action(job.id, partition.name, release))
                continue
            if node is not None:
                placement: tuple[NodeGpus, ...] = (ledger.lowest(node, job.gpus),)
                start = Start(placement, (FreeGpus(job.gpus, ledger.largest, ledger.free, True),))
                ledger.claim(job, placement)
                decisions[job.id] = start
                actions.append(Action(job.id, partition.name, start))
                wake_s = min(wake_s, now_s + (long_s if job.long_cold_start else usual_s))
                continue
            if blocker is None:
                blocker = job
                decisions[job.id] = Hold((FreeGpus(job.gpus, ledger.largest, ledger.free, False),))
                behind = Hold((BehindHead(job.id),))
            else:
                decisions[job.id] = behind
    return PartitionPlan(decisions, tuple(actions), wake_s if wake_s < inf else None)


def _asleep_out(partition: Partition) -> Partition:
    asleep = [node.available and node.boot_s > 0 and node.boots_since_s is None for node in partition.nodes]
    if True not in asleep:
        return partition
    nodes = (
        replace(n, available=False, out="asleep") if a else n for n, a in zip(partition.nodes, asleep, strict=True)
    )
    return replace(partition, nodes=tuple(nodes))


def _others_gpus(partition: Partition) -> int:
    """GPUs of the profiling nodes that are held by jobs whose home they are: an administrator's, or jobs that came
    past Lucid."""
    others = [entry for entry in partition.running if entry.job.vc == partition.name]
    return sum(part.mask.bit_count() for entry in others for part in entry.placement)


def _in_order(partition: Partition, settings: ProfilingSettings) -> list[Pending]:
    """Waiting jobs in order: fewest GPUs first; or the users in turn, users with profiling runs last, each user's
    fewest GPUs first."""
    smallest = sorted(partition.pending, key=_GPUS)
    if not settings.users_in_turn:
        return smallest
    turns = Counter(entry.job.user for entry in partition.running if entry.stage is Stage.PROFILE)
    turn: dict[str, int] = {}
    for entry in smallest:
        turn[entry.job.id] = turns[entry.job.user]
        turns[entry.job.user] += 1
    return sorted(smallest, key=lambda e: turn[e.job.id])


def _skipping(
    partition: Partition, order: Sequence[Pending], now_s: float, settings: ProfilingSettings
) -> dict[str, ProfilingFits | WaitedForProfiling]:
    """By id, why pending jobs should not be profiled after all."""
    known: dict[tuple[int, int, int, int], bool] = {}
    found: dict[str, ProfilingFits | WaitedForProfiling] = {}
    for pending in order:
        job = pending.job
        shape = (job.gpus, job.cpus, job.mem_mib, job.min_nodes)
        if shape not in known:
            known[shape] = job.min_nodes <= 1 and any(
                node.available
                and node.gpus >= job.gpus > 0
                and (not node.cpus or job.cpus <= node.cpus_left)
                and (not node.mem_mib or job.mem_mib <= node.mem_left_mib)
                for node in partition.nodes
            )
        if not known[shape]:
            found[job.id] = ProfilingFits(job.gpus, False)
        elif now_s - pending.since_s >= settings.max_wait_s - 1:
            waited = WaitedForProfiling(now_s - pending.since_s, settings.max_wait_s)
            if waited:
                found[job.id] = waited
    return found


# Time-aware profiling (acceptance row L5): T_prof, N_prof and capacity follow the profiler's queue, and what is
# forecast to join it.
#
# In a burst, jobs that their own VC could start at once are sent there and measured where they run: that is the
# paper's 'borrow idle VC nodes', without a node ever changing hands, so that no job has to move when they are
# wanted back (docs/decisions/0007).


class _ProfilingScale(Struct, frozen=True):
    """The present scale of profiling. ``borrow``: jobs may be sent home to be measured there."""

    t_prof_s: float
    n_prof: int
    borrow: bool
    pressure: ProfilerPressure


def _profiling_scale(
    partition: Partition, waiting: Sequence[Pending], settings: ProfilingSettings, arrivals: ArrivalForecast
) -> _ProfilingScale:
    """T_prof and N_prof for the present queue, and the forecast one.

    The pressure is how long the queue would take at the usual T_prof if GPUs could be filled without gaps: the sum of
    waiting GPUs x T_prof over the GPUs there are. To the waiting GPUs are added those that ``arrivals`` expects
    within one T_prof, so that a forecast alone makes a burst where more is to come than the nodes can measure at the
    usual T_prof, if ``_BURST_WAIT_S`` is one T_prof. Up to that nothing changes. Beyond it T_prof shrinks
    in proportion, never under ``_LEAST_T_PROF_S``, and N_prof halves with each doubling, never under 1."""
    gpus = sum([node.gpus for node in partition.nodes if node.available])
    per_hour = arrivals.profiled_per_hour if settings.time_aware else 0.0
    wanted = sum(map(_GPUS, waiting)) + per_hour * settings.t_prof_s / 3600.0
    pressure_s = wanted * settings.t_prof_s / gpus if gpus else 0.0
    pressure = ProfilerPressure(pressure_s, _BURST_WAIT_S, per_hour, arrivals.by if per_hour else "")
    if not settings.time_aware or not pressure:
        return _ProfilingScale(settings.t_prof_s, settings.n_prof, False, pressure)
    times = pressure_s / _BURST_WAIT_S
    least_s = min(_LEAST_T_PROF_S, settings.t_prof_s)
    halvings = int(times).bit_length() - 1  # 2: one, 4: two, 8: three ...
    return _ProfilingScale(
        max(least_s, settings.t_prof_s / times),
        max(min(settings.n_prof, 1), settings.n_prof >> halvings),
        True,
        pressure,
    )
