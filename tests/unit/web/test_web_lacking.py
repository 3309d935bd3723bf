"""Pages where something lacks, and what-if."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from jinja2 import nodes

from daemon_site import Site as SlurmSite
from lucid.config.live import WebSettings
from lucid.core.codec import field_names, has_fields
from lucid.core.reason import reason_to_dict
from lucid.core.reasons.sharing import SameUser
from lucid.daemon.learning.training import UPKEEP
from lucid.errors import ConfigError
from lucid.models.kinds import Outcome
from lucid.store.sqlite import SqliteStore
from lucid.web.app import build_app, on_every_page, page_response, templates
from lucid.web.pages import PAGES, Page
from lucid.web.site import Sight, Site, Viewer
from lucid.web.source import Judged, Source, Status
from lucid.web.starts import WhatIf
from scenes.pages import Pages
from web_client import WebClient

WEB = WebSettings(trusted_proxies=("10.0.0.1",), admins=("root-ish",))
READERS = ("root-ish", "ada", "")
Way = tuple[str, ...]


def troubles(site: SlurmSite, folder: Path, readers: Sequence[str] = READERS, json: bool = True) -> dict[str, str]:
    """What went wrong with the store in this folder, by page and reader: every page as HTML, and as JSON, for a job
    in each state."""
    settings = site.settings.changed({"web": WEB, "daemon.state_dir": str(folder)})
    source = Source(settings, folder / "lucid.toml", site.slurm.now_s)
    source.poll()
    source.account()
    picture, app, jobs = source.view, build_app(source), ["999"]
    if picture is not None:
        jobs += [*list(picture.waiting)[:1], *list(picture.running)[:1]]
        with closing(sqlite3.connect(source.path)) as db:
            jobs += [job_id for (job_id,) in db.execute("SELECT job_id FROM ended LIMIT 1")]
    forms = [form for page in PAGES for form in (page.path, page.twin)[: 1 + json]]
    addresses = {form.replace("{job_id}", job).replace("{user}", "ada") for form in forms for job in jobs}
    found: dict[str, str] = {}
    for reader in readers if picture is not None else readers[:1]:  # without a picture nothing is shown to anybody
        client = WebClient(app, {"x-remote-user": reader} if reader else {}, "10.0.0.1")
        for address, answer in client.get_each(sorted(addresses)).items():
            said = f"{address} for {reader or 'somebody without a name'}"
            if isinstance(answer, Exception):
                found[said] = repr(answer)
            elif answer.status_code not in ((200, 403, 404) if picture is not None else (503,)):
                found[said] = f"{answer.status_code}: {answer.text[:200]}"
    source.stop()
    return found


# -- moments of a site ------------------------------------------------------------------------------------------


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
    """Slurm starts jobs by itself, and Lucid looks on: one has ended, one runs, one waits."""
    site = SlurmSite(folder, restarts=None, partitions={"vc": "observe"})
    for number in "123":
        site.submit(number, 4, run_s=30.0 if number == "1" else 3000.0, user="ada", held=False)
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


MOMENTS = (SlurmSite, no_job, the_first_job, observed, models_without_evidence)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda made: made.__name__)
def test_every_page_stands_at_every_moment_of_a_site(moment: Callable[[Path], SlurmSite], tmp_path: Path) -> None:
    assert troubles(moment(tmp_path), tmp_path) == {}


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
    status["left_out"] = {"profiles": {"now": 2, "first": {"7": "it is no profile"}}}
    pages.slurm.store.put_view("status", {**status, "aside": {"77": "depends on another job"}})
    pages.source.poll()
    pages.source.account()
    yield pages
    pages.source.stop()


def fields_of(hint: Any, at: Way = ()) -> Iterator[Way]:
    """The same of all members that a class names."""
    if isinstance(hint, type) and has_fields(hint):
        for name in field_names(hint):
            yield (*at, name)
            yield from fields_of(get_type_hints(hint)[name], (*at, name))
    elif issubclass(get_origin(hint) or object, Mapping):
        yield from fields_of(get_args(hint)[1], (*at, "*"))
    else:
        for member in get_args(hint):
            yield from fields_of(member, at)


GONE = object()


def put(data: Any, way: Sequence[str], value: Any = GONE) -> Any:
    """The same with this value in the places to which the way leads, or without them."""
    first, *rest = way
    if isinstance(data, list):
        return [put(item, rest, value) if rest else value for item in data if rest or value is not GONE]
    if not isinstance(data, dict):
        return data
    kept = {key: item for key, item in data.items() if rest or value is not GONE or first not in (key, "*")}
    changed = {key: put(item, rest, value) if rest else value for key, item in kept.items() if first in (key, "*")}
    return {**kept, **changed}


@pytest.mark.parametrize(("view", "noun"), [("status", Status), (UPKEEP, tuple[Judged, ...])], ids=["status", UPKEEP])
def test_every_page_stands_without_any_one_member(view: str, noun: Any, whole: Pages, tmp_path: Path) -> None:
    ways = [*fields_of(noun, () if noun is Status else ("*",))]
    assert len(ways) > 10
    kept, found = whole.slurm.store.view(view), dict[str, Any]()
    shutil.copy(whole.source.path, tmp_path / "lucid.db")
    with closing(SqliteStore(tmp_path / "lucid.db")) as store:
        for way in ways:
            store.put_view(view, put(kept, way))
            if said := troubles(whole.slurm, tmp_path, ("root-ish", ""), json=False):
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
        if said := troubles(whole.slurm, folder):
            found[change] = said
    assert found == {}


# -- one member of a page lacks -----------------------------------------------------------------------------------


def absences(hint: Any, at: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Ways to all members of a page that may be absent by their type, with what stands there then."""
    if is_typeddict(hint):
        for name, member in get_type_hints(hint).items():
            origin, of = get_origin(member), get_args(member)
            if NoneType in of:
                yield (*at, name), None
            elif member is str:
                yield (*at, name), ""
            elif origin in (list, dict, Sequence, Mapping):
                yield (*at, name), {} if origin in (dict, Mapping) else []
            yield from absences(member, (*at, name))
    elif get_origin(hint) in (Union, UnionType):
        for item in get_args(hint):
            yield from absences(item, at)
    else:
        for item in get_args(hint):
            yield from absences(item, (*at, "*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_every_page_stands_without_any_one_member_that_may_be_absent(page: Page, whole: Pages) -> None:
    picture = whole.source.view
    assert picture is not None
    site = Site(whole.source, "", templates())
    ways = [*absences(get_type_hints(page.data)["return"])]
    assert len(ways) > 1
    one_of_each = [next(iter(picture.waiting)), next(iter(picture.running)), whole.slurm.store.ended()[0].job.id]
    for viewer in (Viewer("", False, Sight.NAMELESS, Sight.NAMELESS), Viewer("root-ish", True, Sight.ALL, Sight.ALL)):
        user = "ada" if viewer.name else ""
        for job_id in one_of_each if "{job_id}" in page.path else [""]:
            if not user and "{user}" in page.path:
                continue
            data = page.data(site, viewer, {"job_id": job_id, "user": user}, {"ask": "1"})
            for way, value in ways:
                page_response(site, viewer, page, put(data, way, value), page.path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_template_asks_for_nothing_that_its_page_does_not_have(page: Page, whole: Pages) -> None:
    site = Site(whole.source, "", templates())
    assert site.environment.loader is not None
    text, _, _ = site.environment.loader.get_source(site.environment, page.template)
    tree = site.environment.parse(text)
    own = {one.name for one in tree.find_all(nodes.Macro)} | {one.target for one in tree.find_all(nodes.Import)}
    own |= {one.name for one in tree.find_all(nodes.Name) if one.ctx != "load"} | {"loop"}
    asked = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "load"} - site.environment.globals.keys()
    there = on_every_page(site, Viewer("", False, Sight.ALL, Sight.ALL), "", "/").keys()
    assert asked - own - there <= get_type_hints(get_type_hints(page.data)["return"]).keys()


# -- and where something is wrong all the same ----------------------------------------------------------------------


def test_a_page_that_cannot_be_made_says_so_in_their_style(whole: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        raise RuntimeError("secret of ada")

    client = whole.client("")
    client.shows_errors = True
    monkeypatch.setattr(whole.source.history, "spans", wrong)
    page, twin = client.get("/"), client.get("/cluster.json")
    assert (page.status_code, twin.status_code) == (500, 500)
    assert "<h1>This page could not be made</h1>" in page.text
    assert 'href="/queue"' in page.text
    assert "defect of Lucid" in twin.json()["error"]
    assert "ada" not in page.text + twin.text
    monkeypatch.setattr(type(whole.source), "now_s", wrong)  # this breaks the page of the error, too
    plain = client.get("/")
    assert (plain.status_code, plain.text[:28]) == (500, "This page could not be made.")


def test_a_job_that_ended_badly_says_why_to_those_who_see_it(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.slurm.turns(2500.0, every_s=20.0)
    with sqlite3.connect(tmp_path / "lucid.db") as db:
        job_id, job = db.execute("SELECT job_id, job FROM ended LIMIT 1").fetchone()
        db.execute("UPDATE ended SET state = 'TIMEOUT', ran_s = 3600")
    pages.source.poll()
    own, other = pages.client(json.loads(job)["user"]), pages.client()
    told, others = (one.get(f"/job/{job_id}.json").json()["outcome"] for one in (own, other))
    assert (told["cause"], others["cause"], others["seen"]) == ("time_limit", None, "")
    assert "Slurm ended it. <strong>Ask for more time (--time=" in own.get(f"/job/{job_id}").text


CONFIG = Path("lucid.toml")
Asked = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    made = Pages(tmp_path_factory.mktemp("site"), private="jobs,usage")
    yield made
    made.source.stop()


def waiting_of(pages: Pages, user: str) -> str:
    assert pages.source.view is not None
    return next(job for job, (_, entry) in pages.source.view.waiting.items() if entry.job.user == user)


def test_the_form_says_what_the_command_says(pages: Pages) -> None:
    job = waiting_of(pages, "ada")
    found = pages.client("root-ish").get(f"/job/{job}.json", {"ask": "1", "vc": "vc"}).json()["why_not"]["answer"]
    assert found == json.loads(pages.slurm.ctl("why-not", job, "--vc", "vc", "--json"))
    assert list(found["if"]) == ["in VC vc"]


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> Asked:
    """``lucidctl`` is not run: it says ``answer``. With what it was asked."""
    asked: Asked = []

    def ask(_: WhatIf, *words: Any) -> dict[str, Any]:
        asked.append(words)
        return answer

    monkeypatch.setattr(WhatIf, "ask", ask)
    return asked


DECISION = {"at_s": 1.0, "partition": "vc", "verb": "hold", "placement": "", "beside": None, "mode": "pack"}
NAMING = {**DECISION, "reasons": [reason_to_dict(SameUser("bob", 2))], "words": "waits: bob"}
"""A decision as lucidctl tells it to lucidd's user: its reason names a user, and so do its words."""


def test_names_in_others_jobs_are_hidden_in_the_answer_too(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"job": "9", "as_it_is": NAMING, "starts_in_s": [1, 2, 3], "if": {"with 1 GPU": NAMING}, "name": "bobs"}
    answering(monkeypatch, row)
    job = waiting_of(pages, "ada")
    for address in (f"/job/{job}", f"/job/{job}.json"):
        text = pages.client("ada").get(address, {"ask": "1"}).text
        assert ("with 1 GPU" in text, "bob" in text) == (True, False)
    assert "bob" in pages.client("root-ish").get(f"/job/{job}.json", {"ask": "1"}).text
    assert pages.client("bob").get(f"/job/{job}", {"ask": "1"}).status_code == 404


@pytest.mark.parametrize("vc", ["nowhere", "--json", "vc\0", "\ud800"])
def test_nothing_runs_for_a_vc_that_is_none(pages: Pages, monkeypatch: pytest.MonkeyPatch, vc: str) -> None:
    asked = answering(monkeypatch, {"error": "asked"})
    params = {"ask": "1", "vc": vc.encode("utf-8", "surrogateescape" if vc != "\ud800" else "surrogatepass")}
    found = pages.client("ada").get(f"/job/{waiting_of(pages, 'ada')}.json", params)
    assert (found.json()["why_not"]["answer"], asked) == ({"error": "There is no such VC."}, [])


def test_nothing_runs_for_whom_the_job_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, {"error": "asked"})
    pages = Pages(tmp_path)
    address = f"/job/{waiting_of(pages, 'ada')}.json"
    found = pages.client("").get(address, {"ask": "1"}).json()["why_not"]["answer"]
    assert "may see the job's names" in found["error"]
    assert pages.client("").get(address).json()["why_not"]["answer"] is None
    assert asked == []


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def test_the_arguments_are_a_list() -> None:
    code = "import json, sys; print(json.dumps({'argv': sys.argv[1:]}))"
    found = WhatIf(script(code)).ask(Path("a b;c"), "9_3", 2, True, "$(x)")
    assert found["argv"] == ["why-not", "9_3", "--config=a b;c", "--json", "--gpus=2", "--share", "--vc=$(x)"]
    with pytest.raises(ConfigError, match="no job number"):
        WhatIf(script(code)).ask(CONFIG, "--help", None, False, None)


SAID = {
    "import time; time.sleep(60)": "more than 0.5 s",
    "raise SystemExit('lucidctl: job 9 does not wait')": "job 9 does not wait",
    "raise KeyError('bob')": "The log of lucid-web says more",
    "print('no JSON')": "The log of lucid-web says more",
}


@pytest.mark.parametrize("code", SAID)
def test_a_command_that_does_not_answer_is_told(code: str) -> None:
    (told,) = WhatIf(script(code), most_s=0.5).ask(CONFIG, "9", None, False, None).values()
    assert SAID[code] in told
    assert "bob" not in told


def test_so_many_are_asked_at_once_and_no_more() -> None:
    what_if = WhatIf(script("import time; time.sleep(60)"), at_once=2, most_s=0.4)
    ask = partial(what_if.ask, CONFIG, "9", None, False, None)
    with ThreadPoolExecutor(2) as pool:
        asks = [pool.submit(ask) for _ in range(2)]
        time.sleep(0.1)
        assert "try again" in ask()["error"]
    assert all("more than 0.4 s" in one.result()["error"] for one in asks)
    assert "more than" in ask()["error"], "there is room again"
