"""``lucidctl explain``: why a job started when it did, beside whom, and what held it before."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lucid.cli.console import answer
from lucid.errors import ConfigError
from lucid.explain.story import UNBROKEN, WIDTH


def tell_explain(
    job_id: str, run_dir: Path | None, policy: str | None, long: bool, as_json: bool, config: Path
) -> None:
    """Carry out ``lucidctl explain``."""
    # what only one of the two needs is imported there: a live job's story needs no simulator
    if run_dir is None:
        from lucid.cli.jobs.queue import live_settings, seen_store
        from lucid.daemon.reporting.public_view import Published
        from lucid.explain.live_story import live_story, with_expected_start

        def why_unknown(job_id: str) -> str:
            from lucid.cli.jobs.ended import why_unknown as ask_slurm

            return ask_slurm(settings, job_id)

        settings = live_settings(config)
        store = seen_store(settings)
        story, data = live_story(store, job_id, settings.daemon.profiling_partition, why_unknown)
        story = with_expected_start(story, data, store, config, tries=True)
        if not isinstance(store, Published) and "why_now" not in data:
            from lucid.explain.waste import with_use

            ended = store.ended_job(job_id)
            story = with_use(story, data, store, settings, ended)
            if ended is not None:
                from lucid.cli.jobs.ended import with_ending

                story = with_ending(story, data, ended, settings, store)
        width = UNBROKEN
    else:
        from lucid.explain.replayed_story import run_story

        (story, data), width = run_story(_folder(run_dir, policy), job_id), WIDTH
    size = shutil.get_terminal_size((width, 24))
    most = size.lines - 1 if sys.stdout.isatty() and not long else None  # the prompt has the last line
    answer(data, as_json, story.lines(size.columns, most))


def _folder(run_dir: Path, policy: str | None) -> Path:
    found = sorted(path.parent.name for path in run_dir.glob("*/decisions.jsonl"))
    if not found:
        raise ConfigError(f"{run_dir}: holds no run; give the folder of: lucidctl simulate TRACE --out FOLDER")
    name = policy or ("lucid" if "lucid" in found else found[0])
    if name not in found or (policy is None and name != "lucid" and len(found) > 1):
        raise ConfigError(f"{run_dir}: say which run with --policy (there are: {', '.join(found)})")
    return run_dir / name
