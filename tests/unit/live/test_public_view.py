"""Who may read what: the store is its owner's, and everybody else gets an answer without names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from builders import LIGHT
from daemon_site import Site
from lucid.core.job import Job
from lucid.core.names import Shown, UserName
from lucid.core.names import without_names as hide
from lucid.core.reason import REASONS, Reason, reason_to_dict
from lucid.daemon.reporting.public_view import Published, without_names
from lucid.daemon.reporting.replan import last_plan
from lucid.explain.queue_rows import read_stored_starts
from lucid.files import closed_to_others

NAMES = ("ada-lovelace", "secret-train", "acct-x", "secret-workload")


def busy_site(folder: Path, **daemon: object) -> Site:
    site = Site(folder, restarts=None, **daemon)
    for number in range(1, 13):
        site.submit(str(number), 4, run_s=3000.0, user="ada-lovelace", name="secret-train", account="acct-x")
        site.sampler.profiles[str(number)] = replace(LIGHT, workload="secret-workload")
    site.turns(60.0)
    return site


def names_in(text: str) -> list[str]:
    return [name for name in NAMES if name in text]


def picture_of(part: Any, reasons: list[Any]) -> dict[str, Any]:
    return {"now_s": 1.0, "partitions": {"vc": part}, "predictions": {}, "plan": {"vc": {"1": {"reasons": reasons}}}}


def test_what_is_published_names_nobody(tmp_path: Path) -> None:
    site = busy_site(tmp_path)
    text = (tmp_path / "run/public.json").read_text()
    picture = json.loads(text)["snapshot"]
    assert sum(len(part["pending"]) for part in picture["partitions"].values()) > 0
    assert picture["plan"]["vc"]
    assert names_in(json.dumps(site.store.view("snapshot"))) == [*NAMES], "they are there to be left out"
    assert names_in(text) == []
    busy_site(tmp_path, publish="nothing")
    assert not (tmp_path / "run/public.json").exists(), "a site may publish nothing"


def test_users_are_told_apart_and_labels_of_workloads_left_out() -> None:
    def entry(job_id: str, user: str) -> dict[str, object]:
        profile = {"gpu_util": 10.0, "workload": "secret-workload"}
        return {"job": {"id": job_id, "user": user, "account": "acct-x", "name": "secret-train"}, "profile": profile}

    reasons = [{"kind": "SameUser", "user": "ada-lovelace"}, {"kind": "FairShare", "account": "acct-x"}]
    part = {"pending": [entry("1", "ada-lovelace"), entry("2", "bob")], "running": [entry("3", "ada-lovelace")]}
    picture = {
        **picture_of(part, reasons),
        "arrivals": {"by": "means", "gpus_per_hour": {"vc": 3.0}},
        "fair_share": [["acct-x", "ada-lovelace", 0.25], ["acct-x", "bob", 0.5], ["acct-y", "bob", 0.75]],
        "policy": {"name": "lucid", "settings": {"fairness": {"share_bound": 2.0, "shares": {"acct-x": 3.0}}}},
    }
    made = without_names(picture)
    assert names_in(json.dumps(made)) == []
    shown = made["partitions"]["vc"]
    assert [one["job"]["user"] for one in shown["pending"] + shown["running"]] == ["user 1", "user 2", "user 1"]
    assert made["plan"]["vc"]["1"]["reasons"][0]["user"] == "user 1"
    assert made["arrivals"] == picture["arrivals"]
    assert made["fair_share"] == [["", "user 1", 0.25]], "bob has one of two accounts, and nobody says which"
    assert made["policy"]["settings"] == {"fairness": {"share_bound": 2.0, "shares": {}}}


def test_a_reason_shows_only_texts_whose_type_says_that_they_name_nobody() -> None:
    @dataclass(frozen=True, slots=True)
    class Foreign(Reason):
        """As a policy of somebody else may have it, and whatever its members are called."""

        owner: str
        names: tuple[str, ...]
        more: Mapping[str, str]
        anything: object
        said: str | None
        asks: UserName
        partner: Shown
        gpus: int

    workload, train = {"acct-x": "secret-workload"}, "secret-train"
    made = Foreign(train, ("acct-x",), workload, ["acct-x"], train, "ada-lovelace", "7", 4)
    reasons = [reason_to_dict(made)]
    try:
        (told,) = without_names(picture_of({}, reasons))["plan"]["vc"]["1"]["reasons"]
    finally:
        del REASONS["Foreign"]
    assert names_in(json.dumps(told)) == []
    assert {"asks": "user 1", "partner": "7", "gpus": 4, "holds": True}.items() <= told.items()
    job = hide(Job, {"whole_because": "it asks for 2 nodes", "name": train}, str)
    assert job == {"whole_because": "it asks for 2 nodes", "name": ""}, "each user may read why a job keeps its GPUs"


def test_ranges_of_starts_are_the_same_for_everybody(tmp_path: Path) -> None:
    site = busy_site(tmp_path)
    site.turns(12_000.0, every_s=20.0)
    for number in range(21, 33):
        site.submit(str(number), 4, run_s=3000.0, user="ada-lovelace", name="secret-train", account="acct-x")
    site.turns(120.0)
    own, told = last_plan(site.store), last_plan(Published(site.settings))
    assert tuple(own.times.known), "some waits are over"
    assert own.run_times.to_dict()["users"].keys() == {"ada-lovelace"}
    assert told.run_times.to_dict()["users"].keys() == {"user 1"}
    config = tmp_path / "lucid.toml"
    ranges = [last.starts(site.settings, config).starts_in_s for last in (own, told)]
    assert any(ranges[0].values())
    assert ranges[0] == ranges[1]
    foreseen = [read_stored_starts(store, config)[1] for store in (site.store, Published(site.settings))]
    assert foreseen[0] == foreseen[1]
    assert foreseen[0].starts_in_s.keys() == ranges[0].keys()
    assert names_in((tmp_path / "run/public.json").read_text()) == []


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_modes_are_what_each_reader_needs_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            busy_site(folder)
        finally:
            os.umask(before)
        modes = {path.name: mode_of(path) for path in (folder / "run").iterdir()}
        assert modes == {"heartbeat": 0o644, "public.json": 0o644}
        assert mode_of(folder / "run") == 0o755
        kept = [*folder.glob("lucid.db*"), *(folder / "plans").glob("*")]
        assert len(kept) > 3
        assert {mode_of(path) for path in kept} == {0o600}
        for path in kept:
            path.unlink()


def test_lucidd_and_its_children_write_for_themselves_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closed_to_others():
            subprocess.run(["touch", str(tmp_path / "file")], check=True)
            (tmp_path / "folder").mkdir()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("file", "folder")] == [0o600, 0o700]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_gets_his_answer_and_nothing_more() -> None:
    """queue, status, why-not and explain work; history and switches are refused with the remedy."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o700)
        busy_site(folder, state_dir=str(folder / "state"))
        picture = json.loads((folder / "run/public.json").read_text())["snapshot"]
        job_id = picture["partitions"]["vc"]["pending"][0]["job"]["id"]
        shares = next(one for one in picture["partitions"]["vc"]["running"] if one["partner"])
        runs = ["explain", shares["job"]["id"]]
        asked = [["queue", "--json"], ["explain", job_id], ["why-not", job_id], ["status"], ["doctor"], runs]
        forbidden = [["history"], ["pause"], ["mode", "vc", "observe"]]
        queue, story, why_not, status, doctor, pair, *refused = _as_nobody(folder, asked, forbidden)
        assert job_id in [row["job"] for row in json.loads(queue.out)["queue"]]
        closed, beside = "only lucidd's user and root may read it", f"it shares its GPUs with job {shares['partner']}"
        for told, *words in (
            (queue.out, "user 1"), (story.out, f"job {job_id}", "this is the last decision"), (doctor.out, closed),
            (why_not.out, "as it is:"), (pair.out, "starts on n", beside), (status.out, "vc", "│ lucid "),
            (refused[0].err, closed),
        ):  # fmt: skip
            assert not [one for one in words if one not in told], told
        assert "adminlevel" not in doctor.out, "it is not this user who needs the rights"
        assert [done.code != 0 for done in refused] == [True] * 3
        assert not [done.err for done in (doctor, *refused) if "Traceback" in done.err]
        assert names_in("".join(done.out + done.err for done in (queue, story, pair, *refused))) == []


class Said(NamedTuple):
    code: int
    out: str
    err: str


AS_NOBODY = """
import contextlib, importlib.readers, io, json, os, sys
asked, forbidden, place, sys.path[:] = json.loads(sys.argv[1])
import lucid.cli.jobs.queue, lucid.cli.site.modes
from click.testing import CliRunner
from lucid.cli.main import lucidctl, main
for words in asked:
    CliRunner().invoke(lucidctl, [*words, *place])
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir("/")
told = []
for words in asked + forbidden:
    sys.argv, code = ["lucidctl", *words, *place], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    told.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""
"""Python itself may lie where nobody can read it, so all that is needed is loaded first: root asks the same, where
asking changes nothing."""


def _as_nobody(folder: Path, *words: list[list[str]]) -> list[Said]:
    """All the commands, in a process of his own."""
    given = json.dumps([*words, ["--config", str(folder / "lucid.toml")], sys.path])
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, given], capture_output=True, text=True, check=True)
    return [Said(*told) for told in json.loads(done.stdout)]
