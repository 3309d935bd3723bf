"""A bug report's bundle holds no name, whatever users call their jobs, and says what it is good for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_names_are_data import HOSTILE

from daemon_site import Site
from examples import examples
from lucid.cli.install.redaction import Redactor, _own_words
from lucid.cli.main import lucidctl

KINDS = ("user", "account", "job-name", "host", "partition")
TOLD = ("alice", "lab-of-bob", "vc-secret", "gpu01.example.org", "train_gpt5", "/home/alice/x.py", "10.1.2.3", "x1")


def leaked(name: str, text: str) -> bool:
    return name in text or json.dumps(name)[1:-1] in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    made = Site(tmp_path_factory.mktemp("bug"), restarts=None)
    for number, name in enumerate([*HOSTILE, *TOLD], start=1):
        made.submit(str(number), 4, run_s=3000.0, user=name, name=name, account=name)
    made.turns(30.0)
    return made


def test_no_hostile_name_is_in_the_bundle(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "lucidd.log"
    facts = [{"at": 1.0, "level": "info", "event": f"job 1 of {name}: held", "why": name} for name in HOSTILE + TOLD]
    plain = [f"Traceback in {name}" for name in TOLD]
    log.write_text("\n".join([*map(json.dumps, facts), *plain]))
    out = tmp_path / "report.json"
    words = ["report-bug", "--config", str(site.folder / "lucid.toml"), "--log", str(log), "--out", str(out)]
    done = CliRunner().invoke(lucidctl, words)
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert text in done.stdout, "all that it writes is shown"
    lines = "\n".join(json.dumps(line) for line in json.loads(text)["log"])
    names = [name for name in (*HOSTILE, *TOLD) if len(re.sub(r"\W", "", name)) > 3 or name in TOLD]
    assert len(names) > 30
    assert not [name for name in names if leaked(name, text)]
    assert "job 1 of" in lines, "what Lucid says stays readable"
    assert str(site.folder) not in text


def test_the_bundle_says_what_it_is_good_for(site: Site, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    words = ["report-bug", "--config", str(site.folder / "lucid.toml"), "--log", str(tmp_path / "log")]
    done = CliRunner().invoke(lucidctl, [*words, "--out", str(tmp_path / "o"), "--json"])
    data = json.loads(done.stdout)
    assert data["versions"]["python"].count(".") == 2
    jobs = [
        count
        for shape in data["queue"].values()
        for count in (*shape["waiting_by_gpus"].values(), *shape["running_by_gpus"].values())
    ]
    assert sum(jobs) == len(HOSTILE + TOLD)
    assert data["doctor"], "doctor found something"
    assert list(data["settings"]["daemon"]["partitions"].values()) == ["pack"]
    assert data["status"]["cycles"] > 0


def test_the_same_name_has_the_same_placeholder() -> None:
    scrub = Redactor({"user": ["alice", "bob"], "partition": ["main"]})
    assert scrub.text("alice beside bob, again alice in main") == "user-1 beside user-2, again user-1 in partition-1"
    first, second = scrub.text("/srv/a and /srv/b"), scrub.text("/srv/a")
    assert second in first


@settings(max_examples=examples(300))
@given(st.text(min_size=4, max_size=40).filter(lambda name: len(re.sub(r"\W", "", name)) > 3), st.sampled_from(KINDS))
def test_a_known_name_never_gets_through(name: str, kind: str) -> None:
    told = Redactor({kind: [name]}).data({"said": f"job 17 of {name} waits", name: [name, f"x{name}y"]})
    assert not leaked(name, json.dumps(told))


@settings(max_examples=examples(300))
@given(st.from_regex(r"[a-z]{2,10}[0-9]{1,4}|[a-z]{3,8}[-_.][a-z]{3,8}[0-9]", fullmatch=True))
def test_an_unknown_name_does_not_get_through_either(name: str) -> None:
    if name not in _own_words():
        assert not re.search(rf"\b{re.escape(name)}\b", Redactor({}).text(f"job 17 of {name} waits"))
