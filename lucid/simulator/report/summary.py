"""Sentences of the report: what was replayed, which policy came off best, and what limits that comparison.

Also the style of each policy, which is the same throughout the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lucid.html.page import DAY, show_change, show_count, show_duration, show_many
from lucid.orchestrator.registry import ESTIMATES, Estimates
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import Run
from lucid.simulator.metrics import baseline_of

_STYLES = 8
"""How many classes the style sheet has, p0 to p7: a colour and a dash each."""
_OWN_STYLE = {"lucid": 0, "fifo": 1, "sjf": 2, "tiresias": 3, "qssf": 4, "srtf": 5, "backfill": 6}

ABOUT = {
    "fifo": "in order of submission",
    "backfill": "plain Slurm: in its order, backfilled by time limits",
    "sjf": "shortest run time first",
    "srtf": "shortest remaining time first",
    "qssf": "least run time × GPUs first",
    "tiresias": "least GPU time received first, in two queues",
    "srsf": "least remaining time × GPUs first",
    "muri-s": "least remaining work × GPUs first, in groups that take turns",
    "muri-l": "least GPU time received first, in groups that take turns",
    "elastic": "in order of submission, on as many GPUs as are idle",
    "elastic-fcfs": "in order of submission, on the fewest GPUs",
    "elastic-ef": "in order of submission, on the most GPUs",
    "optimus-drf": "as many GPUs for every elastic job",
    "lucid": "profiles, orders by estimate × GPUs, packs pairs",
}
"""How a policy orders jobs, in words."""
_ORACLE = OraclePredictor.name
_WITHOUT_ESTIMATES = frozenset(name for name, kind in ESTIMATES.items() if kind is Estimates.NONE)


def synthetic(notes: Sequence[str]) -> bool:
    """Whether a note says that the trace is synthetic."""
    return any(
        re.search(r"(?<!not )(?<!not a )(?<!--workloads )\bsynthetic\b", note, re.IGNORECASE) for note in notes
    )


def facts(runs: Sequence[Run]) -> list[str]:
    """What was replayed, in a few words each."""
    jobs = [outcome.job for outcome in runs[0].outcomes]
    gpus = " or ".join(show_count(count) for count in sorted({run.total_gpus for run in runs}))
    vcs = len({job.vc for job in jobs})
    span_s = max((job.submit_s for job in jobs), default=0.0) - min((job.submit_s for job in jobs), default=0.0)
    return [
        show_many(len(jobs), "job"),
        f"arriving over {show_duration(span_s, DAY)}",
        f"{gpus} GPUs",
        show_many(vcs, "VC"),
        show_many(len(runs), "policy", "policies"),
    ]


def never_ran(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Notes on jobs that are in no figure, one for policies that leave out as many. ``figures``: by policy."""
    by_count: dict[int, list[str]] = {}
    for name, found in figures.items():
        by_count.setdefault(found.get("impossible_jobs", 0), []).append(name)
    return [
        f"{', '.join(those)}: {show_many(count, 'job')} could never run on these nodes and "
        f"{'is' if count == 1 else 'are'} left out of every figure."
        for count, those in by_count.items()
        if count
    ]


def headline(runs: Sequence[Run], figures: Sequence[dict[str, Any]]) -> str:
    """The comparison with the baseline in one sentence: that of the best policy that a real cluster can have, if
    there is one beside the baseline. A second sentence gives the result of policies that know the truth."""
    known = [(found["avg_jct_s"], i) for i, found in enumerate(figures) if "avg_jct_s" in found]
    if not known:
        return "No job ended under any policy."
    best = _best(runs, figures)
    best_s, best_name = figures[best]["avg_jct_s"], runs[best].policy
    if len(runs) == 1:
        return f"{best_name} completes a job in {show_duration(best_s)} on average." + _truth(runs[best])
    base = _base(runs)
    first = figures[base].get("avg_jct_s")
    shortest = best_s == min(known)[0]
    said = (
        f"{best_name} has the shortest average job completion time"
        if shortest
        else f"Of the policies that a real cluster can have, {best_name} has the shortest average job completion time"
    )
    if best == base or first is None:
        others = [(value, i) for value, i in known if i != best and (shortest or not knows_truth(runs[i]))]
        if not others:
            return f"{best_name} alone ended any job: {show_duration(best_s)} on average." + _truth(runs[best])
        next_s, following = min(others)
        said += f": {show_duration(best_s)}; {runs[following].policy} follows with {show_duration(next_s)}"
        change = show_change(next_s, best_s)
        return said + (f" ({change})." if change else ".") + _beyond(runs, known, best)
    change = show_change(best_s, first)
    than = "as" if change == "the same" else "than"
    said += f": {show_duration(best_s)}, {change} {than} {runs[base].policy} ({show_duration(first)})."
    return said + _beyond(runs, known, best)


def _best(runs: Sequence[Run], figures: Sequence[dict[str, Any]]) -> int:
    """Index of the policy with the shortest average JCT, of those that decide by what a real cluster knows; of all
    where no such policy beside the baseline ended jobs."""
    known = [(found["avg_jct_s"], i) for i, found in enumerate(figures) if "avg_jct_s" in found]
    real = [(value, i) for value, i in known if not knows_truth(runs[i])]
    return min(real if len(real) > 1 else known)[1]


def _base(runs: Sequence[Run]) -> int:
    baseline = baseline_of(runs)
    return next((i for i, run in enumerate(runs) if run is baseline), 0)


def _truth(run: Run) -> str:
    return " It was given the true run times, which no real scheduler knows." if knows_truth(run) else ""


def _beyond(runs: Sequence[Run], known: Sequence[tuple[float, int]], best: int) -> str:
    """What the reader must know of the best policy; or of a better one that nobody can have."""
    least_s, least = min(known)
    if least == best or knows_truth(runs[best]):
        return _truth(runs[best])
    preempts = ", and it preempts jobs that lose no work" if any(o.preemptions for o in runs[least].outcomes) else ""
    return (
        f" {runs[least].policy} would have {show_duration(least_s)}, and no real cluster can have it: it knows the "
        f"true run times{preempts}."
    )


_HEADLINE_FIGURES = (
    ("average JCT", "avg_jct_s"),
    ("average queueing delay", "avg_queue_s"),
    ("p99.9 queueing delay", "p999_queue_s"),
    ("average JCT of large jobs", "avg_jct_large_s"),
)


def changes(runs: Sequence[Run], figures: Sequence[dict[str, Any]], policy: str = "") -> dict[str, Any] | None:
    """How ``policy``, or that of the headline, differs from the baseline, for better and for worse."""
    base = _base(runs)
    if "avg_jct_s" not in figures[base]:
        return None
    best = next((i for i, run in enumerate(runs) if run.policy == policy), None) if policy else _best(runs, figures)
    if best is None or best == base:
        return None
    cards = []
    for title, key in _HEADLINE_FIGURES:
        value, reference = figures[best].get(key), figures[base].get(key)
        if value is None or reference is None:
            continue
        cards.append(
            {
                "title": title,
                "value": show_duration(value),
                "reference": show_duration(reference),
                "change": show_change(value, reference),
                "verdict": "better" if value < reference else "worse" if value > reference else "equal",
            }
        )
    return {"policy": runs[best].policy, "first": runs[base].policy, "cards": cards}


def styles(policies: Sequence[str]) -> list[int]:
    """A style for each policy: its own where it has one, so that it looks the same in every report; others
    take what these leave, then start over."""
    taken = {_OWN_STYLE[name] for name in policies if name in _OWN_STYLE}
    others = [name for name in policies if name not in _OWN_STYLE]
    free = [i for i in (6, 7, *range(6)) if i not in taken] or list(range(_STYLES))
    given = {name: free[i % len(free)] for i, name in enumerate(others)}
    return [_OWN_STYLE[name] if name in _OWN_STYLE else given[name] for name in policies]


def estimates(policy: str, predictor: str) -> str:
    """The source of the policy's estimates of run times."""
    if policy in _WITHOUT_ESTIMATES:
        return "none used"
    if predictor == _ORACLE:
        return "oracle: the true run times, which no real scheduler knows"
    return predictor


def knows_truth(run: Run) -> bool:
    """Whether the policy decided by run times that only a replay has."""
    return run.predictor == _ORACLE and run.policy not in _WITHOUT_ESTIMATES


def habits(run: Run, metrics: dict[str, Any]) -> list[str]:
    """The run's preemption, sharing and profiling: three cells."""
    preempted = sum(o.preemptions > 0 for o in run.outcomes)
    packed = metrics.get("packed_jobs") or 0
    profiled = sum(o.profiled_s > 0 for o in run.outcomes)
    return [
        f"yes: {show_count(metrics['preemptions'])} times, {show_many(preempted, 'job')}" if preempted else "no",
        f"yes: {show_many(packed, 'job')}" if packed else "no",
        f"yes: {show_many(profiled, 'job')}" if profiled else "no",
    ]
