"""Settings: frozen, typed, from TOML. An unknown key is an error that lists the known ones."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lucid.errors import ConfigError

__all__ = [
    "BackfillSettings",
    "DaemonSettings",
    "FairnessSettings",
    "Mode",
    "ModelSettings",
    "MuriSettings",
    "OptimusSettings",
    "OverheadSettings",
    "PackingSettings",
    "PolicySettings",
    "PolluxSettings",
    "ProfilingSettings",
    "ReservationSettings",
    "Settings",
    "SlurmSettings",
    "TiresiasSettings",
    "TunerSettings",
    "library_folder",
    "load_settings",
    "own_job_log",
    "settings_from",
    "with_defaults",
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProfilingSettings(_Frozen):
    """The profiling stage (acceptance rows L2, L4, L6, L7)."""

    enabled: bool = True
    t_prof_s: float = Field(80.0, gt=0)
    """T_prof: longest profiling run, s. The published setting for a Philly-like cluster."""
    cold_start_factor: float = Field(3.0, ge=1)
    """T_prof is longer by this factor for a job marked 'long cold start'."""
    n_prof: int = Field(8, ge=0)
    """N_prof: jobs above this many GPUs skip profiling and are measured in place."""
    max_wait_s: float = Field(14400.0, ge=0)
    """A job that waited this long for a profiling node goes to its VC unprofiled."""
    carry_on_share: float = Field(0.5, ge=0, le=1)
    """On this share of the profiling nodes (rounded down) profiled jobs may carry on in place."""
    time_aware: bool = False
    """In a burst shorten T_prof, lower N_prof, and send jobs home to be measured there where GPUs are idle (L5)."""
    burst_wait_s: float = Field(160.0, gt=0)
    """A burst is a profiling queue that would take longer than this at the usual T_prof."""
    least_t_prof_s: float = Field(40.0, gt=0)
    """T_prof in the worst of bursts: what a sampler needs at the least."""


class PackingSettings(_Frozen):
    """Packing pairs of jobs on the same GPUs (rows L11-L19)."""

    gss: int = Field(2, ge=0, le=4)
    """GPU sharing capacity: the most that the share scores of a pair may add up to; 0 turns sharing off."""
    partner: Literal["first", "best"] = "best"
    """Take the first partner that passes every rule, or the one with the best expected pair speed."""
    least_pair_speed: float = Field(0.85, ge=0, le=1)
    """Refuse pairs in which either job is expected to run slower than this (1 = as fast as alone); the paper
    counts a pair as free of interference from 0.85."""
    part_below_speed: float = Field(0.5, ge=0, le=1)
    """Part a pair in which a job was measured to run slower than this: below 0.5 each, two jobs would both be done
    sooner one after the other. Parting costs the leaver its progress, so it lies well below least_pair_speed."""
    least_partner_remaining_s: float = Field(300.0, ge=0)
    """Pairs are avoided where the partner is expected to end within this time (L19)."""
    priority_ratio: float | None = Field(None, gt=0)
    """A guest's priority value may be at most this many times its partner's (L30); unset: no such rule."""
    same_user_only: bool = False
    """Only jobs of the same user share GPUs: two users' programs under one MPS daemon can hurt each other. The
    daemon turns this on unless daemon.share_across_users is set."""
    mps: bool | None = None
    """Say in the decision by what a pair will share: MPS is there for jobs of one user, or it is not. Unset: nothing
    is said. The daemon sets it to daemon.mps."""
    dynamic: bool = False
    """Share less, or not at all, while a VC's idle GPUs suffice for what waits and what is forecast (L17)."""
    horizon_h: float = Field(12.0, gt=0)
    """How far the forecast looks ahead: about as long as a job holds its GPUs."""
    calm_s: float = Field(1800.0, ge=0)
    """Sharing is reduced by one step after this long a calm."""


class ReservationSettings(_Frozen):
    """Reserving nodes for large jobs that would starve behind small ones."""

    enabled: bool = True
    above_gpus: int | None = Field(None, ge=0)
    """Jobs above this many GPUs may hold a reservation; unset: those larger than one node."""
    after_wait_s: float = Field(0.0, ge=0)
    """A reservation is made once the job has waited this long."""
    strict_after_s: float = Field(43200.0, ge=0)
    """Once it has waited this long, no other job is started on the nodes kept for it."""
    safety: float = Field(1.0, gt=0)
    """Until then a job may start there if this many times its estimate ends before the nodes are needed."""


class FairnessSettings(_Frozen):
    """What Lucid's own order owes to those whom it passes over."""

    beyond_plain_s: float | None = Field(None, gt=0)
    """The starvation bound: no job waits for more than this beyond when plain Slurm order (``policy.backfill``) would
    have started it; unset: no such promise."""
    keep_from: float = Field(0.5, ge=0, le=1)
    """From this share of the bound on a job goes before all others, and nodes are kept for it."""
    share_bound: float = Field(1.0, ge=1)
    """Fair-share: a priority value counts at most this many times as much for an account far above its share, and as
    many times less for one that has used nothing; 1: no fair-share in Lucid's own order."""
    half_life_s: float = Field(604800.0, gt=0)
    """In replays: usage counts half after this long (PriorityDecayHalfLife)."""
    shares: dict[str, float] = {}
    """In replays: shares by account, or by user where jobs have none; 1 each unless given."""


class BackfillSettings(_Frozen):
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
    calc_period_s: float = Field(300.0, gt=0)
    """PriorityCalcPeriod: how often priorities are worked out."""
    depth: int = Field(100, ge=1)
    """Of how many jobs that cannot start the expected start is kept (bf_max_job_test); 1 is EASY backfilling."""
    limit_factor: float = Field(2.0, gt=0)
    """Where the trace has no time limit: this many times the estimate …"""
    least_limit_s: float = Field(600.0, gt=0)
    """… and at least this long."""


class TiresiasSettings(_Frozen):
    """Discretised 2D-LAS, two queues."""

    threshold_gpu_s: float = Field(18000.0, gt=0)
    interval_s: float = Field(60.0, gt=0)
    placement: Literal["consolidated", "emptiest"] = "consolidated"
    """On as few nodes as possible or not at all; or on the emptiest nodes, however many that takes."""


class PolluxSettings(_Frozen):
    """Pollux (rows P20-P31)."""

    interval_s: float = Field(60.0, gt=0)
    p: float = -1.0
    """Fairness: the power of the mean of speedups; 1 is the mean, ever more negative looks at the worst job."""
    restart_s: float = Field(30.0, ge=0)
    """What it assumes that a restart costs."""
    avoid_interference: bool = True
    """At most one job on several nodes uses a node."""
    population: int = Field(100, ge=4)
    generations: int = Field(100, ge=0)
    patience: int = Field(50, ge=1)
    """The search ends after so many generations without a better allocation."""
    greedy_seeds: bool = True
    """Begin the search also with greedy allocations; the published one does not."""
    seed: int = Field(0, ge=0)


class OptimusSettings(_Frozen):
    """Optimus (rows O1-O18)."""

    interval_s: float = Field(600.0, gt=0)
    seed: int = Field(0, ge=0)
    """Of the lot by which jobs that nobody knows are tried out."""


class MuriSettings(_Frozen):
    """Interleaved groups (rows M3-M22)."""

    resources: int = Field(4, ge=2, le=4)
    """k: storage, CPU, GPU, network, or the first of them."""
    group_size: int | None = Field(None, ge=1, le=4)
    """Most jobs in a group; unset: as many as there are resources."""
    ordering: Literal["best", "worst"] = "best"
    """In which order the members of a group enter a round; "worst" is an ablation."""
    matching: Literal["blossom", "by_priority"] = "blossom"
    """How jobs are grouped; "by_priority", neighbours in the queue, is the ablation without matching."""
    unpack: bool = True
    """Split groups that are slower together than one after the other."""
    overheads: bool = True
    """Reckon with the overheads of interleaving that Muri's authors measured (a factor by group size)."""
    merge_by_efficiency: bool = False
    """Merge first where the fewest GPUs are wasted, which the published code sets out to do."""
    split_pairs: bool = False
    """With groups of at most three: take pairs apart to make threes, which the published rounds cannot do."""


class OverheadSettings(_Frozen):
    """What changes of state cost a job, in seconds of its run time. The preemption figures are those the
    published simulator charges (after Tiresias' measured 62 s per preemption)."""

    preempt_small_s: float = Field(40.0, ge=0)
    """Checkpoint and restart of a job of at most 8 GPUs."""
    preempt_large_s: float = Field(60.0, ge=0)
    requeue_s: float = Field(10.0, ge=0)
    """Slurm's COMPLETING state and a second start-up, for a job that starts over."""
    start_s: float = Field(0.0, ge=0)
    """From the decision to start a job to the first second of its work, which holds its GPUs (``--as-live`` only)."""
    rescale_s: float = Field(30.0, ge=0)
    """Checkpoint and restart of an elastic job, on a resize or after a preemption. Pollux's simulator charges
    30 s (15-120 s were observed)."""
    elastic_start_s: float = Field(30.0, ge=0)
    """First start of an elastic job."""


class PolicySettings(_Frozen):
    """All that a policy may be told."""

    profiling: ProfilingSettings = ProfilingSettings()
    packing: PackingSettings = PackingSettings()
    reservation: ReservationSettings = ReservationSettings()
    remainder_on_emptiest: bool = False
    """Where a job of more than one node leaves a remainder, put it on the emptiest node (as the published
    simulator does) instead of the tightest that fits."""
    fairness: FairnessSettings = FairnessSettings()
    backfill: BackfillSettings = BackfillSettings()
    tiresias: TiresiasSettings = TiresiasSettings()
    muri: MuriSettings = MuriSettings()
    pollux: PolluxSettings = PolluxSettings()
    optimus: OptimusSettings = OptimusSettings()
    restart_overhead_s: float = Field(40.0, ge=0)
    """What srtf assumes that one preemption costs."""


class ModelSettings(_Frozen):
    """Learned models: where they are kept, what they learn from, and when they are trained again.

    Paths are relative to the folder of the configuration file.
    """

    library: str | None = None
    """Folder of the versions. lucidd's own, where none is named: models/ in daemon.state_dir."""
    jobs: str | None = None
    """Log of finished jobs (sacct lines or CSV): durations. lucidd's own, where none is named: jobs.csv in
    daemon.state_dir, which it writes."""
    every_h: float = Field(6.0, ge=0)
    """How often lucidd looks whether a training is due, hours; 0: never (cron does, or nobody)."""
    profiles: str | None = None
    """CSV of configurations measured alone: share scores; with ``pairs`` the pair model too."""
    pairs: str | None = None
    """CSV of configurations measured together."""
    bins: str | None = None
    """CSV of submissions per bin of time: throughput."""
    monotone: dict[str, Literal[-1, 1]] = {}
    """Features along which durations may only rise (1) or fall (-1)."""
    new_jobs: int = Field(1000, ge=1)
    """Finished jobs not yet learned from that call for training."""
    least_jobs: int = Field(50, ge=40)
    """With fewer new ones nothing is trained."""
    most_age_days: float = Field(7.0, gt=0)
    drift_jobs: int = Field(100, ge=1)
    """Finished jobs that a drift of the error needs before it counts."""
    ratio_train: float = Field(1.0, gt=0)
    """Model error, as a multiple of the error of history means, above which to train."""
    ratio_fall_back: float = Field(1.2, gt=0)
    """And above which history means answer until a new version is promoted."""
    psi_train: float = Field(0.25, gt=0)
    """Population stability index of an input above which to train."""


class TunerSettings(_Frozen):
    """The tuner beside lucidd: searches the cluster's own past now and then, and leaves a report."""

    every_h: float = Field(0.0, ge=0)
    """How often, hours; 0: never."""
    history_days: float = Field(30.0, gt=0)
    """How much of the past is searched."""
    trials: int = Field(60, ge=2)
    workers: int = Field(1, ge=1)
    """Processes at a time, of the lowest priority."""
    only: tuple[str, ...] = ()
    """Settings, or tables of them, to search; empty: all that can be tuned."""
    apply: bool = False
    """Also write a change whose gain survives on later data into the configuration, for lucidd's next start."""
    keep: int = Field(10, ge=1)
    """Reports kept."""


class Mode(StrEnum):
    """What the daemon may do in a partition."""

    OBSERVE = "observe"
    """Touch nothing; record what would be done."""
    ORDER = "order"
    """Order the queue by SiteFactor, within a bound."""
    PACK = "pack"
    """Profile, order, place and pack."""


class SlurmSettings(_Frozen):
    """How the daemon talks to Slurm."""

    client: Literal["command", "rest"] = "command"
    """By Slurm's own commands, or by slurmrestd."""
    rest_url: str = ""
    """unix:/run/slurmrestd/slurmrestd.sock, or http://host:6820."""
    rest_token_file: str = ""
    """Holds the JSON web token that slurmrestd wants over HTTP; read anew for every request."""
    rest_commands: bool = False
    """What slurmrestd cannot do (changing one task of an array; before 26.05, requeueing) goes through the
    commands. Without it, pack mode is not to be had over slurmrestd."""
    prefix: tuple[str, ...] = ()
    """Words before every Slurm command: ["chroot", "/srv/slurm"] or ["ssh", "head"]."""
    timeout_s: float = Field(20.0, gt=0)
    poll_busy_s: float = Field(1.0, gt=0)
    """Seconds between looks while jobs wait for Lucid or are being profiled."""
    poll_idle_s: float = Field(7.0, ge=1)
    """Seconds between looks otherwise, and so the longest that a job waits for the first look at it. With
    nodes_every_s at most 12 requests a minute; below 6, more."""
    nodes_every_s: float = Field(30.0, ge=1)
    """Seconds between looks at the nodes."""
    writes_per_cycle: int = Field(60, ge=3)
    """Most commands that change something in one cycle; the rest waits for the next."""
    slow_s: float = Field(5.0, gt=0)
    """Answers slower than this, three in a row, open the breaker."""
    rest_s: float = Field(15.0, gt=0)
    """How long the breaker stays open at first."""
    start_grace_s: float = Field(30.0, gt=0)
    """A released job that has not started by then is taken back and decided anew."""

    @property
    def packs(self) -> bool:
        """Can every change that pack mode makes be written this way?"""
        return self.client == "command" or self.rest_commands


class DaemonSettings(_Frozen):
    """What lucidd looks after, and where it keeps its state."""

    partitions: dict[str, Mode] = {}
    """Mode by partition (VC). Partitions not named here are none of Lucid's business."""
    profiling_partition: str = ""
    """Where new jobs are profiled; empty: nowhere, and profiles come from earlier runs and samplers in place."""
    policy: str = "lucid"
    state_dir: str = "/var/lib/lucid"
    heartbeat: str = "/run/lucid/heartbeat"
    """Rewritten after every good cycle; job_submit.lua leaves jobs alone once it is old."""
    profiles_dir: str = ""
    """Where samplers put their summaries; empty: profiles/ in state_dir."""
    samples_dir: str = ""
    """Where samplers put their samples (their --spool), if the daemon can reach it; empty: it goes by the summaries
    in profiles_dir alone."""
    samples_every_s: float = Field(10.0, gt=0)
    """Seconds between takings-in of samples."""
    keep_samples_h: float = Field(6.0, gt=0)
    """How long samples are kept, hours: what a restarted daemon goes on from."""
    most_samples_mib: int = Field(256, ge=1)
    """And how much of them at the most; the oldest go first."""
    lease_s: float = Field(15.0, ge=3)
    site_factor_bound: int = Field(1000, ge=1, le=1_000_000)
    """Most that order mode adds to a job's priority."""
    gpu_mem_mib: int = Field(24576, ge=1)
    """Memory of a GPU, MiB, where no feature of the node says otherwise."""
    gpu_mem_mib_by_feature: dict[str, int] = {}
    share_across_users: bool = False
    mps: bool = True
    """Tell the nodes' prolog, in the job's Extra, the GPUs and the memory fence of a job in slots, so that it starts
    MPS where node.conf names it. Off: nothing is written, and pairs share by time-slicing."""
    reuse_profiles_days: float = Field(30.0, ge=0)
    """A job of the same user, name and GPU count measured since then is not profiled again."""
    catch_up_days: float = Field(7.0, ge=0)
    """How far back lucidd asks sacct, when it starts, for jobs that ended while it was down; 0: not at all."""
    keep_days: float = Field(90.0, ge=1)
    """How long decisions, actions, ended jobs and records of plans are kept."""
    record_every_s: float = Field(30.0, ge=0)
    """At most one plan in so many seconds is recorded, with all that it was made from (lucidctl replay)."""
    record_mib: float = Field(200.0, ge=0)
    """Most that all records may take, MiB: the oldest go first. 0: none are written."""
    first_guess_s: float = Field(3600.0, gt=0)
    """Estimate of a job's run time before any job has ended."""


class Settings(_Frozen):
    """The whole of ``lucid.toml``."""

    policy: PolicySettings = PolicySettings()
    overheads: OverheadSettings = OverheadSettings()
    models: ModelSettings = ModelSettings()
    tuner: TunerSettings = TunerSettings()
    slurm: SlurmSettings = SlurmSettings()
    daemon: DaemonSettings = DaemonSettings()


def with_defaults(settings: PolicySettings, defaults: Mapping[str, Mapping[str, Any]]) -> PolicySettings:
    """The settings with other defaults, by section and key; what was set on purpose stays as it is."""
    sections: dict[str, BaseModel] = {}
    for name, values in defaults.items():
        section: BaseModel = getattr(settings, name)
        fresh = {key: value for key, value in values.items() if key not in section.model_fields_set}
        sections[name] = section.model_copy(update=fresh)
    return settings.model_copy(update=sections)


def library_folder(settings: Settings, base: Path) -> Path | None:
    """Where the versions of models are; ``None`` where nothing says so. ``base``: folder of the configuration."""
    if settings.models.library:
        return base / settings.models.library
    return Path(settings.daemon.state_dir) / "models" if settings.daemon.partitions else None


def own_job_log(settings: Settings) -> Path:
    """The log of finished jobs that lucidd writes."""
    return Path(settings.daemon.state_dir) / "jobs.csv"


def settings_from(data: dict[str, Any], where: str) -> Settings:
    """Settings from a mapping; ``where`` names its source in errors.

    Raises:
        ConfigError: naming the key, the value, what was expected, and for an unknown key the known ones.
    """
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        lines = [_explain(dict(item)) for item in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None
    packs = [name for name, mode in settings.daemon.partitions.items() if mode is Mode.PACK]
    if packs and not settings.slurm.packs:
        raise ConfigError(
            f"{where}: daemon.partitions.{packs[0]} = 'pack', but slurmrestd cannot change one task of an array, nor "
            "requeue before 26.05: set slurm.rest_commands = true (scontrol, behind slurm.prefix, does that), or "
            "slurm.client = 'command', or observe or order here"
        )
    return settings


def _explain(item: dict[str, Any]) -> str:
    path = [str(part) for part in item["loc"]]
    if item["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        return f"unknown key {'.'.join(path)!r}{hint} (known here: {', '.join(known)})"
    return f"{'.'.join(path)} = {item['input']!r}: {item['msg']}"


def _keys_at(path: list[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in path:
        inner = model.model_fields[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def load_settings(path: Path) -> Settings:
    """Read ``lucid.toml``.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds a wrong or unknown key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give --config an existing file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return settings_from(data, str(path))
