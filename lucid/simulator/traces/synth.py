"""Makes synthetic months: from settings and a seed to a trace of users, their projects and invented workloads.

A job's user and name say something, not everything, of how long it runs. No workload was measured; a formula made
them. A family has four numbers: compute demand per root of a sample ``c``, memory traffic relative to compute ``m``,
parameters ``p`` (MiB), activations per sample ``a`` (MiB). For a batch of *b* samples, with mixed precision (AMP)
doing the same arithmetic in 0.65 of the time, half the traffic, and 0.6 of the activation memory:

    gpu_util    = 100 (1 - exp(-c sqrt(b) k))                k = 0.65 with AMP, else 1
    mem_util    = gpu_util * m * (1 - exp(-b / 48)) * t      t = 0.75 with AMP, else 1
    gpu_mem_mib = 900 + 4 p s + a b q                        s = 1.1, q = 0.6 with AMP; else s = q = 1

(900 MiB for the CUDA context, 4 p for weights, gradients and two moments.) Families marked unstable alternate between
phases, so that an average hides what a partner on the same GPU would meet."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random

from lucid.core.job import Job, JobProfile
from lucid.errors import ConfigError
from lucid.simulator.traces.presets import MONDAY_S, SynthSettings, Vc
from lucid.simulator.traces.record import Trace, TraceJob


@dataclass(frozen=True, slots=True)
class Family:
    """An invented kind of model; see the module's formula for the numbers."""

    name: str
    data: str
    compute: float
    traffic: float
    params_mib: float
    sample_mib: float
    batches: tuple[int, int]
    unstable: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One configuration: a family at a batch size, with or without mixed precision."""

    family: str
    profile: JobProfile


_FAMILIES = (
    Family("syn-mlp", "tabular", 0.010, 0.35, 25, 1.5, (128, 512)),
    Family("syn-convnet", "smallimages", 0.045, 0.40, 45, 9, (64, 128)),
    Family("syn-resnet", "images", 0.280, 0.62, 100, 95, (32, 64)),
    Family("syn-mobilenet", "images", 0.120, 0.48, 16, 62, (32, 64)),
    Family("syn-unet", "scans", 0.420, 0.66, 120, 620, (8, 16)),
    Family("syn-lstm", "text", 0.110, 0.75, 210, 14, (32, 128)),
    Family("syn-transformer", "text", 0.380, 0.70, 420, 210, (16, 32)),
    Family("syn-wav", "speech", 0.230, 0.58, 380, 260, (16, 32)),
    Family("syn-gnn", "graphs", 0.050, 0.80, 60, 22, (64, 256), unstable=True),
    Family("syn-rl", "episodes", 0.016, 0.20, 8, 2.5, (64, 256), unstable=True),
)


def _profile(family: Family, batch: int, amp: bool) -> JobProfile:
    util = 100.0 * (1.0 - math.exp(-family.compute * math.sqrt(batch) * (0.65 if amp else 1.0)))
    traffic = util * family.traffic * (1.0 - math.exp(-batch / 48.0)) * (0.75 if amp else 1.0)
    states, kept = (1.1, 0.6) if amp else (1.0, 1.0)
    mem_mib = 900.0 + 4.0 * family.params_mib * states + family.sample_mib * batch * kept
    label = f"{family.name}|{family.data}|{batch}|{int(amp)}"
    return JobProfile(round(util, 1), round(traffic, 1), float(round(mem_mib)), amp, family.unstable, label)


WORKLOADS: tuple[Workload, ...] = tuple(
    Workload(family.name, _profile(family, batch, amp))
    for family in _FAMILIES
    for batch in family.batches
    for amp in (False, True)
)
"""All 40 configurations."""


def with_workloads(trace: Trace, seed: int) -> tuple[Trace, int]:
    """The trace with a synthetic workload, drawn uniformly, for each job without GPU readings; and the number of
    these jobs. Readings drawn so are no help in predicting durations."""
    rng = Random(f"workloads of {seed}")
    given = 0
    jobs: list[TraceJob] = []
    for item in trace.jobs:
        if item.profile is None:
            profile = rng.choice(WORKLOADS).profile
            jobs.append(replace(item, profile=profile, job=replace(item.job, amp=profile.amp)))
            given += 1
        else:
            jobs.append(item)
    return replace(trace, jobs=tuple(jobs)), given


LIMITS_S = tuple(hours * 3600.0 for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 120, 168, 240, 336))
"""Time limits that people ask for."""

_KNOBS = (
    *("lr0.1", "lr0.01", "lr3e-4", "lr1e-4", "bs64", "bs256"),
    *("wd1e-4", "drop0.2", "seed1", "seed2", "aug", "ema"),
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of work: median run time (seconds, before the load is fitted), frequency, and its usual GPUs."""

    verb: str
    weight: float
    median_s: float
    spread: float
    most_gpus: int


_KINDS = (
    _Kind("eval", 0.24, 420.0, 0.5, 2),
    _Kind("prep", 0.08, 900.0, 0.7, 1),
    _Kind("tune", 0.26, 3000.0, 0.8, 8),
    _Kind("train", 0.32, 15000.0, 1.0, 32),
    _Kind("pretrain", 0.10, 70000.0, 0.9, 32),
)
"""Medians of projects are spread log-normally (sigma ``spread``) round that of their kind."""


@dataclass(slots=True)
class Template:
    """A project that its user submits again and again: ``median_s`` and ``sigma`` make its log-normal run time.

    ``center_s`` and ``width_s`` say when in the history it is worked on; ``version`` counts submissions."""

    name: str
    gpus: int
    workload: Workload
    median_s: float
    sigma: float
    crash: float
    generous: float | None
    cpus: int
    mem_mib: int
    weight: float
    center_s: float
    width_s: float
    version: int = 0
    knobs: tuple[str, ...] = ()

    def interest(self, at_s: float) -> float:
        """How likely its user works on it at that time, relative to the user's other projects."""
        return self.weight * (0.03 + math.exp(-(((at_s - self.center_s) / self.width_s) ** 2)))


@dataclass(slots=True)
class User:
    """A user with projects. ``name`` and ``vc`` as jobs show them."""

    name: str
    vc: str
    account: str
    templates: list[Template] = field(default_factory=list)
    debugs: float = 1.0
    """How often debugging runs come first, as a multiple of the usual."""


def people_of(vc: Vc, settings: SynthSettings, first: int, rng: Random) -> tuple[list[User], list[float]]:
    """Users of one VC, numbered from ``first``, and their running sums of activity (for ``random.choices``)."""
    counts = [rng.randint(*settings.templates) for _ in range(vc.users)]
    deck = _deck(
        settings, settings.gpus_per_node * max(1, int(vc.nodes * settings.largest)), sum(counts) - vc.users, rng
    )
    users = []
    for number, count in enumerate(counts):
        user = User(f"user{first + number:03d}", vc.name, f"{vc.name}-{'ab'[number % 2]}")
        # somebody's main project asks for one GPU: most jobs do, though most GPU time is not theirs
        user.templates = [_template(settings, deck.pop() if k else 1, k, rng) for k in range(count)]
        if settings.user_spread:
            slower, user.debugs = rng.lognormvariate(0.0, settings.user_spread), rng.choice((0.1, 0.5, 1.2, 2.0))
            for template in user.templates:
                template.median_s *= slower
        users.append(user)
    weights = [(k + 1) ** -settings.user_zipf for k in range(vc.users)]
    return users, list(accumulate(weights))


def _deck(settings: SynthSettings, most_gpus: int, count: int, rng: Random) -> list[int]:
    """Shuffled GPU counts for so many projects, in the wanted shares as exactly as whole numbers can be. They are
    dealt, not drawn, since a VC has few large projects and one more or less would be a different cluster."""
    sizes = [(gpus, share) for gpus, share in settings.gpu_shares if gpus <= most_gpus] or [(1, 1.0)]
    whole = sum(share for _, share in sizes)
    deck: list[int] = []
    reached = 0.0
    for gpus, share in sizes:
        reached += share / whole
        deck.extend([gpus] * (round(reached * count) - len(deck)))
    rng.shuffle(deck)
    return deck


def _template(settings: SynthSettings, gpus: int, k: int, rng: Random) -> Template:
    kinds = [kind for kind in _KINDS if gpus <= kind.most_gpus] or [_KINDS[-1]]
    kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
    workload = rng.choice(WORKLOADS)
    median_s = kind.median_s * rng.lognormvariate(0.0, kind.spread) * gpus**settings.large_longer
    return Template(
        name=f"{kind.verb}-{workload.family.removeprefix('syn-')}",
        gpus=gpus,
        workload=workload,
        median_s=median_s,
        sigma=rng.uniform(0.2, 0.8),
        crash=rng.uniform(0.5, 1.5),
        generous=None if rng.random() < 0.15 else rng.uniform(2.0, 8.0),
        cpus=gpus * rng.choice((4, 6, 8, 8, 10, 12)),
        mem_mib=gpus * 1024 * rng.choice((16, 24, 32, 48, 60)),
        weight=1.0 / (k + 1),
        center_s=rng.uniform(0.0, settings.days * 86400.0),
        width_s=rng.uniform(0.15, 0.6) * settings.days * 86400.0,
        knobs=tuple(rng.sample(_KNOBS, 4)),
    )


_FIRST_ID = 100001
_SLACK = 1e-3
"""How far the fitted load may be from the target, as a share of it."""


@dataclass(slots=True)
class _Run:
    """One coming job. ``part`` is the share of its natural length that it lives; ``stretch`` is false for
    debugging."""

    submit_s: float
    user: User
    template: Template
    name: str
    gpus: int
    natural_s: float
    part: float
    state: str
    stretch: bool

    def lived(self, scale: float, most_s: float) -> tuple[float, float | None, str]:
        """Duration and time limit in seconds, and state, once natural run times are stretched by ``scale``."""
        template = self.template
        natural_s = self.natural_s * scale if self.stretch else self.natural_s
        limit_s: float | None = None
        if template.generous is not None:
            wish_s = template.median_s * scale * template.generous
            limit_s = min(next((limit for limit in LIMITS_S if limit >= wish_s), LIMITS_S[-1]), most_s)
        duration_s, state = natural_s * self.part, self.state
        bound_s = most_s if limit_s is None else limit_s
        if duration_s > bound_s:
            duration_s, state = bound_s, "TIMEOUT"
        return float(max(1, round(duration_s))), limit_s, state


def synthesise(settings: SynthSettings, seed: int = 1, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Make a synthetic cluster history. The same settings and seed give the same trace, everywhere.

    Args:
        settings: what the cluster and its people are like.
        seed: any number; another one is another history of the same kind.
        progress: called now and then with (jobs done, jobs in all).

    Raises:
        ConfigError: so few jobs cannot make the load that is asked for."""
    # one stream of chance per matter: changing how many jobs there are leaves the people as they were
    rng = Random(f"{settings.name}/{seed}/jobs")
    rhythm = _Rhythm(settings, Random(f"{settings.name}/{seed}/rhythm"))
    runs: dict[str, list[_Run]] = {}
    people = {}
    first = 1
    for vc in settings.vcs:
        people[vc.name] = people_of(vc, settings, first, Random(f"{settings.name}/{seed}/people/{vc.name}"))
        runs[vc.name] = []
        first += vc.users
    weights = [vc.users * math.sqrt(vc.nodes) for vc in settings.vcs]
    made = 0
    batches: list[list[_Run]] = []
    while made < settings.jobs:
        vc = rng.choices(settings.vcs, weights)[0]
        users, sums = people[vc.name]
        user = rng.choices(users, cum_weights=sums)[0]
        batch = _submission(settings, user, rhythm.draw(rng), rng)[: settings.jobs - made]
        runs[vc.name].extend(batch)
        batches.append(batch)
        made += len(batch)
        if progress is not None and made % 500 < len(batch):
            progress(made, settings.jobs)
    _number_versions(batches)
    items: list[tuple[_Run, float, float | None, str]] = []
    for vc in settings.vcs:
        scale = _fit(settings, vc, runs[vc.name])
        items.extend((run, *run.lived(scale, settings.most_s)) for run in runs[vc.name])
    items.sort(key=lambda item: (item[0].submit_s, item[0].user.name, item[0].name))
    start_s = items[0][0].submit_s
    jobs = tuple(_job(number, start_s, *item) for number, item in enumerate(items))
    return Trace(f"{settings.name}-seed{seed}", jobs, MONDAY_S + start_s)


def _number_versions(batches: list[list[_Run]]) -> None:
    """Number the versions of each project's name in order of time, since submissions are drawn in no order."""
    for batch in sorted(batches, key=lambda batch: batch[0].submit_s):
        batch[0].template.version += 1
        for run in batch:
            run.name = run.name.replace("@", str(run.template.version))


def _submission(settings: SynthSettings, user: User, at_s: float, rng: Random) -> list[_Run]:
    if settings.service and rng.random() < settings.service:
        return [_service(settings, user, at_s, rng)]
    template = rng.choices(user.templates, [one.interest(at_s) for one in user.templates])[0]
    if settings.series and rng.random() < settings.series:
        return _series(settings, user, template, at_s, rng)
    runs = []
    first = rng.randrange(len(template.knobs))
    if rng.random() < user.debugs * (settings.debug if _working_hour(at_s) else settings.debug_at_night):
        for _ in range(rng.choice((1, 1, 2, 3))):
            runs.append(_debug(settings, user, template, at_s, rng))
            at_s += runs[-1].natural_s + rng.uniform(20.0, 400.0)
    count = 1
    if rng.random() < settings.sweep:
        # two at the least; sweeps of large jobs are short, since no user has the GPUs for long ones
        count = min(2 + int(rng.expovariate(math.sqrt(template.gpus) / settings.sweep_jobs)), 40)
    for k in range(count):
        name = f"{template.name}-{template.knobs[(first + k) % len(template.knobs)]}-v@"
        runs.append(_full(settings, user, template, name, at_s, rng))
        at_s += rng.expovariate(1 / 8.0)
    return _on_time(settings, runs)


def _on_time(settings: SynthSettings, runs: list[_Run]) -> list[_Run]:
    """The runs, submitted at whole seconds within the history."""
    for run in runs:
        run.submit_s = float(round(min(run.submit_s, settings.days * 86400.0)))
    return runs


def _series(settings: SynthSettings, user: User, template: Template, at_s: float, rng: Random) -> list[_Run]:
    """Dozens to hundreds of alike jobs of one user, a few seconds apart, of nearly the same length."""
    size = settings.series_jobs * rng.lognormvariate(0.0, 1.0) / math.sqrt(template.gpus)
    runs = []
    common_s = template.median_s * rng.lognormvariate(0.0, template.sigma) / 4.0
    name = f"{template.name}-{template.knobs[0]}-v@"
    for _ in range(min(max(round(size), 3), 500)):
        run = _full(settings, user, template, name, at_s, rng)
        run.natural_s = common_s * rng.lognormvariate(0.0, 0.3)
        runs.append(run)
        at_s += rng.expovariate(1 / 15.0)
    return _on_time(settings, runs)


def _service(settings: SynthSettings, user: User, at_s: float, rng: Random) -> _Run:
    """A job that serves until it is stopped: without a time limit, and not stretched to fit the load."""
    template = replace(user.templates[0], gpus=rng.choice((1, 1, 1, 2, 2, 4)), generous=None)
    name = f"serve-{template.name.rpartition('-')[2]}-v@"
    life_s = settings.service_days * 86400.0 * rng.lognormvariate(0.0, 0.8)
    run = _Run(at_s, user, template, name, template.gpus, life_s, 1.0, "CANCELLED", stretch=False)
    return _on_time(settings, [run])[0]


def _debug(settings: SynthSettings, user: User, template: Template, at_s: float, rng: Random) -> _Run:
    gpus = template.gpus if rng.random() < settings.debug_large else 1
    length_s = min(rng.lognormvariate(math.log(settings.debug_median_s), 0.9), 1200.0)
    state = rng.choices(("FAILED", "COMPLETED", "CANCELLED"), (0.5, 0.3, 0.2))[0]
    # half of them go by the project's own name, so that a name alone does not tell a test from a full run
    own = f"{template.name}-{rng.choice(template.knobs)}-v@"
    name = own if rng.random() < 0.5 else f"debug-{template.name}"
    return _Run(at_s, user, template, name, gpus, length_s, 1.0, state, stretch=False)


def _full(settings: SynthSettings, user: User, template: Template, name: str, at_s: float, rng: Random) -> _Run:
    natural_s = template.median_s * rng.lognormvariate(0.0, template.sigma)
    chance = rng.random()
    crash = settings.failed * template.crash
    if chance < crash:
        part, state = rng.random() ** 3, "FAILED"
    elif chance < crash + settings.cancelled:
        part, state = rng.uniform(0.05, 0.95), "CANCELLED"
    else:
        part, state = 1.0, "COMPLETED"
    return _Run(at_s, user, template, name, template.gpus, natural_s, part, state, stretch=True)


def _fit(settings: SynthSettings, vc: Vc, runs: list[_Run]) -> float:
    """The stretch of run times at which the VC's jobs ask for its share of GPU-hours, by halving an interval."""
    target = vc.utilisation * vc.nodes * settings.gpus_per_node * settings.days * 86400.0

    def load(scale: float) -> float:
        return sum(run.gpus * run.lived(scale, settings.most_s)[0] for run in runs)

    low, high = 0.0, 1.0
    while load(high) < target:
        low, high = high, high * 2.0
        if high > 1e6:
            raise ConfigError(
                f"synth {settings.name}: {len(runs)} jobs cannot make a load of {vc.utilisation:.0%} in VC "
                f"{vc.name} ({vc.nodes} nodes, {settings.days:g} days); ask for more jobs, fewer days, or less load"
            )
    middle = high
    for _ in range(60):
        middle = (low + high) / 2.0
        off = load(middle) - target
        if abs(off) <= _SLACK * target:
            break
        low, high = (low, middle) if off > 0 else (middle, high)
    return middle


def _job(number: int, start_s: float, run: _Run, duration_s: float, limit_s: float | None, state: str) -> TraceJob:
    template = run.template
    job = Job(
        id=str(_FIRST_ID + number),
        vc=run.user.vc,
        gpus=run.gpus,
        submit_s=run.submit_s - start_s,
        rank=number,
        user=run.user.name,
        account=run.user.account,
        name=run.name,
        cpus=template.cpus // template.gpus * run.gpus,
        mem_mib=template.mem_mib // template.gpus * run.gpus,
        time_limit_s=limit_s,
        amp=template.workload.profile.amp,
    )
    return TraceJob(job, duration_s, state, template.workload.profile)


# When people submit: by hour of the day, day of the week, and chance.


_HOURLY = (
    *(0.34, 0.27, 0.22, 0.19, 0.18, 0.20, 0.26, 0.40),
    *(0.62, 0.95, 1.22, 1.25, 0.86, 1.04, 1.40, 1.50),
    *(1.48, 1.36, 0.98, 0.92, 0.95, 0.88, 0.70, 0.50),
)
"""Relative rate of submission by hour of a weekday: low at night, dips at noon and in the early evening."""


def _working_hour(at_s: float) -> bool:
    """Whether the time is between nine and seven on a weekday. Second 0 is a Monday, midnight."""
    return at_s // 86400 % 7 < 5 and 9 <= at_s % 86400 / 3600 < 19


class _Rhythm:
    """Times of a non-homogeneous Poisson process whose rate is constant within each hour.

    Given how many there are, such times are independent draws from the rate taken as a density; that is how
    they are drawn, so that the number of jobs is exact."""

    def __init__(self, settings: SynthSettings, rng: Random) -> None:
        self._end_s = settings.days * 86400.0
        hours = -(-self._end_s // 3600)
        noise = [rng.lognormvariate(0.0, settings.day_noise) for _ in range(int(hours // 24) + 1)]
        rates = []
        for hour in range(int(hours)):
            day = hour // 24
            rate = _HOURLY[hour % 24] * noise[day] * (settings.weekend if day % 7 >= 5 else 1.0)
            storm = settings.storm
            if storm is not None and storm.start_h <= hour < storm.start_h + storm.hours:
                rate *= storm.factor
            rates.append(rate * min(1.0, (self._end_s - hour * 3600) / 3600))
        self._sums = list(accumulate(rates))

    def draw(self, rng: Random) -> float:
        """One time, seconds from the start."""
        at = rng.random() * self._sums[-1]
        hour = min(bisect_right(self._sums, at), len(self._sums) - 1)
        before = self._sums[hour - 1] if hour else 0.0
        part = (at - before) / (self._sums[hour] - before) if self._sums[hour] > before else 0.0
        return hour * 3600.0 + part * min(3600.0, self._end_s - hour * 3600.0)
