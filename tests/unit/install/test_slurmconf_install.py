from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import ConfigError
from lucid.setup.install import (
    FILES,
    PROGRAMS,
    check_installation,
    install_files,
    program_in,
    programs_here,
    shipped_content,
    shipped_folder,
)
from lucid.setup.nodes import NodeSpec, PartitionSpec, parse_node, parse_partition
from lucid.setup.render import plugin_conf, render

PARTS = sorted((shipped_folder() / "job_submit").glob("*.lua"))
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="files of the check must belong to root")


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
    folder = shipped_folder()
    # What else is Python there drives the testbed and the demonstration; nothing of it is installed.
    files = [path for path in folder.rglob("*") if path.is_file() and not path.suffix.startswith(".py")]
    files += [*(folder / "lucid_hooks").glob("*.py"), *(folder / "lucid_job").glob("*.py")]
    files += list(folder.glob("lucid_*.py"))
    # Boards and alert rules are for the host of Prometheus and Grafana, which need not be one of Slurm's.
    files = [path for path in files if path.parent.name != "grafana"]
    shipped = {str(path.relative_to(folder)) for path in files}
    sources = {str(path.relative_to(folder)) for file in FILES for path in folder.glob(file.source)}
    assert sources == shipped
    declared = (folder.parent / "pyproject.toml").read_text()
    globs = ("systemd/", "lucid_hooks/", "lucid_job/", "job_submit/")
    assert all(file.source in declared or file.source.startswith(globs) for file in FILES)


@ROOT_ONLY
def test_what_install_and_render_write_passes_the_check(root: Path) -> None:
    assert bad(root) == {}
    done = CliRunner().invoke(lucidctl, ["slurm", "install", "--check", "--root", str(root)])
    assert (done.exit_code, "BAD" in done.output) == (0, False)


def test_units_alone_leave_slurms_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/job_submit.lua").write_text("-- the site's own")
    with pytest.raises(ConfigError, match="--units leaves it alone"):
        install_files(tmp_path)
    done = CliRunner().invoke(lucidctl, ["slurm", "install", "--units", "--root", str(tmp_path)])
    assert done.exit_code == 0
    assert (tmp_path / "etc/slurm/job_submit.lua").read_text() == "-- the site's own"
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {file.target for file in FILES if file.daemon} | {"etc/slurm/job_submit.lua"}


def test_units_start_the_programs_of_the_installation_that_wrote_them() -> None:
    (unit,) = [file for file in FILES if file.source == "systemd/lucidd.service"]
    assert b"\nExecStart=/srv/x/lucidd --config " in shipped_content(unit, Path("/srv/x"))
    assert program_in(shipped_content(unit)) == PROGRAMS / "lucidd"
    for file in FILES:
        program = program_in(shipped_content(file))
        assert program is None or program.parent == PROGRAMS
    assert programs_here(Path("/srv/chroot")) == PROGRAMS
    assert (programs_here(Path("/")) / "lucidd").exists()


@ROOT_ONLY
def test_a_unit_of_another_installation_is_as_shipped(root: Path) -> None:
    path = root / "etc/systemd/system/lucidd.service"
    path.write_text(path.read_text().replace("/opt/lucid/bin", "/srv/x"))
    assert bad(root) == {}
    path.write_text(path.read_text().replace("Restart=on-failure", "Restart=no"))
    assert bad(root).keys() == {"/etc/systemd/system/lucidd.service"}


@ROOT_ONLY
def test_without_models_to_ask_for_nobody_misses_the_filter(root: Path) -> None:
    for name, line, says in (
        ("lucid.slurm.conf", "CliFilterPlugins=lua\n", "names a GPU model"),
        ("lucid.plugin.conf", "type a100\n", "steps mapped"),
        ("lucid.plugin.conf", "steps mapped\n", ""),
    ):
        path = root / "etc/slurm" / name
        path.write_text(path.read_text().replace(line, ""))
        found = bad(root)
        assert found.keys() == ({"CliFilterPlugins"} if says else set())
        assert says in str(found)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("file", "old", "new", "about", "says"),
    [
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
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_and_named(root: Path, file: str, old: str, new: str, about: str, says: str) -> None:
    path = root / "etc/slurm" / file
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))
    assert says in bad(root)[about]


@ROOT_ONLY
def test_files_that_others_may_write_or_nobody_run_are_found(root: Path) -> None:
    (root / "etc/slurm/lucid/task_prolog").chmod(0o644)
    (root / "etc/slurm/lucid/lucid-release").chmod(0o775)
    (root / "etc/slurm/gres.conf").unlink()
    (root / "etc/slurm/lucid.plugin.conf").unlink()
    (root / "etc/slurm/cli_filter.lua").unlink()
    (root / "run/lucid").mkdir(parents=True)
    found = bad(root)
    assert "executed" in found["/etc/slurm/lucid/task_prolog"]
    assert "written by others" in found["/etc/slurm/lucid/lucid-release"]
    assert {"gres.conf", "lucid.plugin.conf", "/etc/slurm/cli_filter.lua"} <= set(found)


def test_a_heartbeat_that_anybody_may_write_is_found(root: Path) -> None:
    (root / "run/lucid").mkdir(parents=True)
    (root / "run/lucid").chmod(0o777)
    assert "anybody can write" in bad(root)["heartbeat"]


def test_the_check_says_so_where_there_is_no_slurm_conf(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        check_installation(tmp_path)


def test_a_plugin_of_the_sites_own_is_not_replaced_unasked(tmp_path: Path) -> None:
    own = tmp_path / "etc/slurm/job_submit.lua"
    own.parent.mkdir(parents=True)
    own.write_text("-- ours since 2011\n")
    with pytest.raises(ConfigError, match="nothing was written"):
        install_files(tmp_path)
    assert [str(p) for p in tmp_path.rglob("*") if p.is_file()] == [str(own)]
    done = CliRunner().invoke(lucidctl, ["slurm", "install", "--root", str(tmp_path), "--force", "--json"])
    assert len(json.loads(done.output)) == len(FILES)
    assert own.with_name("job_submit.lua.before-lucid").read_text() == "-- ours since 2011\n"
    assert "Lucid" in own.read_text()
    again = CliRunner().invoke(lucidctl, ["slurm", "install", "--root", str(tmp_path)])
    assert again.output.count("unchanged") == len(FILES)


def test_check_ends_with_1_and_says_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("SelectType=select/linear\n")
    done = CliRunner().invoke(lucidctl, ["slurm", "install", "--check", "--root", str(tmp_path)])
    assert done.exit_code == 1
    assert "BAD  SelectType: is select/linear" in done.output
    assert "remedy: SelectType=select/cons_tres in slurm.conf" in done.output
    listed = CliRunner().invoke(lucidctl, ["slurm", "install", "--check", "--json", "--root", str(tmp_path)])
    assert {"about", "ok", "says", "remedy"} == set(json.loads(listed.output)[0])


def test_what_the_package_brings_is_left_to_the_package(root: Path) -> None:
    """Units below /etc/systemd/system would go before the package's own, and stay after an upgrade."""
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for name in ("lucidd.service", "lucid-release.timer"):
        (units / name).write_text("of the package\n")
    release = root / "usr/sbin/lucid-release"
    release.parent.mkdir(parents=True)
    release.write_text("#!/bin/sh\n")
    for folder in ("etc/systemd", "etc/slurm/lucid"):
        shutil.rmtree(root / folder)
    done = install_files(root)
    assert f"packaged   {units / 'lucidd.service'}" in done
    assert f"packaged   {release}" in done
    assert not (root / "etc/systemd").exists()
    assert not (root / "etc/slurm/lucid/lucid-release").exists()
    assert (root / "etc/slurm/lucid/prolog.d/50-lucid").exists(), "what is Slurm's is copied all the same"
    found = {finding.about: finding.says for finding in check_installation(root)}
    assert found["/usr/lib/systemd/system/lucidd.service"] == "of the package"
    assert "/etc/systemd/system/lucidd.service" not in found
    # one that an earlier way of installing left goes before the package's: that is said
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/lucidd.service").write_text("[Service]\nExecStart=/opt/old/lucidd\n")
    assert "/etc/systemd/system/lucidd.service" in bad(root)


def test_nodes_are_read_with_every_key() -> None:
    node = parse_node("n[1-2]:gpus=4,cpus=16,mem=64000,type=a100,features=nvlink+ib,devices=/dev/fake{}")
    assert node == NodeSpec("n[1-2]", 4, 16, 64000, "a100", ("nvlink", "ib"), "/dev/fake{}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n1", "no gpus"),
        ("n 1:gpus=1", "host list"),
        ("n1;rm:gpus=1", "host list"),
        ("n[2-1]:gpus=1", "range"),
        ("n1:gpus=x", "whole number"),
        ("n1:gpus=0", "between 1 and 64"),
        ("n1:gpu=4", "gpus=…"),
        ("n1:gpus=1,gpus=2", "twice"),
        ("n1:gpus=1,type=a b", "feature"),
        ("n1:gpus=1,devices=/dev/nvidia", "path with {}"),
    ],
)
def test_a_wrong_node_is_refused_and_says_why(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_node(text)


def test_partitions_are_read_with_options() -> None:
    assert parse_partition("prof=n3:MaxTime=60,State=UP", profiling=True) == PartitionSpec(
        "prof", "n3", profiling=True, options={"MaxTime": "60", "State": "UP"}
    )
    for wrong in ("prof", "=n1", "p=", "p q=n1", "p=n1:MaxTime", "p=n1:A=b c"):
        with pytest.raises(ConfigError):
            parse_partition(wrong)


@pytest.mark.parametrize("node", ["n1:gpus=2,type=a100", "n1:gpus=2"])
def test_the_plugin_is_told_that_srun_maps_its_steps_where_the_filter_is_configured(node: str) -> None:
    written = render([parse_node(node)])
    assert {"CliFilterPlugins=lua", "JobSubmitPlugins=lua"} <= set(written.slurm_conf.splitlines())
    assert "steps mapped" in written.plugin_conf.splitlines()
    assert "steps" not in plugin_conf(["a100"], "/run/lucid/heartbeat", filtered=False)


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
    assert "type a100" in written.plugin_conf
    assert "heartbeat /run/lucid/heartbeat" in written.plugin_conf
    assert "shards lucid" in written.plugin_conf


@pytest.mark.parametrize(
    ("nodes", "partitions", "says"),
    [(["n[1-2]:gpus=1", "n2:gpus=2"], [], "n2 is given twice"), (["n1:gpus=1"], ["p=n[1-2]"], "names host n2")],
)
def test_nodes_and_partitions_must_agree(nodes: list[str], partitions: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        render([parse_node(text) for text in nodes], [parse_partition(text) for text in partitions])


def test_two_default_partitions_are_refused() -> None:
    both = [parse_partition("a=n1", default=True), parse_partition("b=n1", default=True)]
    with pytest.raises(ConfigError, match="default"):
        render([parse_node("n1:gpus=1")], both)


def test_what_else_a_node_line_says_is_kept() -> None:
    words = ["slurm", "render", "--nodes", "n[1-2]:gpus=2", "--node-extra", "n[1-2]=Sockets=2 CoresPerSocket=16"]
    done = CliRunner().invoke(lucidctl, words)
    (line,) = [line for line in done.output.splitlines() if line.startswith("NodeName=n[1-2] Gres")]
    assert line.endswith(" Sockets=2 CoresPerSocket=16")
    wrong = CliRunner().invoke(lucidctl, [*words[:-1], "n3=Weight=1"])
    assert isinstance(wrong.exception, ConfigError)
    assert "n[1-2]" in str(wrong.exception)
