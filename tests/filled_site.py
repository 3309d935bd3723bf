"""A lucidd with something of everything that /metrics tells: pairs, holds, a starvation bound, waste, drift."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daemon_site import Site
from lucid.daemon.learning.training import UPKEEP
from lucid.node.reports import write_summary
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch
from lucid.slurm.view.profiles import ProfileReading
from scenes.jobs import LIGHT


def idle_summary(site: Site, job_id: str) -> None:
    """The sampler's account of a job that ended: it did nothing from its start to its end."""
    (ended,) = [one for one in site.store.ended() if one.job.id == job_id]
    begin_s = ended.end_s - ended.ran_s
    stretch = IdleStretch(begin_s, ended.end_s)
    use = tuple(GpuUse(f"GPU-{n}", begin_s, ended.end_s, ended.ran_s, 0.0, (stretch,)) for n in range(ended.job.gpus))
    folder = site.folder / "profiles"
    folder.mkdir(exist_ok=True)
    write_summary(folder, Summary(job_id, "n1", (), begin_s, ended.end_s, int(ended.ran_s), use=use))


def bounded_site(folder: Path) -> Site:
    """With a starvation bound of two hours."""
    site = Site(folder)
    site.settings = site.settings.changed({"policy.fairness.beyond_plain_s": 7200.0})
    site.start()
    return site


def filled_site(folder: Path) -> Site:
    """Two hours of it: light pairs, one slower than promised; jobs that wait, one for profiling; an idle job that has
    ended; a GPU that a person took out; a model that was judged."""
    site = bounded_site(folder)
    for number in range(1, 5):
        site.submit(str(number), 2, run_s=2500.0 if number < 3 else 30_000.0, user="ada", time_limit_s=36_000.0)
    site.turns(3000.0, every_s=15.0)
    for number in range(5, 9):
        site.submit(str(number), 2, run_s=30_000.0, user="ada", time_limit_s=36_000.0)
    site.turns(1200.0, every_s=15.0)
    running = {e["job"]["id"]: e["partner"] for e in site.store.view("snapshot")["partitions"]["vc"]["running"]}
    seen = [
        ProfileReading(job, replace(LIGHT, seen_speed=0.8, seen_beside=beside), f"{job} together")
        for job, beside in running.items()
        if beside
    ]
    site.sampler.new = lambda: seen  # type: ignore[method-assign]
    for number in range(9, 16):
        site.submit(str(number), 4, run_s=3000.0, user="bob", time_limit_s=36_000.0)
    site.turns(1500.0, every_s=15.0)
    idle_summary(site, "1")
    for number in range(20, 36):
        site.submit(str(number), 2, run_s=3000.0, user="cyd", time_limit_s=36_000.0)
    site.ctl("gpu", "out", "p1:3", "--reason", "it slows down")
    site.turns(60.0)
    drift = {"error_ratio": 0.8, "jobs": 120, "psi": {"gpus": 0.1}}
    site.store.put_view(UPKEEP, [{"kind": "duration", "drift": drift, "trouble": None}])
    return site
