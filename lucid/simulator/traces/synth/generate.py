"""From settings and a seed to a trace."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from lucid.core.job import Job
from lucid.errors import ConfigError
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.traces.synth.people import LIMITS_S, Template, User, people_of
from lucid.simulator.traces.synth.settings import MONDAY_S, SynthSettings, Vc

__all__ = ["synthesise"]

_FIRST_ID = 100001
_SLACK = 1e-3
"""How far the fitted load may be from the target, as a share of it."""


@dataclass(slots=True)
class _Run:
    """One job to be. ``part`` is how much of its natural length it lives; ``stretch`` is false for debugging."""

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
        ConfigError: so few jobs cannot make the load that is asked for.
    """
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
    """Submissions are drawn in no order of time; versions of a project's name count up with it."""
    for batch in sorted(batches, key=lambda batch: batch[0].submit_s):
        batch[0].template.version += 1
        for run in batch:
            run.name = run.name.replace("@", str(run.template.version))


def _submission(settings: SynthSettings, user: User, at_s: float, rng: Random) -> list[_Run]:
    if settings.service and rng.random() < settings.service:
        return [_service(settings, user, at_s, rng)]
    template = user.pick(at_s, rng)
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
    """Submitted at whole seconds, within the history."""
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
    """Something that serves until it is stopped: without a time limit, and not stretched to fit the load."""
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
    """Between nine and seven on a weekday? Second 0 is a Monday, midnight."""
    return at_s // 86400 % 7 < 5 and 9 <= at_s % 86400 / 3600 < 19


class _Rhythm:
    """Times of a non-homogeneous Poisson process whose rate is constant within each hour.

    Given how many there are, such times are independent draws from the rate taken as a density; that is how
    they are drawn, so that the number of jobs is exact.
    """

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
