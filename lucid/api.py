"""Replays from Python, for notebooks and scripts: ``import lucid; runs = lucid.replay("month.csv")``.

The options are those of ``lucidctl simulate``, under the same names (``pool=True``, ``vcs="vcs.csv"``,
``lending="borrow"``). What the command refuses is refused here, with the same words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lucid.cli.replay.replay_options import asked_of, read_scenario
from lucid.cli.replay.simulate import compare, simulate
from lucid.errors import ConfigError, did_you_mean
from lucid.explain.replayed_story import story_teller
from lucid.orchestrator.policy import PolicyFactory
from lucid.orchestrator.registry import adding_policy
from lucid.simulator.engine import Run
from lucid.simulator.metrics import BASELINE, times_baseline
from lucid.simulator.record import DecisionLog, job_row
from lucid.simulator.scenario import ReplayOptions
from lucid.simulator.traces.record import Trace

if TYPE_CHECKING:
    import pandas as pd


_HOUR_S = 3600.0
_TIMES_S = ("submit_s", "start_s", "end_s", "duration_s", "jct_s", "queue_s", "profiled_s", "packed_s")
_TABLE = {
    "avg_jct_s": "average JCT (h)",
    "avg_jct_large_s": "JCT of jobs > 8 GPUs (h)",
    "avg_queue_s": "average queueing (h)",
    "p999_queue_s": "p99.9 of queueing (h)",
    "makespan_s": "makespan (h)",
}
_BESIDE = {"avg_jct": "average JCT", "avg_jct_large": "JCT of jobs > 8 GPUs", "p999_queue": "p99.9 of queueing"}


class Replay:
    """One policy's replay. ``metrics``: every figure of ``lucidctl simulate --json``, times in seconds."""

    def __init__(self, run: Run, metrics: Mapping[str, Any], log: DecisionLog) -> None:
        self.policy = run.policy
        self.metrics = metrics
        self._run, self._log = run, log
        self._tell = story_teller({run.policy: log})

    def jobs(self) -> pd.DataFrame:
        """A row for each job, in order of arrival, as in jobs.csv of ``lucidctl simulate --out``: times in seconds of
        the trace; empty cells of a job that never ran are NaN."""
        pd = _pandas()
        table = pd.DataFrame([job_row(one) for one in self._run.outcomes]).set_index("job_id")
        for name in (*_TIMES_S, "gpus", "packed", "preemptions", "resizes", "ended_in_profiling"):
            table[name] = pd.to_numeric(table[name])
        return table

    def explain(self, job: str) -> str:
        """Why the job waited, started where it did, and beside whom, as ``lucidctl explain`` says it.

        Raises:
            ConfigError: the trace has no such job."""
        for one in self._run.outcomes:
            if one.job.id == str(job):
                return self._tell(self._run, one)
        raise ConfigError(f"the trace has no job {job!r}; .jobs().index has their names")

    def __repr__(self) -> str:
        hours = self.metrics.get("avg_jct_s", 0.0) / _HOUR_S
        return f"<Replay under {self.policy}: {self.metrics['jobs']} jobs, average JCT {hours:.2f} h>"


class Runs(Mapping[str, Replay]):
    """Replays of one trace by policy, in the order asked for. ``notes``: what was assumed."""

    def __init__(self, replays: Mapping[str, Replay], notes: Sequence[str]) -> None:
        self._replays, self.notes = dict(replays), list(notes)

    def __getitem__(self, policy: str) -> Replay:
        """The replay under a policy."""
        return self._replays[policy]

    def __iter__(self) -> Iterator[str]:
        """The names of the policies."""
        return iter(self._replays)

    def __len__(self) -> int:
        """The number of policies."""
        return len(self._replays)

    def table(self) -> pd.DataFrame:
        """A row for each policy, times in hours; beside the averages their multiple of plain Slurm's (the policy
        backfill), where that is among them."""
        pd = _pandas()
        metrics = {name: one.metrics for name, one in self._replays.items()}
        beside = times_baseline(metrics)
        rows = {}
        for name, figures in metrics.items():
            row = {title: figures[key] / _HOUR_S for key, title in _TABLE.items() if key in figures}
            row["GPU use"] = figures["gpu_use"]
            ratios = beside["by_policy"][name] if beside else {}
            row |= {f"{_BESIDE[key]}, times {beside['policy']}": ratio for key, ratio in ratios.items()}
            rows[name] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._replays.values()))


def replay(
    trace: str | Path | Trace,
    policies: str | Sequence[str | PolicyFactory] = (BASELINE, "lucid"),
    **options: Any,
) -> Runs:
    """Replay a trace under each policy. Progress shows on stderr once it takes two seconds.

    Args:
        trace: a file of any known format (docs/traces.md), or a trace that was read already.
        policies: one name, or names (``lucidctl simulate --policy``) and factories of your own, each named after its
            function or class.
        options: those of ``lucidctl simulate`` that say what is replayed, with ``_`` for ``-``; paths may be text.

    Raises:
        ConfigError: an unknown policy or option, or options that contradict each other.
        TraceError: a file that cannot be read; the message names file, line, column and remedy."""
    read = trace if isinstance(trace, Trace) else Path(trace)
    scenario, notes = read_scenario(read, _asked(options))
    with ExitStack() as stack:
        names = [
            policy if isinstance(policy, str) else stack.enter_context(adding_policy(policy.__name__, policy))
            for policy in ([policies] if isinstance(policies, str) else policies)
        ]
        metrics, runs, logs = compare(scenario, names, keep_decisions=True)
    return Runs({run.policy: Replay(run, metrics[run.policy], logs[run.policy]) for run in runs}, notes)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ConfigError("tables need pandas: pip install 'lucid-scheduler[notebooks]'") from None
    return pandas


def _asked(options: Mapping[str, Any]) -> ReplayOptions:
    """What is asked of a replay, as on the command line."""
    names = {one.name for one in fields(ReplayOptions)}
    taken = [one for one in simulate.params if one.name in names]
    by_name = {word: one for one in taken for word in _words(one)}
    words = ["a trace"]
    for name, value in options.items():
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            raise ConfigError(f"no option {name!r}{hint} (lucidctl simulate --help has them)")
        words += _typed(by_name[name], value)
    try:
        return asked_of(simulate.make_context("lucid.replay", words).params)
    except click.UsageError as error:
        raise ConfigError(error.format_message()) from None


def _words(option: click.Parameter) -> list[str]:
    """The names of an option in Python. ``--from`` would be a keyword of the language, so its parameter's name
    serves."""
    typed = [word.lstrip("-").replace("-", "_") for word in option.opts if word.startswith("--")]
    return [option.name or "", *typed] if typed else []


def _typed(option: click.Parameter, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [option.opts[0]] if value else option.secondary_opts[:1]
    values = [value] if isinstance(value, str | Path) or not isinstance(value, Sequence) else value
    return [word for one in values for word in (option.opts[0], str(one))]
