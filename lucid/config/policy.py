"""Settings of policies: what is profiled, packed, reserved, promised; overheads of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from lucid.config.section import Section, defaults, fixed, simulated


class ProfilingSettings(Section):
    """The profiling stage (acceptance rows L2, L4, L6, L7)."""

    enabled: bool = True
    """Profile new jobs at all. Set on purpose, it also holds for a trace without GPU readings, for which a replay
    otherwise sets no node aside."""
    restarts: Literal["never", "asked", "allowed"] = "allowed"
    """Whose jobs Lucid may start over after a profiling run, or to part a pair: nobody's, those of users who asked
    for it (``--requeue``, or ``lucid:restart`` in the comment), or everybody's who did not forbid it. Unless it is
    ``allowed``, jobs start in their own VC and are measured while they run, and the profiling nodes take in those for
    whom the VC has no place. lucidd's default is ``asked``."""
    t_prof_s: float = Field(80.0, gt=0)
    """T_prof: longest profiling run, s. The published setting for a Philly-like cluster."""
    n_prof: int = Field(8, ge=0)
    """N_prof: jobs above this many GPUs skip profiling and are measured in place."""
    max_wait_s: float = Field(14400.0, ge=0)
    """A job that waited this long for a profiling node goes to its VC unprofiled."""
    users_in_turn: bool = fixed(False)
    """Profile the users' jobs in turn, each user's smallest first, instead of the smallest of all: nobody's new
    programs wait for many of another's. lucidd always does."""
    wake_nodes: bool = False
    """Profiling nodes that sleep may be woken for profiling runs. Otherwise new jobs go home unprofiled while no
    profiling node is awake."""
    home_if_room: bool = True
    """A job goes home where its VC could start it at once, to be measured there: at once where a quarter
    of the VC's GPUs stay idle, else if it cannot be profiled at once."""
    carry_on_share: float = Field(0.5, ge=0, le=1)
    """On this share of the profiling nodes (rounded down) profiled jobs may carry on in place."""
    overflow_most_s: float = fixed(21600.0, ge=0)
    """Where jobs are measured in place: jobs expected to take longer than this wait for their own VC, instead of
    starting on a profiling node."""
    time_aware: bool = False
    """In a burst shorten T_prof, lower N_prof, and send jobs home to be measured there where GPUs are idle (L5)."""
    burst_wait_s: float = fixed(80.0, gt=0)
    """A burst is a profiling queue that would take longer than this at the usual T_prof."""
    least_t_prof_s: float = fixed(40.0, gt=0)
    """T_prof in the worst of bursts: what a sampler needs at the least."""


class PackingSettings(Section):
    """Packing pairs of jobs on the same GPUs (rows L11-L19)."""

    gss: int = Field(2, ge=0, le=4)
    """GPU sharing capacity: the most that the share scores of a pair may add up to; 0 turns sharing off."""
    partner: Literal["first", "best"] = fixed("best")
    """Take the first partner that passes every rule, or the one with the best expected pair speed."""
    least_pair_speed: float = Field(0.85, ge=0, le=1)
    """Refuse pairs in which either job is expected to run slower than this (1 = as fast as alone); the paper
    counts a pair as free of interference from 0.85."""
    waiting_pair_speed: float | None = Field(0.5, ge=0, le=1)
    """The same, lower, for a job that would otherwise wait: it takes a slower partner rather than none, if it has
    waited long enough for that (``waiting_pair_work``). Unset, and where VCs lend: ``least_pair_speed`` holds for it,
    too."""
    waiting_pair_work: float = fixed(1.1, ge=0, le=2)
    """A job that would otherwise wait takes such a partner at once where the speeds of both add up to this: the two
    then do more than one after the other. Else it must be expected to end before its partner, and waits before for
    what is missing of it, times twice as long as it would run there. 0: neither is asked."""
    part_below_speed: float = fixed(0.5, ge=0, le=1)
    """Part a pair in which a job was measured to run slower than this: below 0.5 each, two jobs would both be done
    sooner one after the other. Parting costs the leaver its progress, so it lies well below least_pair_speed."""
    least_partner_remaining_s: float = Field(300.0, ge=0)
    """Pairs are avoided where the partner is expected to end within this time (L19)."""
    priority_ratio: float | None = fixed(None, gt=0)
    """A guest's priority value may be at most this many times its partner's (L30); unset: no such rule."""
    same_user_only: bool = simulated(False)
    """Only jobs of the same user share GPUs: two users' programs under one MPS daemon can hurt each other.
    For lucidd daemon.share_across_users says it."""
    mps: bool | None = fixed(None)
    """Say in the decision by what a pair will share: MPS is there for jobs of one user, or it is not. Unset: nothing
    is said. For lucidd daemon.mps says it."""
    when_calm: bool = False
    """Make pairs in a calm VC, too. Otherwise a job shares only if it would wait, where next to no job has waited
    for a day, and for as long as the job is expected to run (L17)."""
    unparted_harm: float = fixed(0.25, ge=0, le=1)
    """Where neither job of a pair may be started over, so that a bad pair cannot be parted: the most of its speed
    that either may lose at worst, which is taken to be 0.15 below the expected one. 0.25 makes such pairs from 0.90
    on."""


class ReservationSettings(Section):
    """Reserving nodes for large jobs that would starve behind small ones."""

    enabled: bool = True
    """Keep nodes for large jobs at all."""
    above_gpus: int | None = fixed(None, ge=0)
    """Jobs above this many GPUs may hold a reservation; unset: those larger than one node."""
    after_wait_s: float = fixed(0.0, ge=0)
    """A reservation is made once the job has waited this long."""
    oldest_after_s: float = fixed(172800.0, ge=0)
    """A large job that has waited this long goes before all other large jobs, the oldest first. Before that, the one
    whose wait is the greatest multiple of its estimate goes first, outside pools. 0: always the oldest. Where most
    jobs that wait are large, any job that has waited this long goes first."""
    patience_s: float = fixed(43200.0, gt=0)
    """Another job may start on kept nodes if its estimate ends before they are needed; once the job that they are
    kept for has waited for n times this long, if n times its estimate does. Where the other jobs of the VC have
    waited longer on average, their wait counts instead."""
    most_share: float = fixed(0.5, ge=0, le=1)
    """While jobs as large hold GPUs, and would with the holder have more than this share of the VC, nothing is kept
    for it if a smaller job has waited at least half as long. 1: that never matters."""


class FairnessSettings(Section):
    """What Lucid's own order owes to those whom it passes over."""

    beyond_plain_s: float | None = Field(None, ge=0)
    """The starvation bound: no job waits for more than this beyond when plain Slurm order (``policy.backfill``) would
    have started it. 0: no such promise. Unset: lucidd promises 12 h (43200), a plain replay nothing."""
    keep_from: float = fixed(0.5, ge=0, le=1)
    """From this share of the bound on a job goes before all others, and nodes are kept for it."""
    estimates: Literal["measured", "always", "never"] = "measured"
    """Whether jobs are ordered by estimates. ``measured``: while these put short jobs before long ones, judged by the
    jobs that ended last; otherwise as plain Slurm orders and backfills (``policy.backfill``). ``never``: always as
    plain Slurm does."""
    share_bound: float = Field(1.0, ge=1)
    """Fair-share: a priority value counts at most this many times as much for an account far above its share, and as
    many times less for one that has used nothing; 1: no fair-share in Lucid's own order."""
    half_life_s: float = fixed(604800.0, gt=0)
    """Usage counts half after this long (PriorityDecayHalfLife)."""
    shares: dict[str, float] = simulated({})
    """Shares by account, or by user where jobs have none; 1 each unless given."""


class LendingSettings(Section):
    """What VCs may have of each other's GPUs. lucidd also needs ``daemon.pool``."""

    mode: Literal["off", "quota", "borrow"] = "off"
    """``off``: each VC has its own nodes. ``quota``: the VCs have their nodes in common, and each a quota of GPUs: as
    many as its own nodes have, or on Slurm as ``daemon.pool`` says. ``borrow``: what no VC wants of its own, jobs of
    the others have beyond their quotas."""
    turn_s: float | None = Field(14400.0, ge=0)
    """A job with which its VC stays within its quota goes before all others of the pool once it has waited for so
    long, and nodes are kept for it. Unset: never."""


class BackfillSettings(Section):
    """Plain Slurm order, as the policy ``backfill`` replays it. Weights are those of Slurm's multifactor priority;
    with all at 0, Slurm's own default, jobs go in order of submission."""

    weight_age: float = Field(0.0, ge=0)
    """PriorityWeightAge: of the time since submission, as a share of ``max_age_s``."""
    weight_size: float = Field(0.0, ge=0)
    """PriorityWeightJobSize: of the job's share of the partition's GPUs (larger first)."""
    weight_fair_share: float = Field(0.0, ge=0)
    """PriorityWeightFairshare: of the account's fair-share factor."""
    max_age_s: float = Field(604800.0, gt=0)
    """PriorityMaxAge."""
    calc_period_s: float = fixed(300.0, gt=0)
    """PriorityCalcPeriod: how often priorities are worked out."""
    depth: int = Field(100, ge=1)
    """Of how many jobs that cannot start the expected start is kept (bf_max_job_test); 1 is EASY backfilling."""
    limit_factor: float = fixed(2.0, gt=0)
    """Where the trace has no time limit: the limit is this many times the estimate."""
    least_limit_s: float = fixed(600.0, gt=0)
    """Where the trace has no time limit: the limit is at least this long."""


class TiresiasSettings(Section):
    """Discretised 2D-LAS, two queues."""

    threshold_gpu_s: float = Field(18000.0, gt=0)
    """A job that has had so many GPU-seconds moves to the second queue."""
    interval_s: float = fixed(60.0, gt=0)
    """Seconds between rounds."""
    placement: Literal["consolidated", "emptiest"] = fixed("consolidated")
    """On as few nodes as possible or not at all; or on the emptiest nodes, however many that takes."""


class PolluxSettings(Section):
    """Pollux (rows P20-P31)."""

    interval_s: float = Field(60.0, gt=0)
    """Seconds between rounds."""
    p: float = -1.0
    """Fairness: the power of the mean of speedups; 1 is the mean, ever more negative looks at the worst job."""
    restart_s: float = fixed(30.0, ge=0)
    """What Pollux assumes that a restart costs."""
    avoid_interference: bool = fixed(True)
    """At most one job on several nodes uses a node."""
    population: int = fixed(100, ge=4)
    """Allocations that the genetic search holds at a time."""
    generations: int = fixed(100, ge=0)
    """Most generations of a search."""
    patience: int = fixed(50, ge=1)
    """The search ends after so many generations without a better allocation."""
    greedy_seeds: bool = fixed(True)
    """Begin the search also with greedy allocations; the published one does not."""
    seed: int = fixed(0, ge=0)
    """Seed of the search's random numbers."""


class OptimusSettings(Section):
    """Optimus (rows O1-O18)."""

    interval_s: float = Field(600.0, gt=0)
    """Seconds between rounds."""
    epochs_left: Literal["true", "measured"] = fixed("true")
    """What ``optimus`` (not ``optimus-fitted``) knows of the epochs that a job has left: the truth; or, as in the
    evaluation by Pollux's authors, what a measured run took after the present epoch, so next to nothing in the
    last."""
    seed: int = fixed(0, ge=0)
    """Seed of the random choice by which unknown jobs are tried out."""


class MuriSettings(Section):
    """Interleaved groups (rows M3-M22)."""

    group_size: int | None = fixed(None, ge=1, le=4)
    """Most jobs in a group; unset: as many as there are resources (storage, CPU, GPU, network)."""
    ordering: Literal["best", "worst"] = fixed("best")
    """In which order the members of a group enter a round; "worst" is an ablation."""
    matching: Literal["blossom", "by_priority"] = fixed("blossom")
    """How jobs are grouped; "by_priority", neighbours in the queue, is the ablation without matching."""
    unpack: bool = fixed(True)
    """Split groups that are slower together than one after the other."""
    overheads: bool = fixed(True)
    """Reckon with the overheads of interleaving that Muri's authors measured (a factor by group size); lucidd with
    those of taking turns here, corrected by what members report."""
    patience_s: float = fixed(3600.0, ge=0)
    """lucidd: once a job has waited so long, s, no other job starts or joins a group before it has started."""


class OverheadSettings(Section):
    """What changes of state cost a job, in seconds of its run time. The preemption figures are those the
    published simulator charges (after Tiresias' measured 62 s per preemption)."""

    preempt_small_s: float = fixed(40.0, ge=0)
    """Checkpoint and restart of a job of at most 8 GPUs."""
    preempt_large_s: float = fixed(60.0, ge=0)
    """Checkpoint and restart of a job of more than 8 GPUs."""
    requeue_s: float = Field(10.0, ge=0)
    """Slurm's COMPLETING state and a second start-up, for a job that starts over."""
    start_s: float = Field(0.0, ge=0)
    """From the decision to start a job to the first second of its work, which holds its GPUs (``--as-live`` only)."""
    rescale_s: float = Field(30.0, ge=0)
    """Checkpoint and restart of an elastic job, on a resize or after a preemption. Pollux's simulator charges
    30 s (15-120 s were observed)."""
    elastic_start_s: float = fixed(30.0, ge=0)
    """First start of an elastic job."""


class PolicySettings(Section):
    """The settings of policies."""

    profiling: ProfilingSettings = defaults(ProfilingSettings)
    packing: PackingSettings = defaults(PackingSettings)
    reservation: ReservationSettings = defaults(ReservationSettings)
    remainder_on_emptiest: bool = fixed(False)
    """Where a job of more than one node leaves a remainder, put it on the emptiest node (as the published
    simulator does) instead of the tightest that fits."""
    fairness: FairnessSettings = defaults(FairnessSettings)
    lending: LendingSettings = defaults(LendingSettings)
    backfill: BackfillSettings = defaults(BackfillSettings)
    tiresias: TiresiasSettings = defaults(TiresiasSettings, policy="tiresias")
    muri: MuriSettings = defaults(MuriSettings, policy="muri")
    pollux: PolluxSettings = defaults(PolluxSettings, policy="pollux")
    optimus: OptimusSettings = defaults(OptimusSettings, policy="optimus")
    restart_overhead_s: float = fixed(40.0, ge=0)
    """What srtf assumes that one preemption costs."""


LIVE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "profiling": {"restarts": "asked", "users_in_turn": True},
    "fairness": {"beyond_plain_s": 43200.0},
}
"""What lucidd does where the file says nothing, and a replay as live with it; a plain replay does as published."""


def with_defaults(settings: PolicySettings, defaults: Mapping[str, Mapping[str, Any]]) -> PolicySettings:
    """The settings with other defaults, by section and key; what was set on purpose stays as it is."""
    sections: dict[str, BaseModel] = {}
    for name, values in defaults.items():
        section: BaseModel = getattr(settings, name)
        fresh = {key: value for key, value in values.items() if key not in section.model_fields_set}
        sections[name] = section.model_copy(update=fresh)
    return settings.model_copy(update=sections)
