"""What install writes and its check says of it, and what doctor finds in lucidd's own files and in those of Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lucid.cli.main import lucidctl
from lucid.config.load import Settings, settings_from
from lucid.daemon.reporting.starts import START_TIMES
from lucid.errors import ConfigError, Finding
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.setup import doctor_state, install
from lucid.setup.doctor_state import check_files, check_state, root_of
from lucid.setup.install import FILES, PROGRAMS, check_installation, install_files, shipped_content
from lucid.setup.nodes import NodeSpec, PartitionSpec, parse_node, parse_partition
from lucid.setup.render import plugin_conf, render
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.store.sqlite import SqliteStore

NOW = 1e9


ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="files of the check must belong to root")
IN_FORCE = {
    "GresTypes": "gpu,shard", "SelectType": "select/cons_tres", "PriorityType": "priority/multifactor",
    "JobSubmitPlugins": "lua", "CliFilterPlugins": "lua", "TaskProlog": "/etc/slurm/lucid/task_prolog",
    "Prolog": "/etc/slurm/lucid/prolog.d/*", "Epilog": "/etc/slurm/lucid/epilog.d/*",
}  # fmt: skip


def lucid(*words: object) -> Result:
    return CliRunner().invoke(lucidctl, [*map(str, words)], catch_exceptions=False)


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

    def found(self, changes: Mapping[str, Any] = MappingProxyType({})) -> list[Finding]:
        findings = [item for item in check_state(self.settings.changed({**changes}), NOW) if item.level != "ok"]
        assert all(item.remedy for item in findings)
        return findings


REFUSED = [f"Slurm did not start it 2 times as Lucid asked (Invalid job {job})" for job in (17, 4)]
GAVE_LESS = "it is its turn, and its start gave less than the job asks for: 2 of 4 tasks"


def let_go(home: Home, *words: str) -> None:
    """Jobs that run as their users wrote them."""
    for number, text in enumerate(words):
        home.store.begin_action(NOW - 60, f"{number}", "let go", f"as its user wrote it: {text}", 1)


def says(**status: Any) -> Callable[[Home], Any]:
    """What lucidd shows of itself."""
    return lambda home: home.store.put_view("status", status)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


WRONG: list[tuple[Callable[[Home], Any], str, str]] = [
    (lambda home: (home.store.close(), (home.folder / "lucid.db").unlink()), "bad", "lucid.db"),
    (lambda home: home.store.take_lease("host:0:me", NOW - 2e6, 1.0), "bad", "lucidd is down"),
    (lambda home: home.store.set_setting("paused", "1"), "warn", "paused"),
    (lambda home: home.store.set_setting("mode.gone", "pack"), "warn", "mode.gone = pack"),
    (says(last_error="it rained"), "bad", "it rained"),
    (says(plan_errors={"vc": {"why": "it rained", "since_s": 5.0}}), "bad", "(it rained): its jobs wait"),
    (says(breaker_why="slow"), "warn", "breaker is open: slow"),
    (says(lost_tags=["7", "9"]), "warn", "AdminComment of 2 jobs of ours is somebody else's (7, 9)"),
    (says(refused=["job 1: no", "job 2: no", "job 3: Odd"]), "bad", "the last 3 jobs, none taken since (job 3: Odd)"),
    (says(list_trouble="/x/ours cannot be written (No space left)"), "bad", "ours cannot be written"),
    (says(doubted={"7": "it told nothing"}), "warn", "job 7: what it reports"),
    (lambda home: let_go(home, *REFUSED), "warn", "did not start 2 jobs of the last day as"),
    (lambda home: let_go(home, GAVE_LESS), "warn", "1 start of the last day gave less than the job asks for"),
    (lambda home: home.beat.unlink(), "bad", "no heartbeat"),
    (lambda home: shutil.rmtree(home.beat.parent), "bad", "no such folder"),
    (lambda home: write_heartbeat(home.beat, Heartbeat(NOW - 100)), "bad", "100 s old"),
    (lambda home: write_heartbeat(home.beat, Heartbeat(NOW + 100)), "bad", "100 s ahead"),
    (lambda home: (home.folder / "profiles").rmdir(), "warn", "no job is ever measured"),
    (lambda home: (home.folder / "profiles/7.json").write_text("{"), "warn", "7.json"),
]


@pytest.mark.parametrize(("change", "level", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_what_is_wrong_is_found(home: Home, change: Callable[[Home], Any], level: str, words: str) -> None:
    change(home)
    assert [(item.level, words in item.what) for item in home.found()] == [(level, True)]


def test_folders_that_cannot_be_written_are_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = {home.folder, home.beat.parent}
    monkeypatch.setattr(doctor_state.os, "access", lambda path, mode: Path(path) not in shut)
    assert [item.what.split()[0] for item in home.found()] == [str(home.folder)], "lucidd writes its heartbeat"
    home.beat.unlink()
    found = {item.level: item.what.split()[0] for item in home.found()}
    assert found == {"warn": str(home.folder), "bad": str(home.beat.parent)}
    monkeypatch.undo()
    write_heartbeat(home.beat, Heartbeat(NOW))
    monkeypatch.setattr(doctor_state.shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 20))
    assert [item.what.partition(": ")[2][:17] for item in home.found()] == ["100 MiB are free;"]


def test_training_without_its_libraries_is_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_state, "find_spec", lambda name: None)
    assert home.found() == []
    (finding,) = home.found({"models.every_h": 6.0})
    assert "sklearn" in finding.what


def files(root: Path | None, in_force: dict[str, str] | None = None, beat: str = "/run/lucid/heartbeat") -> list[str]:
    given = settings_from({"daemon": {"partitions": {"vc": "pack"}, "heartbeat": beat}}, "test")
    findings = [item for item in check_files(given, root, in_force) if item.level != "ok"]
    assert all(item.remedy for item in findings)
    return [item.what for item in findings]


@ROOT_ONLY
def test_sound_files_have_no_findings_and_a_heartbeat_that_the_plugin_does_not_read_is_one(root: Path) -> None:
    assert files(root, IN_FORCE) == files(root, None) == []
    assert files(root, IN_FORCE, beat=f"{root}/run/lucid/heartbeat") == [], "seen from outside a chroot"
    (words,) = files(root, IN_FORCE, beat="/var/lib/lucid/heartbeat")
    assert "never sees it" in words


ADDED = [("shards users", "`shards users`"), ("exempt 0", "exempts nobody but root"), ("exempt 77", "")]


@ROOT_ONLY
@pytest.mark.parametrize(("line", "says"), ADDED)
def test_a_plugin_whose_settings_undo_the_order_is_found(root: Path, line: str, says: str) -> None:
    conf = root / "etc/slurm/lucid.plugin.conf"
    conf.write_text(conf.read_text() + line + "\n")
    assert [says in words for words in files(root, IN_FORCE)] == [True] * bool(says)


@ROOT_ONLY
@pytest.mark.parametrize("key", IN_FORCE)
def test_a_slurmctld_that_runs_with_an_older_file_is_found(root: Path, key: str) -> None:
    (words,) = files(root, {**IN_FORCE, key: ""})
    assert words.startswith(f"slurm.conf has {key}=")


@ROOT_ONLY
def test_files_that_are_not_there_are_said_to_be(root: Path) -> None:
    for name in ("job_submit.lua", "lucid.slurm.conf"):
        (root / "etc/slurm" / name).unlink()
        assert any(f"/etc/slurm/{name}: cannot be read" in words for words in files(root, IN_FORCE))
    for elsewhere in (None, root / "elsewhere"):
        (words,) = files(elsewhere)
        assert "not looked at" in words


PREFIXES = {"": "/", "chroot --userspec=me /srv": "/srv", "/usr/sbin/chroot /srv": "/srv", "ssh head": None}


def test_slurms_files_are_looked_for_where_the_prefix_leads(home: Home) -> None:
    for prefix, where in PREFIXES.items():
        home.slurm = {"prefix": prefix.split()} if prefix else {}
        assert root_of(home.settings) == (Path(where) if where else None), prefix


def test_a_slurm_that_does_not_answer_is_bad_and_ends_with_1(home: Home) -> None:
    path = home.folder / "lucid.toml"
    daemon = f'state_dir = "{home.folder}"\nheartbeat = "{home.beat}"\n[daemon.partitions]\nvc = "order"\n'
    path.write_text(f'[slurm]\nprefix = ["/no/such/program"]\n[daemon]\n{daemon}')
    done = lucid("doctor", "--config", path)
    assert (done.exit_code, "check slurm.prefix" in done.output) == (1, True)
    assert "Slurm does not answer" in done.output


def test_forecasts_that_do_not_hold_are_told(home: Home) -> None:
    for inside, of, told in ((20, 60, True), (44, 60, False), (50, 60, False), (5, 13, True), (9, 13, False)):
        times, now_s = StartTimes(), 0.0
        for number in range(of):
            said = times.waits(f"{number}", Wait("vc", 1, 1000.0), now_s)
            now_s += said.likely_s if number < inside else said.late_s + 1000.0
            times.started(f"{number}", now_s)
        home.store.put_view(START_TIMES, times.to_dict())
        assert any("fell inside the range" in item.what for item in home.found()) is told, (inside, of)


BLIND = {"words": "this user may not read it", "remedy": "chmod /reports", "blind": True}
REPORTS: list[tuple[int | None, str | None, str, dict[str, Any]]] = [
    (0o1777, None, "", {}),
    (None, "bad", "there is no such folder", {}),
    (0, "bad", "it is no folder", {}),
    (0o755, "warn", "not all users may write there (mode 0755)", {}),
    (0o777, "warn", "no sticky bit", {}),
    (0o1777, "bad", "as lucidd sees it: this user may not read it", BLIND),
]


@pytest.mark.parametrize(
    ("mode", "level", "words", "told"), REPORTS, ids=[words or "sound" for _, _, words, _ in REPORTS]
)
def test_a_folder_for_reports_in_which_nobody_can_report_is_found(
    home: Home, mode: int | None, level: str | None, words: str, told: dict[str, Any]
) -> None:
    """By the one who asks, or by lucidd, whose user may not read what this one may."""
    folder = home.folder / "reports"
    if mode is not None:
        folder.mkdir() if mode else folder.touch()
        folder.chmod(mode)
    home.store.put_view("status", {"reports": told} if told else {})
    found = home.found({"daemon.elastic.reports_dir": str(folder)})
    assert [(item.level, words in item.what, "/reports" in item.remedy) for item in found] == (
        [(level, True, True)] if level else []
    )


PARTS = sorted((install.shipped_folder() / "job_submit").glob("*.lua"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which all is as it should be."""
    install_files(tmp_path)
    etc = tmp_path / "etc/slurm"
    written = render([parse_node("n[1-2]:gpus=2,type=a100")])
    (etc / "gres.conf").write_text(written.gres_conf)
    (etc / "lucid.slurm.conf").write_text(written.slurm_conf)
    (etc / "lucid.plugin.conf").write_text(written.plugin_conf)
    (etc / "slurm.conf").write_text("ClusterName=x # a comment\nINCLUDE /etc/slurm/lucid.slurm.conf\n")
    return tmp_path


def bad(root: Path) -> dict[str, str]:
    found = [finding for finding in check_installation(root) if not finding.ok]
    assert all(finding.remedy for finding in found)
    return {finding.about: finding.says for finding in found}


def changed(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_plugin_is_one_file_of_all_its_parts(root: Path) -> None:
    installed = (root / "etc/slurm/job_submit.lua").read_text(encoding="utf-8")
    assert installed == "".join(part.read_text(encoding="utf-8") for part in PARTS)
    assert re.findall(r"^function (\w+)", installed, re.MULTILINE) == ["slurm_job_submit", "slurm_job_modify"]


def test_a_part_of_the_plugin_uses_only_what_those_before_it_define() -> None:
    defined = dict[str, str]()
    for part in PARTS:
        for name in re.findall(r"^local (?:function )?(\w+)", part.read_text(encoding="utf-8"), re.MULTILINE):
            assert defined.setdefault(name, part.name) == part.name, f"{name} is in {defined[name]}, too"
    for part in PARTS:
        code = re.sub(r"--[^\n]*|\"[^\"\n]*\"", "", part.read_text(encoding="utf-8"))
        used = set(re.findall(r"(?<![.:\w])[A-Za-z_]\w*", code)) & defined.keys()
        assert {name for name in used if defined[name] > part.name} == set()


def test_every_file_that_is_shipped_is_installed_and_the_other_way_round() -> None:
    folder = install.shipped_folder()
    # What else is Python there drives the testbed and the demonstration; nothing of it is installed.
    files = [path for path in folder.rglob("*") if path.is_file() and not path.suffix.startswith(".py")]
    files += [*(folder / "lucid_hooks").glob("*.py"), *(folder / "lucid_job").glob("*.py")]
    files += list(folder.glob("lucid_*.py"))
    # Boards and alert rules are for the host of Prometheus and Grafana, which need not be one of Slurm's.
    files = [path for path in files if path.parent.name != "grafana"]
    shipped = {str(path.relative_to(folder)) for path in files}
    assert {str(path.relative_to(folder)) for file in FILES for path in folder.glob(file.source)} == shipped
    declared = (folder.parent / "pyproject.toml").read_text()
    globs = ("systemd/", "lucid_hooks/", "lucid_job/", "job_submit/")
    assert all(file.source in declared or file.source.startswith(globs) for file in FILES)


@ROOT_ONLY
def test_what_install_and_render_write_passes_the_check(root: Path) -> None:
    assert bad(root) == {}
    done = lucid("slurm", "install", "--check", "--root", root)
    assert (done.exit_code, "BAD" in done.output) == (0, False)


def test_units_start_the_programs_of_the_installation_that_wrote_them() -> None:
    (unit,) = [file for file in FILES if file.source == "systemd/lucidd.service"]
    assert b"\nExecStart=/srv/x/lucidd --config " in shipped_content(unit, Path("/srv/x"))
    assert install.program_in(shipped_content(unit)) == PROGRAMS / "lucidd"
    started = {install.program_in(shipped_content(file)) for file in FILES}
    assert {program.parent for program in started if program} == {PROGRAMS}
    assert install.programs_here(Path("/srv/chroot")) == PROGRAMS
    assert (install.programs_here(Path("/")) / "lucidd").exists()


@ROOT_ONLY
def test_a_unit_of_another_installation_is_as_shipped(root: Path) -> None:
    path = root / "etc/systemd/system/lucidd.service"
    changed(path, "/opt/lucid/bin", "/srv/x")
    assert bad(root) == {}
    changed(path, "Restart=on-failure", "Restart=no")
    assert bad(root).keys() == {"/etc/systemd/system/lucidd.service"}


@ROOT_ONLY
def test_without_models_to_ask_for_nobody_misses_the_filter(root: Path) -> None:
    for name, line, says in (
        ("lucid.slurm.conf", "CliFilterPlugins=lua\n", "names a GPU model"),
        ("lucid.plugin.conf", "type a100\n", "steps mapped"),
        ("lucid.plugin.conf", "steps mapped\n", ""),
    ):
        changed(root / "etc/slurm" / name, line, "")
        found = bad(root)
        assert found.keys() == ({"CliFilterPlugins"} if says else set())
        assert says in str(found)


EDITS = [
    ("job_submit.lua", "Lucid", "Lukid", "/etc/slurm/job_submit.lua", "not the one"),
    ("lucid.slurm.conf", "SubmitPlugins=lua", "SubmitPlugins=partition", "JobSubmitPlugins", "is partition"),
    ("lucid.slurm.conf", "CliFilterPlugins=lua", "", "CliFilterPlugins", "not set"),
    ("lucid.slurm.conf", "GresTypes=gpu,shard", "GresTypes=gpu", "GresTypes", "no slots"),
    ("lucid.slurm.conf", "priority/multifactor", "priority/basic", "PriorityType", "SiteFactor"),
    ("lucid.slurm.conf", "TaskProlog=", "#", "TaskProlog", "inner srun"),
    ("lucid.slurm.conf", "shard:g1:2", "shard:g1:4", "node n1", "slurm.conf declares"),
    ("gres.conf", "Type=g1 Count=2", "Type=g1 Count=4", "node n2", "Count=2"),
    ("gres.conf", "Type=g1", "Type=a100", "node n1", "each GPU needs its own"),
    ("gres.conf", "AutoDetect=off", "AutoDetect=nvml", "gres.conf", "hides their addresses"),
    ("gres.conf", "Name=gpu", "Name=nic", "gres.conf", "has no line"),
    ("lucid.plugin.conf", "heartbeat", "hearing", "lucid.plugin.conf", "no heartbeat"),
]


@ROOT_ONLY
@pytest.mark.parametrize(("file", "old", "new", "about", "says"), EDITS, ids=[says for *_, says in EDITS])
def test_what_is_wrong_is_found_and_named(root: Path, file: str, old: str, new: str, about: str, says: str) -> None:
    changed(root / "etc/slurm" / file, old, new)
    assert says in bad(root)[about]


@ROOT_ONLY
def test_files_that_others_may_write_or_nobody_run_are_found(root: Path) -> None:
    (root / "run/lucid").mkdir(parents=True)
    (root / "run/lucid").chmod(0o777)
    assert "anybody can write" in bad(root)["heartbeat"]
    (root / "run/lucid").chmod(0o755)
    (root / "etc/slurm/lucid/task_prolog").chmod(0o644)
    (root / "etc/slurm/lucid/lucid-release").chmod(0o775)
    for name in ("gres.conf", "lucid.plugin.conf", "cli_filter.lua"):
        (root / "etc/slurm" / name).unlink()
    found = bad(root)
    assert "executed" in found["/etc/slurm/lucid/task_prolog"]
    assert "written by others" in found["/etc/slurm/lucid/lucid-release"]
    assert {"gres.conf", "lucid.plugin.conf", "/etc/slurm/cli_filter.lua"} <= set(found)


def test_a_plugin_of_the_sites_own_is_not_replaced_unasked_and_units_go_beside_it(tmp_path: Path) -> None:
    def written() -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}

    own = tmp_path / "etc/slurm/job_submit.lua"
    own.parent.mkdir(parents=True)
    own.write_text("-- ours since 2011\n")
    with pytest.raises(ConfigError, match=r"(?s)nothing was written.*--units leaves it alone"):
        install_files(tmp_path)
    assert written() == {"etc/slurm/job_submit.lua"}
    assert lucid("slurm", "install", "--units", "--root", tmp_path).exit_code == 0
    assert own.read_text() == "-- ours since 2011\n"
    assert written() == {file.target for file in FILES if file.daemon} | {"etc/slurm/job_submit.lua"}
    assert len(json.loads(lucid("slurm", "install", "--root", tmp_path, "--force", "--json").output)) == len(FILES)
    assert own.with_name("job_submit.lua.before-lucid").read_text() == "-- ours since 2011\n"
    assert "Lucid" in own.read_text()
    assert lucid("slurm", "install", "--root", tmp_path).output.count("unchanged") == len(FILES)


def test_check_ends_with_1_and_says_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        check_installation(tmp_path)
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("SelectType=select/linear\n")
    done = lucid("slurm", "install", "--check", "--root", tmp_path)
    assert (done.exit_code, "BAD  SelectType: is select/linear" in done.output) == (1, True)
    assert "remedy: SelectType=select/cons_tres in slurm.conf" in done.output
    listed = lucid("slurm", "install", "--check", "--json", "--root", tmp_path)
    assert {"about", "ok", "says", "remedy"} == set(json.loads(listed.output)[0])


def test_what_the_package_brings_is_left_to_the_package(root: Path) -> None:
    """Units below /etc/systemd/system would go before the package's own, and stay after an upgrade."""
    unit, release = "usr/lib/systemd/system/lucidd.service", "usr/sbin/lucid-release"
    ours = "etc/systemd/system/lucidd.service"
    for name in (unit, release):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("of the package\n")
    for folder in ("etc/systemd", "etc/slurm/lucid"):
        shutil.rmtree(root / folder)
    assert {f"packaged   {root / name}" for name in (unit, release)} <= {*install_files(root)}
    assert not (root / "etc/systemd").exists()
    assert not (root / "etc/slurm/lucid/lucid-release").exists()
    assert (root / "etc/slurm/lucid/prolog.d/50-lucid").exists(), "what is Slurm's is copied all the same"
    found = {finding.about: finding.says for finding in check_installation(root)}
    assert (found[f"/{unit}"], f"/{ours}" in found) == ("of the package", False)
    # one that an earlier way of installing left goes before the package's: that is said
    (root / ours).parent.mkdir(parents=True)
    (root / ours).write_text("[Service]\nExecStart=/opt/old/lucidd\n")
    assert f"/{ours}" in bad(root)


WRONG_NODES = {
    "no gpus": ["n1"],
    "host list": ["n 1:gpus=1", "n1;rm:gpus=1"],
    "range": ["n[2-1]:gpus=1"],
    "whole number": ["n1:gpus=x"],
    "between 1 and 64": ["n1:gpus=0"],
    "gpus=…": ["n1:gpu=4"],
    "twice": ["n1:gpus=1,gpus=2"],
    "feature": ["n1:gpus=1,type=a b"],
    "path with {}": ["n1:gpus=1,devices=/dev/nvidia"],
    "": ["prof", "=n1", "p=", "p q=n1", "p=n1:MaxTime", "p=n1:A=b c"],
}


def test_nodes_and_partitions_are_read_with_every_key_and_wrong_ones_refused_with_why() -> None:
    node = parse_node("n[1-2]:gpus=4,cpus=16,mem=64000,type=a100,features=nvlink+ib,devices=/dev/fake{}")
    assert node == NodeSpec("n[1-2]", 4, 16, 64000, "a100", ("nvlink", "ib"), "/dev/fake{}")
    read = parse_partition("prof=n3:MaxTime=60,State=UP", profiling=True)
    assert read == PartitionSpec("prof", "n3", profiling=True, options={"MaxTime": "60", "State": "UP"})
    for says, text in ((says, text) for says, texts in WRONG_NODES.items() for text in texts):
        with pytest.raises(ConfigError, match=says or "."):
            parse_node(text) if says else parse_partition(text)


def test_each_gpu_gets_an_address_and_two_slots() -> None:
    written = render(
        [parse_node("n[1-2]:gpus=2,cpus=8,mem=9000,type=a100")],
        [parse_partition("vc=n1", default=True), parse_partition("prof=n2:MaxTime=60")],
        node_extra={"n[1-2]": "Port=[1-2]"},
    )
    assert written.gres_conf.splitlines()[-4:] == [
        "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1",
        "NodeName=n[1-2] Name=shard Type=g0 Count=2 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Type=g1 Count=2 File=/dev/nvidia1",
    ]
    assert written.slurm_conf.splitlines()[-3:] == [
        "NodeName=n[1-2] CPUs=8 RealMemory=9000 Feature=a100 Gres=gpu:g0:1,gpu:g1:1,shard:g0:2,shard:g1:2 Port=[1-2]",
        "PartitionName=vc Nodes=n1 Default=YES",
        "PartitionName=prof Nodes=n2 MaxTime=60",
    ]
    told = {"type a100", "heartbeat /run/lucid/heartbeat", "shards lucid", "steps mapped"}
    assert told <= set(written.plugin_conf.splitlines())
    assert {"CliFilterPlugins=lua", "JobSubmitPlugins=lua"} <= set(written.slurm_conf.splitlines())
    assert "steps mapped" in render([parse_node("n1:gpus=2")]).plugin_conf.splitlines(), "without a model, too"
    assert "steps" not in plugin_conf(["a100"], "/run/lucid/heartbeat", filtered=False)


TWICE = (["n[1-2]:gpus=1", "n2:gpus=2"], [], "n2 is given twice")


def test_nodes_and_partitions_must_agree() -> None:
    one = ["n1:gpus=1"]
    for nodes, partitions, says in (TWICE, (one, ["p=n[1-2]"], "names host n2"), (one, ["a=n1", "b=n1"], "default")):
        with pytest.raises(ConfigError, match=says):
            render([*map(parse_node, nodes)], [parse_partition(text, default=True) for text in partitions])


def test_what_else_a_node_line_says_is_kept() -> None:
    words = ["slurm", "render", "--nodes", "n[1-2]:gpus=2", "--node-extra"]
    done = lucid(*words, "n[1-2]=Sockets=2 CoresPerSocket=16").output
    (line,) = [line for line in done.splitlines() if line.startswith("NodeName=n[1-2] Gres")]
    assert line.endswith(" Sockets=2 CoresPerSocket=16")
    with pytest.raises(ConfigError, match=r"n\[1-2\]"):
        lucid(*words, "n3=Weight=1")
