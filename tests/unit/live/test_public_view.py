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
from typing import NamedTuple

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


def test_what_is_published_names_nobody(tmp_path: Path) -> None:
    site = busy_site(tmp_path)
    text = (tmp_path / "run/public.json").read_text()
    picture = json.loads(text)["snapshot"]
    assert sum(len(part["pending"]) for part in picture["partitions"].values()) > 0
    assert picture["plan"]["vc"]
    own = json.dumps(site.store.view("snapshot"))
    assert [name for name in NAMES if name in own] == [*NAMES], "they are there to be left out"
    assert not [name for name in NAMES if name in text]


def test_users_are_told_apart_and_labels_of_workloads_left_out() -> None:
    def entry(job_id: str, user: str) -> dict[str, object]:
        profile = {"gpu_util": 10.0, "workload": "secret-workload"}
        return {"job": {"id": job_id, "user": user, "account": "acct-x", "name": "secret-train"}, "profile": profile}

    reasons = [{"kind": "SameUser", "user": "ada-lovelace"}, {"kind": "FairShare", "account": "acct-x"}]
    part = {"pending": [entry("1", "ada-lovelace"), entry("2", "bob")], "running": [entry("3", "ada-lovelace")]}
    picture = {
        "now_s": 1.0,
        "partitions": {"vc": part},
        "predictions": {},
        "arrivals": {"by": "means", "gpus_per_hour": {"vc": 3.0}},
        "plan": {"vc": {"1": {"reasons": reasons}}},
        "fair_share": [["acct-x", "ada-lovelace", 0.25], ["acct-x", "bob", 0.5], ["acct-y", "bob", 0.75]],
        "policy": {"name": "lucid", "settings": {"fairness": {"share_bound": 2.0, "shares": {"acct-x": 3.0}}}},
    }
    made = without_names(picture)
    assert not [name for name in NAMES if name in json.dumps(made)]
    users = [
        one["job"]["user"] for one in (*made["partitions"]["vc"]["pending"], *made["partitions"]["vc"]["running"])
    ]
    assert users == ["user 1", "user 2", "user 1"]
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

    made = Foreign(
        "secret-train", ("acct-x",), {"acct-x": "secret-workload"}, ["acct-x"], "secret-train", "ada-lovelace", "7", 4
    )
    reasons = [reason_to_dict(made)]
    try:
        picture = {"now_s": 1.0, "partitions": {}, "predictions": {}, "plan": {"vc": {"1": {"reasons": reasons}}}}
        (told,) = without_names(picture)["plan"]["vc"]["1"]["reasons"]
    finally:
        del REASONS["Foreign"]
    assert not [name for name in NAMES if name in json.dumps(told)]
    assert {"asks": "user 1", "partner": "7", "gpus": 4, "holds": True}.items() <= told.items()


def test_why_a_job_keeps_its_gpus_is_no_secret() -> None:
    told = hide(Job, {"whole_because": "it asks for 2 nodes", "name": "secret-train"}, str)
    assert told == {"whole_because": "it asks for 2 nodes", "name": ""}


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
    text = (tmp_path / "run/public.json").read_text()
    assert not [name for name in NAMES if name in text]


def test_a_site_may_publish_nothing(tmp_path: Path) -> None:
    busy_site(tmp_path)
    assert (tmp_path / "run/public.json").exists()
    busy_site(tmp_path, publish="nothing")
    assert not (tmp_path / "run/public.json").exists()


def test_modes_are_what_each_reader_needs_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            busy_site(folder)
        finally:
            os.umask(before)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (folder / "run").iterdir()}
        assert modes == {"heartbeat": 0o644, "public.json": 0o644}
        assert (folder / "run").stat().st_mode & 0o777 == 0o755
        kept = [*folder.glob("lucid.db*"), *(folder / "plans").glob("*")]
        assert len(kept) > 3
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
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
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o600, 0o700]


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
        assert "user 1" in queue.out
        assert f"job {job_id}" in story.out
        assert "this is the last decision" in story.out
        assert "starts on n" in pair.out
        assert f"it shares its GPUs with job {shares['partner']}" in pair.out
        assert "as it is:" in why_not.out
        assert "vc" in status.out
        assert "│ lucid " in status.out, "the policy is no secret either"
        assert all(done.code for done in refused)
        assert all("Traceback" not in done.err for done in refused)
        assert "only lucidd's user and root may read it" in refused[0].err
        assert "only lucidd's user and root may read it" in doctor.out
        assert "adminlevel" not in doctor.out, "it is not this user who needs the rights"
        assert "Traceback" not in doctor.err
        said = "".join(done.out + done.err for done in (queue, story, pair, *refused))
        assert not [name for name in NAMES if name in said]


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
