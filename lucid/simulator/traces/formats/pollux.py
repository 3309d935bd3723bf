"""Reads Pollux's workloads: CSV of name, time, application, num_replicas, batch_size; all jobs are elastic.

Profiles are in folders beside the file, or in the folder that ``--applications`` names. ``num_replicas`` and
``batch_size`` are what a job's user would have chosen for a scheduler that changes neither. ncf runs on one GPU with
its batch as submitted, as in the authors' evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucid.accounting.log_rows import BadCell, ReadOptions, Row, Source
from lucid.core.job import Elastic
from lucid.simulator.cluster.application import Application, read_application
from lucid.simulator.cluster.training import AppLearning
from lucid.simulator.traces.record import Draft, Trace, collect_csv

ABOUT = "a workload of Pollux, elastic jobs with their profiles"
NEEDED = ("name", "time", "application", "num_replicas", "batch_size")
_VC = "cluster"
_EVALUATED_WITH: dict[str, Any] = {
    "tiresias.threshold_gpu_s": 57600.0,
    "tiresias.placement": "emptiest",
    "optimus.interval_s": 60.0,
    "optimus.epochs_left": "measured",
}
"""Tiresias demotes after 16 GPU-hours and takes free GPUs wherever they are; all schedulers decide once a minute.
Their oracle for Optimus counts the steps of the measured run after the epoch that a job is in."""
_ONE_GPU = frozenset({"ncf"})


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a workload. Submit times stay as they are: rounds of the published simulator count from 0.

    Raises:
        TraceError: a missing column, a bad row that is not to be skipped, or a profile that cannot be read."""
    folder = source.path.parent if options.applications is None else options.applications
    known: dict[str, Application] = {}

    def parse(row: Row) -> Draft:
        name = row.name("application")
        if name not in known:
            if name != name.strip() or "/" in name or name.startswith("."):
                raise BadCell("application", name, "is not the name of a folder with profiles")
            known[name] = read_application(folder / name)
        return _draft(row, known[name])

    trace = collect_csv(source, header, header_line, NEEDED, ABOUT, parse, options, lambda _: None, rebase=False)
    return replace(trace, evaluated_with=_EVALUATED_WITH)


def _draft(row: Row, app: Application) -> Draft:
    single = app.name in _ONE_GPU
    most_gpus = 1 if single else min(app.most_gpus, app.most_batch // app.atomic_min)
    gpus = row.whole("num_replicas", 1, most_gpus)
    batch = row.whole("batch_size", app.init_batch, app.most_batch)
    learning = AppLearning(app, batch, single)
    wanted = Elastic(
        max_gpus=most_gpus,
        batch=batch,
        init_batch=app.init_batch,
        most_batch=app.most_batch,
        atomic_min=app.atomic_min,
        atomic_max=app.atomic_max,
        pinned=single,
    )
    return Draft(
        id=row.name("name"),
        vc=_VC,
        gpus=gpus,
        submit_s=row.real("time"),
        duration_s=learning.epochs * learning.epoch_s(gpus)[-1],
        name=app.name,
        id_column="name",
        elastic=wanted,
        learning=learning,
    )
