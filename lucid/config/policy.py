"""Settings of policies: what is profiled, packed, reserved, promised; overheads of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from lucid.config.section import STUDY, NotNegative, Positive, Section, Share


class ProfilingSettings(Section, frozen=True, kw_only=True):
    """The profiling stage (acceptance rows L2, L4, L6, L7)."""

    enabled: bool = True
    """Profile new jobs at all. Set on purpose, it also holds for a trace without GPU readings, for which a replay
    otherwise sets no node aside."""
    restarts: Literal["never", "asked", "allowed"] = "allowed"
    """Whose jobs Lucid may start over after a profiling run, or to part a pair: nobody's, those of users who asked
    for it (``--requeue``, or ``lucid:restart`` in the comment), or everybody's who did not forbid it. Unless it is
    ``allowed``, jobs start in their own VC and are measured while they run, and the profiling nodes take in those for
    whom the VC has no place. lucidd's default is ``asked``."""
    t_prof_s: Positive = 80.0
    """T_prof: longest profiling run, s. The published setting for a Philly-like cluster."""
    n_prof: Annotated[int, Meta(ge=0)] = 8
    """N_prof: jobs above this many GPUs skip profiling and are measured in place."""
    max_wait_s: NotNegative = 14400.0
    """A job that waited this long for a profiling node goes to its VC unprofiled."""
    users_in_turn: Annotated[bool, STUDY] = False
    """Profile the users' jobs in turn, each user's smallest first, instead of the smallest of all: nobody's new
    programs wait for many of another's. lucidd always does."""
    wake_nodes: bool = False
    """Profiling nodes that sleep may be woken for profiling runs. Otherwise new jobs go home unprofiled while no
    profiling node is awake."""
    home_if_room: bool = True
    """A job goes home where its VC could start it at once, to be measured there: at once where a quarter
    of the VC's GPUs stay idle, else if it cannot be profiled at once."""
    carry_on_share: Share = 0.5
    """On this share of the profiling nodes (rounded down) profiled jobs may carry on in place."""
    time_aware: bool = False
    """In a burst shorten T_prof, lower N_prof, and send jobs home to be measured there where GPUs are idle (L5)."""


class PackingSettings(Section, frozen=True, kw_only=True):
    """Packing pairs of jobs on the same GPUs (rows L11-L19)."""

    gss: Annotated[int, Meta(ge=0, le=4)] = 2
    """GPU sharing capacity: the most that the share scores of a pair may add up to; 0 turns sharing off."""
    partner: Annotated[Literal["first", "best"], STUDY] = "best"
    """Take the first partner that passes every rule, or the one with the best expected pair speed."""
    least_pair_speed: Share = 0.85
    """Refuse pairs in which either job is expected to run slower than this (1 = as fast as alone); the paper
    counts a pair as free of interference from 0.85."""
    waiting_pair_speed: Share | None = 0.5
    """The same, lower, for a job that would otherwise wait: it takes a slower partner rather than none, if it has
    waited long enough for that. Unset, and where VCs lend: ``least_pair_speed`` holds for it,
    too."""
    least_partner_remaining_s: NotNegative = 300.0
    """Pairs are avoided where the partner is expected to end within this time (L19)."""
    priority_ratio: Annotated[Positive | None, STUDY] = None
    """A guest's priority value may be at most this many times its partner's (L30); unset: no such rule."""
    same_user_only: bool = False
    """Only jobs of the same user share GPUs: two users' programs under one MPS daemon can hurt each other.
    For lucidd daemon.share_across_users says it."""
    mps: Annotated[bool | None, STUDY] = None
    """Say in the decision by what a pair will share: MPS is there for jobs of one user, or it is not. Unset: nothing
    is said. For lucidd daemon.mps says it."""
    when_calm: bool = False
    """Make pairs in a calm VC, too. Otherwise a job shares only if it would wait, where next to no job has waited
    for a day, and for as long as the job is expected to run (L17)."""
    unparted_harm: Annotated[Share, STUDY] = 0.25
    """Where neither job of a pair may be started over, so that a bad pair cannot be parted: the most of its speed
    that either may lose at worst, which is taken to be 0.15 below the expected one. 0.25 makes such pairs from 0.90
    on."""


class ReservationSettings(Section, frozen=True, kw_only=True):
    """Reserving nodes for large jobs that would starve behind small ones."""

    enabled: bool = True
    """Keep nodes for large jobs at all."""
    most_share: Annotated[Share, STUDY] = 0.5
    """While jobs as large hold GPUs, and would with the holder have more than this share of the VC, nothing is kept
    for it if a smaller job has waited at least half as long. 1: that never matters."""


class FairnessSettings(Section, frozen=True, kw_only=True):
    """What Lucid's own order owes to those whom it passes over."""

    beyond_plain_s: NotNegative | None = None
    """The starvation bound: no job waits for more than this beyond when plain Slurm order (``policy.backfill``) would
    have started it. 0: no such promise. Unset: lucidd promises 12 h (43200), a plain replay nothing."""
    keep_from: Annotated[Share, STUDY] = 0.5
    """From this share of the bound on a job goes before all others, and nodes are kept for it."""
    estimates: Literal["measured", "always", "never"] = "measured"
    """Whether jobs are ordered by estimates. ``measured``: while these put short jobs before long ones, judged by the
    jobs that ended last; otherwise as plain Slurm orders and backfills (``policy.backfill``). ``never``: always as
    plain Slurm does."""
    share_bound: Annotated[float, Meta(ge=1)] = 1.0
    """Fair-share: a priority value counts at most this many times as much for an account far above its share, and as
    many times less for one that has used nothing; 1: no fair-share in Lucid's own order."""
    shares: dict[str, float] = field(default_factory=dict)
    """Shares by account, or by user where jobs have none; 1 each unless given."""


class LendingSettings(Section, frozen=True, kw_only=True):
    """What VCs may have of each other's GPUs. lucidd also needs ``daemon.pool``."""

    mode: Literal["off", "quota", "borrow"] = "off"
    """``off``: each VC has its own nodes. ``quota``: the VCs have their nodes in common, and each a quota of GPUs: as
    many as its own nodes have, or on Slurm as ``daemon.pool`` says. ``borrow``: what no VC wants of its own, jobs of
    the others have beyond their quotas."""
    turn_s: NotNegative | None = 14400.0
    """A job with which its VC stays within its quota goes before all others of the pool once it has waited for so
    long, and nodes are kept for it. Unset: never."""


class BackfillSettings(Section, frozen=True, kw_only=True):
    """Plain Slurm order, as the policy ``backfill`` replays it. Weights are those of Slurm's multifactor priority;
    with all at 0, Slurm's own default, jobs go in order of submission."""

    weight_age: NotNegative = 0.0
    """PriorityWeightAge: of the time since submission, as a share of ``max_age_s``."""
    weight_size: NotNegative = 0.0
    """PriorityWeightJobSize: of the job's share of the partition's GPUs (larger first)."""
    weight_fair_share: NotNegative = 0.0
    """PriorityWeightFairshare: of the account's fair-share factor."""
    max_age_s: Positive = 604800.0
    """PriorityMaxAge."""
    depth: Annotated[int, Meta(ge=1)] = 100
    """Of how many jobs that cannot start the expected start is kept (bf_max_job_test); 1 is EASY backfilling."""
    limit_factor: Annotated[Positive, STUDY] = 2.0
    """Where the trace has no time limit: the limit is this many times the estimate."""
    least_limit_s: Annotated[Positive, STUDY] = 600.0
    """Where the trace has no time limit: the limit is at least this long."""


class TiresiasSettings(Section, frozen=True, kw_only=True):
    """Discretised 2D-LAS, two queues."""

    threshold_gpu_s: Positive = 18000.0
    """A job that has had so many GPU-seconds moves to the second queue."""
    placement: Annotated[Literal["consolidated", "emptiest"], STUDY] = "consolidated"
    """On as few nodes as possible or not at all; or on the emptiest nodes, however many that takes."""


class PolluxSettings(Section, frozen=True, kw_only=True):
    """Pollux (rows P20-P31)."""

    interval_s: Positive = 60.0
    """Seconds between rounds."""
    p: float = -1.0
    """Fairness: the power of the mean of speedups; 1 is the mean, ever more negative looks at the worst job."""
    restart_s: Annotated[NotNegative, STUDY] = 30.0
    """What Pollux assumes that a restart costs."""
    avoid_interference: Annotated[bool, STUDY] = True
    """At most one job on several nodes uses a node."""
    population: Annotated[int, Meta(ge=4), STUDY] = 100
    """Allocations that the genetic search holds at a time."""
    generations: Annotated[int, Meta(ge=0), STUDY] = 100
    """Most generations of a search."""
    patience: Annotated[int, Meta(ge=1), STUDY] = 50
    """The search ends after so many generations without a better allocation."""
    greedy_seeds: Annotated[bool, STUDY] = True
    """Begin the search also with greedy allocations; the published one does not."""
    seed: Annotated[int, Meta(ge=0), STUDY] = 0
    """Seed of the search's random numbers."""


class OptimusSettings(Section, frozen=True, kw_only=True):
    """Optimus (rows O1-O18)."""

    interval_s: Positive = 600.0
    """Seconds between rounds."""
    epochs_left: Annotated[Literal["true", "measured"], STUDY] = "true"
    """What ``optimus`` (not ``optimus-fitted``) knows of the epochs that a job has left: the truth; or, as in the
    evaluation by Pollux's authors, what a measured run took after the present epoch, so next to nothing in the
    last."""
    seed: Annotated[int, Meta(ge=0), STUDY] = 0
    """Seed of the random choice by which unknown jobs are tried out."""


class MuriSettings(Section, frozen=True, kw_only=True):
    """Interleaved groups (rows M3-M22)."""

    group_size: Annotated[Annotated[int, Meta(ge=1, le=4)] | None, STUDY] = None
    """Most jobs in a group; unset: as many as there are resources (storage, CPU, GPU, network)."""
    ordering: Annotated[Literal["best", "worst"], STUDY] = "best"
    """In which order the members of a group enter a round; "worst" is an ablation."""
    matching: Annotated[Literal["blossom", "by_priority"], STUDY] = "blossom"
    """How jobs are grouped; "by_priority", neighbours in the queue, is the ablation without matching."""
    unpack: Annotated[bool, STUDY] = True
    """Split groups that are slower together than one after the other."""
    overheads: Annotated[bool, STUDY] = True
    """Reckon with the overheads of interleaving that Muri's authors measured (a factor by group size); lucidd with
    those of taking turns here, corrected by what members report."""
    patience_s: Annotated[NotNegative, STUDY] = 3600.0
    """lucidd: once a job has waited so long, s, no other job starts or joins a group before it has started."""


class OverheadSettings(Section, frozen=True, kw_only=True):
    """What changes of state cost a job, in seconds of its run time."""

    requeue_s: NotNegative = 10.0
    """Slurm's COMPLETING state and a second start-up, for a job that starts over."""
    start_s: NotNegative = 0.0
    """From the decision to start a job to the first second of its work, which holds its GPUs (``--as-live`` only)."""
    rescale_s: NotNegative = 30.0
    """Checkpoint and restart of an elastic job, on a resize or after a preemption. Pollux's simulator charges
    30 s (15-120 s were observed)."""
    elastic_start_s: Annotated[NotNegative, STUDY] = 30.0
    """First start of an elastic job."""


class PolicySettings(Section, frozen=True, kw_only=True):
    """The settings of policies."""

    profiling: ProfilingSettings = ProfilingSettings()
    packing: PackingSettings = PackingSettings()
    reservation: ReservationSettings = ReservationSettings()
    remainder_on_emptiest: Annotated[bool, STUDY] = False
    """Where a job of more than one node leaves a remainder, put it on the emptiest node (as the published
    simulator does) instead of the tightest that fits."""
    fairness: FairnessSettings = FairnessSettings()
    lending: LendingSettings = LendingSettings()
    backfill: BackfillSettings = BackfillSettings()
    tiresias: TiresiasSettings = TiresiasSettings()
    muri: MuriSettings = MuriSettings()
    pollux: PolluxSettings = PolluxSettings()
    optimus: OptimusSettings = OptimusSettings()


LIVE_DEFAULTS: Mapping[str, Any] = {
    "profiling.restarts": "asked",
    "profiling.users_in_turn": True,
    "fairness.beyond_plain_s": 43200.0,
}
"""What lucidd does where the file says nothing, and a replay as live with it; a plain replay does as published."""


def with_defaults(settings: PolicySettings, defaults: Mapping[str, Any], given: Set[str]) -> PolicySettings:
    """The settings with other defaults, by key; what was set on purpose (``Settings.given``) stays as it is."""
    return settings.changed({key: value for key, value in defaults.items() if f"policy.{key}" not in given})
