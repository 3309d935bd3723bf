"""What doctor finds in lucidd's own files and in those that Slurm reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.config.load import Settings, settings_from
from lucid.daemon.reporting.starts import START_TIMES
from lucid.errors import Finding
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.setup import doctor_state
from lucid.setup.doctor_state import check_files, check_state, root_of
from lucid.setup.install import install_files
from lucid.setup.nodes import parse_node
from lucid.setup.render import render
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.store.sqlite import SqliteStore

NOW = 1e9


class Home:
    """Everything of lucidd's as it should be; ``found`` is all that is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beat = folder / "run/heartbeat"
        self.slurm: dict[str, Any] = {}
        self.store = SqliteStore(folder / "lucid.db")
        self.store.take_lease("host:0:me", NOW, 1e6)
        (folder / "profiles").mkdir()
        write_heartbeat(self.beat, Heartbeat(NOW))

    @property
    def settings(self) -> Settings:
        daemon = {"partitions": {"vc": "pack"}, "state_dir": str(self.folder), "heartbeat": str(self.beat)}
        return settings_from({"slurm": self.slurm, "daemon": daemon, "models": {"every_h": 0}}, "test")

    def found(self) -> list[Finding]:
        findings = [item for item in check_state(self.settings, NOW) if item.level != "ok"]
        assert all(item.remedy for item in findings)
        return findings


def let_go(home: Home, *words: str) -> None:
    """Jobs that Slurm did not start as Lucid asked."""
    for number, text in enumerate(words):
        detail = f"as its user wrote it: Slurm did not start it 2 times as Lucid asked ({text})"
        home.store.begin_action(NOW - 60, f"{number}", "let go", detail, 1)


def gave_less(home: Home) -> None:
    detail = "as its user wrote it: it is its turn, and its start gave less than the job asks for: 2 of 4 tasks"
    home.store.begin_action(NOW - 60, "7", "let go", detail, 1)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_sound_home_has_no_findings(home: Home) -> None:
    assert home.found() == []


def no_lease(home: Home) -> None:
    home.store.take_lease("host:0:me", NOW - 2e6, 1.0)


def no_store(home: Home) -> None:
    home.store.close()
    (home.folder / "lucid.db").unlink()


WRONG: list[tuple[Callable[[Home], Any], str, str]] = [
    (no_store, "bad", "lucid.db"),
    (no_lease, "bad", "lucidd is down"),
    (lambda home: home.store.set_setting("paused", "1"), "warn", "paused"),
    (lambda home: home.store.set_setting("mode.gone", "pack"), "warn", "mode.gone = pack"),
    (lambda home: home.store.put_view("status", {"last_error": "it rained"}), "bad", "it rained"),
    (
        lambda home: home.store.put_view("status", {"plan_errors": {"vc": {"why": "it rained", "since_s": 5.0}}}),
        "bad",
        "(it rained): its jobs wait",
    ),
    (lambda home: home.store.put_view("status", {"breaker_why": "slow"}), "warn", "breaker is open: slow"),
    (
        lambda home: home.store.put_view("status", {"lost_tags": ["7", "9"]}),
        "warn",
        "AdminComment of 2 jobs of ours is somebody else's (7, 9)",
    ),
    (
        lambda home: home.store.put_view(
            "status", {"refused": ["job 1: no", "job 2: no", "job 3: Unspecified error"]}
        ),
        "bad",
        "the last 3 jobs, none taken since (job 3: Unspecified error)",
    ),
    (
        lambda home: home.store.put_view("status", {"list_trouble": "/x/ours cannot be written (No space left)"}),
        "bad",
        "ours cannot be written",
    ),
    (lambda home: let_go(home, "Invalid job 17", "Invalid job 4"), "warn", "did not start 2 jobs of the last day as"),
    (gave_less, "warn", "1 start of the last day gave less than the job asks for"),
    (lambda home: home.beat.unlink(), "bad", "no heartbeat"),
    (lambda home: shutil.rmtree(home.beat.parent), "bad", "no such folder"),
    (lambda home: write_heartbeat(home.beat, Heartbeat(NOW - 100)), "bad", "100 s old"),
    (lambda home: write_heartbeat(home.beat, Heartbeat(NOW + 100)), "bad", "100 s ahead"),
    (lambda home: (home.folder / "profiles").rmdir(), "warn", "no job is ever measured"),
    (
        lambda home: home.store.put_view("status", {"doubted": {"7": "it told nothing"}}),
        "warn",
        "job 7: what it reports",
    ),
]


@pytest.mark.parametrize(("change", "level", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_what_is_wrong_is_found(home: Home, change: Callable[[Home], Any], level: str, words: str) -> None:
    change(home)
    assert [(item.level, words in item.what) for item in home.found()] == [(level, True)]


def test_a_profile_that_cannot_be_read_is_named(home: Home) -> None:
    (home.folder / "profiles/7.json").write_text("{")
    findings = [item for item in check_state(home.settings, NOW) if item.level != "ok"]
    assert [(item.level, "7.json" in item.what) for item in findings] == [("warn", True)]


def test_folders_that_cannot_be_written_are_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = {home.folder, home.beat.parent}
    monkeypatch.setattr(doctor_state.os, "access", lambda path, mode: Path(path) not in shut)
    assert [item.what.split()[0] for item in home.found()] == [str(home.folder)], "lucidd writes its heartbeat"
    home.beat.unlink()
    assert {item.level: item.what.split()[0] for item in home.found()} == {
        "warn": str(home.folder), "bad": str(home.beat.parent),
    }  # fmt: skip


def test_training_without_its_libraries_is_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_state, "find_spec", lambda name: None)
    assert home.found() == []
    given = home.settings.changed({"models.every_h": 6.0})
    (finding,) = [item for item in check_state(given, NOW) if item.level != "ok"]
    assert "sklearn" in finding.what


def test_a_full_disk_is_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_state.shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 20))
    assert [item.what.partition(": ")[2][:17] for item in home.found()] == ["100 MiB are free;"]


# -- Slurm's files ---------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which all is as it should be."""
    where = tmp_path / "machine"
    install_files(where)
    etc = where / "etc/slurm"
    written = render([parse_node("n[1-2]:gpus=2,type=a100")])
    (etc / "gres.conf").write_text(written.gres_conf)
    (etc / "lucid.slurm.conf").write_text(written.slurm_conf)
    (etc / "lucid.plugin.conf").write_text(written.plugin_conf)
    (etc / "slurm.conf").write_text("ClusterName=x\ninclude /etc/slurm/lucid.slurm.conf\n")
    return where


IN_FORCE = {
    "GresTypes": "gpu,shard", "SelectType": "select/cons_tres", "PriorityType": "priority/multifactor",
    "JobSubmitPlugins": "lua", "CliFilterPlugins": "lua", "TaskProlog": "/etc/slurm/lucid/task_prolog",
    "Prolog": "/etc/slurm/lucid/prolog.d/*", "Epilog": "/etc/slurm/lucid/epilog.d/*",
}  # fmt: skip
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="files of the check must belong to root")


def files(root: Path | None, in_force: dict[str, str] | None = None, beat: str = "/run/lucid/heartbeat") -> list[str]:
    given = settings_from({"daemon": {"partitions": {"vc": "pack"}, "heartbeat": beat}}, "test")
    findings = [item for item in check_files(given, root, in_force) if item.level != "ok"]
    assert all(item.remedy for item in findings)
    return [item.what for item in findings]


@ROOT_ONLY
def test_sound_files_have_no_findings(root: Path) -> None:
    assert files(root, IN_FORCE) == files(root, None) == []
    assert files(root, IN_FORCE, beat=f"{root}/run/lucid/heartbeat") == [], "seen from outside a chroot"


@ROOT_ONLY
def test_what_the_check_of_an_installation_finds_doctor_says(root: Path) -> None:
    (root / "etc/slurm/gres.conf").write_text(
        (root / "etc/slurm/gres.conf").read_text().replace("Count=2", "Count=9")
    )
    (root / "etc/slurm/job_submit.lua").unlink()
    said = files(root, IN_FORCE)
    assert any("Count=2" in words for words in said)
    assert any(words.startswith("/etc/slurm/job_submit.lua: cannot be read") for words in said)


@ROOT_ONLY
def test_a_heartbeat_that_the_plugin_does_not_read_is_found(root: Path) -> None:
    (words,) = files(root, IN_FORCE, beat="/var/lib/lucid/heartbeat")
    assert "never sees it" in words


@ROOT_ONLY
@pytest.mark.parametrize(
    ("line", "says"), [("shards users", "`shards users`"), ("exempt 0", "exempts nobody but root"), ("exempt 77", "")]
)
def test_a_plugin_whose_settings_undo_the_order_is_found(root: Path, line: str, says: str) -> None:
    conf = root / "etc/slurm/lucid.plugin.conf"
    conf.write_text(conf.read_text() + line + "\n")
    found = files(root, IN_FORCE)
    assert len(found) == bool(says)
    assert says in "".join(found)


@ROOT_ONLY
@pytest.mark.parametrize("key", IN_FORCE)
def test_a_slurmctld_that_runs_with_an_older_file_is_found(root: Path, key: str) -> None:
    (words,) = files(root, {**IN_FORCE, key: ""})
    assert words.startswith(f"slurm.conf has {key}=")


def test_a_slurm_conf_that_includes_what_is_not_there_is_found(root: Path) -> None:
    (root / "etc/slurm/lucid.slurm.conf").unlink()
    (words,) = files(root, IN_FORCE)
    assert "lucid.slurm.conf: cannot be read" in words


def test_files_that_are_elsewhere_are_said_to_be(tmp_path: Path) -> None:
    for root in (None, tmp_path):
        (words,) = files(root)
        assert "not looked at" in words


@pytest.mark.parametrize(
    ("slurm", "where"),
    [
        ({}, "/"),
        ({"prefix": ["chroot", "--userspec=lucid", "/srv/slurm"]}, "/srv/slurm"),
        ({"prefix": ["/usr/sbin/chroot", "/srv/slurm"]}, "/srv/slurm"),
        ({"prefix": ["ssh", "head"]}, None),
    ],
)
def test_slurms_files_are_looked_for_where_the_prefix_leads(slurm: dict[str, Any], where: str | None) -> None:
    given = settings_from({"slurm": slurm, "daemon": {"partitions": {"vc": "order"}}}, "test")
    assert root_of(given) == (Path(where) if where else None)


def test_a_slurm_that_does_not_answer_is_bad_and_ends_with_1(home: Home) -> None:
    path = home.folder / "lucid.toml"
    path.write_text(
        f'[slurm]\nprefix = ["/no/such/program"]\n[daemon]\nstate_dir = "{home.folder}"\n'
        f'heartbeat = "{home.beat}"\n[daemon.partitions]\nvc = "order"\n'
    )
    done = CliRunner().invoke(lucidctl, ["doctor", "--config", str(path)])
    assert done.exit_code == 1
    assert "Slurm does not answer" in done.output
    assert "check slurm.prefix" in done.output


@pytest.mark.parametrize(
    ("inside", "of", "told"), [(20, 60, True), (44, 60, False), (50, 60, False), (5, 13, True), (9, 13, False)]
)
def test_forecasts_that_do_not_hold_are_told(home: Home, inside: int, of: int, told: bool) -> None:
    times, now_s = StartTimes(), 0.0
    for number in range(of):
        said = times.waits(f"{number}", Wait("vc", 1, 1000.0), now_s)
        now_s += said.likely_s if number < inside else said.late_s + 1000.0
        times.started(f"{number}", now_s)
    home.store.put_view(START_TIMES, times.to_dict())
    assert any("fell inside the range" in item.what for item in home.found()) is told


@pytest.mark.parametrize(
    ("make", "level", "words"),
    [
        (lambda folder: folder.mkdir(mode=0o1777), None, ""),
        (lambda folder: None, "bad", "there is no such folder"),
        (lambda folder: folder.write_text(""), "bad", "it is no folder"),
        (lambda folder: (folder.mkdir(), folder.chmod(0o755)), "warn", "not all users may write there (mode 0755)"),
        (lambda folder: (folder.mkdir(), folder.chmod(0o777)), "warn", "no sticky bit"),
    ],
)
def test_a_folder_for_reports_in_which_nobody_can_report_is_found(
    home: Home, make: Callable[[Path], Any], level: str | None, words: str
) -> None:
    folder = home.folder / "reports"
    make(folder)
    if folder.is_dir() and not level:
        folder.chmod(0o1777)
    given = home.settings.changed({"daemon.elastic.reports_dir": str(folder)})
    found = [item for item in check_state(given, NOW) if item.level != "ok"]
    assert [(item.level, words in item.what, f"{folder}" in item.remedy) for item in found] == (
        [(level, True, True)] if level else []
    )


def test_what_lucidds_own_user_may_not_read_is_found(home: Home) -> None:
    """This user, root say, may."""
    folder = home.folder / "reports"
    folder.mkdir()
    folder.chmod(0o1777)
    given = home.settings.changed({"daemon.elastic.reports_dir": str(folder)})
    told = {"words": "this user may not read it", "remedy": "chmod", "blind": True}
    home.store.put_view("status", {"reports": told})
    found = [item for item in check_state(given, NOW) if item.level != "ok"]
    assert [(item.level, item.what) for item in found] == [("bad", "as lucidd sees it: this user may not read it")]
