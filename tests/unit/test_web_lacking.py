"""Every page over stores that lack something: no reader is ever shown an error of ours.

The machine takes away, one after the other, each member of each view that lucidd keeps in its store, and each table.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon_site import Site as SlurmSite
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Settings, WebSettings
from lucid.live.upkeep import UPKEEP
from lucid.models.upkeep.keeper import Outcome
from lucid.web.app import build_app
from lucid.web.pages import PAGES
from lucid.web.planning import Planning
from lucid.web.source import Source
from scenes.pages import Pages
from web_client import WebClient

WEB = WebSettings(trusted_proxies=("10.0.0.1",), admins=("root-ish",))
READERS = ("root-ish", "ada", "")


def source_of(settings: Settings, folder: Path, now_s: float) -> Source:
    """What the pages see of the store in this folder."""
    daemon = settings.daemon.model_copy(update={"state_dir": str(folder)})
    source = Source(
        settings.model_copy(update={"web": WEB, "daemon": daemon}), folder / "lucid.toml", lambda: now_s
    )
    source.look()
    source.account()
    return source


def troubles(source: Source, readers: tuple[str, ...] = READERS) -> dict[str, str]:
    """What went wrong, by page and reader: every page is asked for every job, as HTML and as JSON."""
    app = build_app(source, Planning(source))
    jobs = ["999"]
    if source.picture is not None:
        jobs += [*source.picture.waiting, *source.picture.running]
    with closing(sqlite3.connect(source.path)) as db:
        jobs += [job_id for (job_id,) in db.execute("SELECT job_id FROM ended")]
    addresses = []
    for page in PAGES:
        for job in jobs if "{job_id}" in page.path else [""]:
            shown = page.path.replace("{job_id}", job).replace("{user}", "ada")
            addresses += [shown, ("/cluster" if shown == "/" else shown) + ".json"]
    found: dict[str, str] = {}
    for reader in readers:
        client = WebClient(app, {"x-remote-user": reader} if reader else {}, "10.0.0.1")
        for address, answer in client.get_each(addresses).items():
            said = f"{address} for {reader or 'somebody without a name'}"
            if isinstance(answer, Exception):
                found[said] = repr(answer)
            elif answer.status_code not in ((200, 403, 404) if source.picture is not None else (503,)):
                found[said] = f"{answer.status_code}: {answer.text[:200]}"
    source.stop()
    return found


# -- moments of a site ------------------------------------------------------------------------------------------


def no_cycle(folder: Path) -> SlurmSite:
    return SlurmSite(folder)


def no_job(folder: Path) -> SlurmSite:
    site = SlurmSite(folder)
    site.turns(5.0)
    return site


def the_first_job(folder: Path) -> SlurmSite:
    site = SlurmSite(folder)
    site.submit("1", 2, user="ada")
    site.turns(1.0)
    return site


def observed(folder: Path) -> SlurmSite:
    """Slurm starts jobs by itself, and Lucid looks on: one had ended, one runs and one waits when it saw them first."""
    site = SlurmSite(folder, restarts=None, partitions={"vc": "observe"})
    for number, gpus in (("1", 4), ("2", 4), ("3", 4)):
        site.submit(number, gpus, run_s=30.0 if number == "1" else 3000.0, user="ada", held=False)
    site.turns(20.0)
    site.submit("4", 8, user="bob", held=False)
    site.turns(60.0)
    return site


def models_without_evidence(folder: Path) -> SlurmSite:
    """As the upkeep of the models puts it while there are too few jobs to judge a model by."""
    site = the_first_job(folder)
    told = [Outcome("duration", None, None, trouble="too few jobs").to_json(), Outcome("pairs", None, None).to_json()]
    site.store.put_view(UPKEEP, told)
    return site


MOMENTS = (no_cycle, no_job, the_first_job, observed, models_without_evidence)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda made: made.__name__)
def test_every_page_stands_at_every_moment_of_a_site(moment: Callable[[Path], SlurmSite], tmp_path: Path) -> None:
    site = moment(tmp_path)
    assert troubles(source_of(site.settings, tmp_path, site.slurm.now)) == {}


# -- one thing lacks --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A store that has something of everything."""
    pages = Pages(tmp_path_factory.mktemp("whole"))
    pages.slurm.turns(2500.0, every_s=20.0)
    drift = {"error_ratio": 0.8, "jobs": 120, "psi": {"gpus": 0.1}}
    pages.slurm.store.put_view(UPKEEP, [{"kind": "duration", "drift": drift, "trouble": None, "action": "train"}])
    status = pages.slurm.store.view("status")
    status["models"] = {"duration": {"version": "v3", "why": "promoted", "trouble": False}}
    pages.slurm.store.put_view("status", {**status, "aside": {"77": "depends on another job"}})
    yield pages
    pages.source.stop()


def members(data: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Ways to all members; ``*`` is every item of a list, and every job."""
    if isinstance(data, dict):
        for key, item in data.items():
            way = (*at, "*" if key.isdigit() else key)
            yield way
            yield from members(item, way)
    elif isinstance(data, list):
        for item in data:
            yield from members(item, (*at, "*"))


def without(data: Any, way: tuple[str, ...]) -> Any:
    first, *rest = way
    if isinstance(data, list):
        return [without(item, tuple(rest)) for item in data] if first == "*" and rest else data
    if not isinstance(data, dict):
        return data
    hit = {key for key in data if key == first or (first == "*" and key.isdigit())}
    if not rest:
        return {key: item for key, item in data.items() if key not in hit}
    return {key: without(item, tuple(rest)) if key in hit else item for key, item in data.items()}


VIEWS = ("status", UPKEEP, "start_times", "snapshot")


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_stands_without_any_one_member_of_what_lucidd_keeps(
    view: str, whole: Pages, tmp_path: Path
) -> None:
    kept = whole.slurm.store.view(view)
    shutil.copy(whole.source.path, tmp_path / "lucid.db")
    ways = sorted(set(members(kept)))
    assert len(ways) > 2
    found: dict[str, Any] = {}
    with closing(SqliteStore(tmp_path / "lucid.db")) as store:
        for way in ways:
            store.put_view(view, without(kept, way))
            said = troubles(source_of(whole.settings, tmp_path, whole.slurm.slurm.now), ("root-ish", ""))
            if said:
                found[".".join(way)] = said
    assert found == {}


def test_every_page_stands_without_any_one_table_or_view(whole: Pages, tmp_path: Path) -> None:
    with closing(sqlite3.connect(whole.source.path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        views = [name for (name,) in db.execute("SELECT name FROM views")]
    wanted = [f"DELETE FROM {name}" for name in tables] + [f"DELETE FROM views WHERE name = '{v}'" for v in views]
    found: dict[str, Any] = {}
    for number, change in enumerate(wanted):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(whole.source.path, folder / "lucid.db")
        with closing(sqlite3.connect(folder / "lucid.db")) as db:
            db.execute(change)
            db.commit()
        said = troubles(source_of(whole.settings, folder, whole.slurm.slurm.now))
        if said:
            found[change] = said
    assert found == {}
