"""What setup plans on a machine, from what Slurm and the machine say: steps, refusals, and what it leaves alone."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lucid.config.load import Settings, settings_from
from lucid.errors import ConfigError
from lucid.places import Mode
from lucid.setup.apply import apply_plan, resume_nodes
from lucid.setup.backup import Journal
from lucid.setup.conf_text import Change, Texts, diff_of, read_texts
from lucid.setup.host_actions import Machine
from lucid.setup.install import without_table
from lucid.setup.plan import Lending, Options, Plan, lending_of, make_plan, pool_for
from lucid.setup.site import Site
from lucid.slurm.records.configuration import Limits, Partition
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.preemption import Preemption

PROGRAMS = Path("/opt/lucid/bin")
CONF = """\
ClusterName=x
GresTypes=gpu
SelectType=select/cons_tres
PriorityType=priority/multifactor
NodeName=n[1-2] Gres=gpu:a100:2
PartitionName=vc-a Nodes=n1
PartitionName=vc-b Nodes=n2
"""

SET_UP = {"user": True, "unit_on": True}
PARTITIONS = [Partition(name, "UP", False, False, (), 0, None, False) for name in ("vc-a", "vc-b")]


class Head(Machine):
    """A machine of which is said what it has: nothing is run here."""

    user, unit_on, rights, answers = False, False, "", False

    def has_user(self) -> bool:  # type: ignore[override]
        return self.user

    def is_on(self, unit: str) -> bool:
        return self.unit_on

    def slurm_rights(self) -> str | None:
        return self.rights

    def tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 0 if self.answers else 1, "", "")


def vc_node(name: str, *vcs: str, kinds: tuple[str, ...] = ("a100",) * 4, **more: object) -> SlurmNode:
    states, features = frozenset({"IDLE"}), frozenset(more.pop("features", ()))  # type: ignore[call-overload]
    made = SlurmNode(name, kinds, frozenset(), 8, 1000, features, frozenset(vcs), states)
    return replace(made, **more)  # type: ignore[arg-type]


def running(**config: str) -> Site:
    known = {"SLURM_CONF": "/etc/slurm/slurm.conf", "AccountingStorageType": "accounting_storage/slurmdbd"}
    known |= {"PriorityType": "priority/multifactor", "SelectType": "select/cons_tres", "GresTypes": "gpu"}
    nodes = [vc_node(f"n{number}", vc, kinds=("a100", "a100")) for number, vc in ((1, "vc-a"), (2, "vc-b"))]
    return Site((24, 11), {**known, **config}, nodes, PARTITIONS, [])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    etc = tmp_path / "etc/slurm"
    etc.mkdir(parents=True)
    (etc / "slurm.conf").write_text(CONF)
    (etc / "gres.conf").write_text("NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-1]\n")
    return tmp_path


def plan_for(
    root: Path, mode: str, seen: Site | None = None, *partitions: str, has: Any = MappingProxyType({}), **options: Any
) -> Plan:
    """``has``: what the machine has."""
    head = Head()
    vars(head).update(has)
    return make_plan(root, head, seen or running(), Options(Mode(mode), partitions or ("vc-a",), **options), PROGRAMS)


def what(plan: Plan) -> str:
    """Of the one thing that is refused."""
    (refusal,) = plan.refused
    assert refusal.remedy
    return refusal.what


def kinds(plan: Plan) -> list[str]:
    return [kind for kind, _ in plan.steps]


def done(plan: Plan) -> None:
    for change in plan.changes:
        change.path.parent.mkdir(parents=True, exist_ok=True)
        change.path.write_bytes(change.after)


def test_observing_touches_nothing_of_slurms(root: Path) -> None:
    plan = plan_for(root, "observe")
    assert kinds(plan) == ["user", "daemon"]
    paths = {str(change.path.relative_to(root)) for change in plan.changes}
    assert {path for path in paths if path.startswith("etc/slurm/")} == {"etc/slurm/lucid/lucid-release"}
    assert all(change.before is None for change in plan.changes)
    assert '+vc-a = "observe"\n' in diff_of(plan.changes)
    done(plan)
    assert plan_for(root, "observe", has=SET_UP).empty


def test_private_jobs_are_seen_by_an_operator_only_and_an_unknown_partition_is_an_error(root: Path) -> None:
    with pytest.raises(ConfigError, match="no partition 'vcx'; it has vc-a, vc-b"):
        plan_for(root, "observe", None, "vcx")
    assert "slurm-user" in kinds(plan_for(root, "observe", running(PrivateData="accounts,jobs")))
    (refusal,) = plan_for(root, "observe", running(PrivateData="jobs", AccountingStorageType="")).refused
    assert "take jobs out of PrivateData" in refusal.remedy


def test_a_package_brings_units_and_lucid_release(root: Path) -> None:
    unit = root / "usr/lib/systemd/system/lucidd.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    paths = {str(change.path.relative_to(root)) for change in plan_for(root, "observe").changes}
    assert paths == {"etc/lucid/lucid.toml"}
    texts = {change.path.name: change.after for change in plan_for(root, "pack").changes}
    assert b"sampler /usr/bin/lucid-sampler\n" in texts["node.conf"]


def test_order_mode_needs_an_operator_and_site_factors_and_pack_mode_the_usual_slurm_conf(root: Path) -> None:
    assert "slurm-user" in kinds(plan_for(root, "order"))
    assert "slurm-user" not in kinds(plan_for(root, "order", has={"rights": "operator"}))
    assert "priority/basic" in what(plan_for(root, "order", running(PriorityType="priority/basic")))
    assert "does not answer" in what(plan_for(root, "order", has={"rights": None}))
    for mode in ("order", "pack"):
        assert "no slurmdbd" in what(plan_for(root, mode, running(AccountingStorageType="")))
    elsewhere = running(SLURM_CONF="/opt/slurm/etc/slurm.conf")
    assert "slurm.conf is /opt/slurm/etc/slurm.conf" in what(plan_for(root, "pack", elsewhere))


def test_order_mode_says_which_vcs_could_lend_in_pack_mode(root: Path) -> None:
    def told(*partitions: str) -> list[str]:
        notes = plan_for(root, "order", None, *partitions).notes
        return [note for note in notes if "could lend each other idle GPUs in pack mode" in note]

    assert "--partitions vc-a,vc-b --lending borrow --dry-run" in told("vc-a", "vc-b")[0]
    assert not told()
    (root / "etc/slurm/slurm.conf").unlink()
    assert not told("vc-a", "vc-b"), "order mode needs no file of Slurm's"


def test_pack_mode_plans_files_nodes_and_what_slurmctld_has_to_have(root: Path) -> None:
    plan = plan_for(root, "pack")
    assert kinds(plan) == ["user", "slurm-user", "reconfigure", "daemon", "folder"]
    assert plan.hosts == ["n1", "n2"], "one NodeName line"
    assert plan.wanted["GresTypes"] == "gpu,shard"
    assert plan.wanted["JobSubmitPlugins"] == "lua"
    assert any("--gpu-mem a100=" in note for note in plan.notes)
    assert "as it is here" in " ".join(plan.notes)
    served = plan_for(root, "pack", running(SlurmctldParameters="enable_configless"))
    assert "reach them by themselves" in " ".join(served.notes)
    own = root / "etc/slurm/job_submit.lua"
    own.write_text("function slurm_job_submit() return slurm.SUCCESS end\n")
    refused = plan_for(root, "pack")
    assert "job_submit.lua of the site's own" in what(refused)
    assert own not in {change.path for change in refused.changes}
    own.unlink()
    assert ("/etc/slurm/lucid/task_prolog", "0755") in plan.node_files
    assert ("/etc/slurm/gres.conf", "0644") in plan.node_files
    done(plan)
    again = plan_for(root, "pack", has=SET_UP)
    assert not again.changes
    assert "daemon" in kinds(again), "lucidd has not read its file, where the first run waited for the nodes"
    assert "reconfigure" in kinds(again), "the files are written, and slurmctld does not run with them yet"
    assert again.hosts == ["n1", "n2"]
    toml = root / "etc/lucid/lucid.toml"
    toml.write_text(toml.read_text().replace("vc-a", '# mine\n"vc-a"'))
    assert not plan_for(root, "pack").changes, "the site's own way of writing it stays"


BUSY = "#!/bin/sh\n# nvidia-smi is asked elsewhere\n. /opt/lib/gpus.sh\n"


def scripts_of(root: Path, **texts: str) -> None:
    """The site's own prologs: /opt/prolog.sh and /opt/epilog.d/*."""
    (root / "etc/slurm/slurm.conf").write_text(CONF + "Prolog=/opt/prolog.sh\nEpilog=/opt/epilog.d/*\n")
    found = {"prolog.sh": BUSY, "lib/gpus.sh": "nvidia-smi -i $SLURM_JOB_GPUS\n", "epilog.d/10-mail": "#!/bin/sh\n"}
    for name, text in {**found, **texts}.items():
        (root / "opt" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "opt" / name).write_text(text)


def test_pack_mode_waits_for_a_word_on_scripts_that_look_for_processes_or_gpus(root: Path) -> None:
    scripts_of(root)
    [refusal] = plan_for(root, "pack").refused
    assert "/opt/prolog.sh runs in the site's Prolog" in refusal.what
    assert "(SLURM_JOB_GPUS, nvidia-smi)" in refusal.what
    assert "--site-script /opt/prolog.sh=first-last" in refusal.remedy
    assert not plan_for(root, "order").refused

    def chosen(**scripts: str) -> Plan:
        return plan_for(root, "pack", site_scripts={f"/opt/{k}": v for k, v in scripts.items()})

    plan = chosen(**{"prolog.sh": "first-last", "epilog.d/10-mail": "not-guests"})
    assert not plan.refused
    done(plan)
    node = root / "etc/slurm/lucid/node.conf"
    lines = ["site-prolog /opt/prolog.sh", "site-epilog /opt/epilog.d/*", "site-run first-last /opt/prolog.sh"]
    assert node.read_text().splitlines()[3:] == [*lines, "site-run not-guests /opt/epilog.d/10-mail"]
    node.write_text("# mine\n" + node.read_text())
    assert not plan_for(root, "pack").changes, "the choice stays"
    done(chosen(**{"prolog.sh": "always"}))
    assert "# mine\n" in node.read_text()
    assert "site-run always /opt/prolog.sh\n" in node.read_text()
    (root / "opt/epilog.d/20-kill").write_text("#!/bin/sh\npkill -u $SLURM_JOB_USER\n")
    assert "/opt/epilog.d/20-kill" in plan_for(root, "pack").refused[0].what
    with pytest.raises(ConfigError, match=r"did you mean .*/opt/prolog.sh"):
        chosen(**{"prolog.sj": "always"})


def test_undo_gives_the_site_its_prologs_back_byte_for_byte(root: Path) -> None:
    scripts_of(root)
    conf = root / "etc/slurm/slurm.conf"
    conf.write_bytes(conf.read_bytes().replace(b"Prolog=/opt", b"\tProlog = /opt") + b"# the end \xff")
    before = conf.read_bytes()
    journal = Journal.read(root)
    with journal.locked():
        journal.begin("pack")
        journal.apply(plan_for(root, "pack", site_scripts={"/opt/prolog.sh": "first-last"}).changes)
        journal.done()
        assert b"\tProlog = /etc/slurm/lucid/site_scripts\n" in conf.read_bytes()
        journal.undo(journal.restores())
    assert conf.read_bytes() == before
    assert not (root / "etc/slurm/lucid/node.conf").exists()


def test_a_script_that_nobody_can_read_here_needs_a_word_and_one_that_looks_at_nothing_needs_none(root: Path) -> None:
    scripts_of(root, **{"prolog.sh": "#!/bin/sh\nmkdir -p /scratch/$SLURM_JOB_ID\n"})
    assert not plan_for(root, "pack").refused
    (root / "opt/prolog.sh").write_bytes(b"\x7fELF\0\0")
    assert "cannot be read as text" in what(plan_for(root, "pack"))
    (root / "opt/prolog.sh").unlink()
    assert "is not on this host" in what(plan_for(root, "pack"))


def test_lines_of_the_sites_own_in_the_plugins_settings_stay_and_a_slurm_without_lua_is_refused(root: Path) -> None:
    """slurmctld ends over a plugin that it does not find."""
    settings = root / "etc/slurm/lucid.plugin.conf"
    settings.write_text("heartbeat /run/lucid/heartbeat\nexempt 0\n")
    [change] = [change for change in plan_for(root, "pack").changes if change.path == settings]
    assert change.after == b"heartbeat /run/lucid/heartbeat\nexempt 0\nsteps mapped\ntype a100\n"
    folder = root / "usr/lib/slurm"
    folder.mkdir(parents=True)
    seen = running(PluginDir="/usr/lib/slurm")
    assert "Slurm's Lua plugin is not installed" in what(plan_for(root, "pack", seen))
    (folder / "job_submit_lua.so").touch()
    assert not plan_for(root, "pack", seen).refused


UNSERVED: list[tuple[dict[str, Any], str]] = [
    ({"vc-a": {"ExclusiveUser": "YES"}}, "one user's at a time"),
    ({"vc-a": {"OverSubscribe": "FORCE:4"}}, "FORCE:4"),
    ({"vc-a": {"OverSubscribe": "EXCLUSIVE"}}, "EXCLUSIVE"),
    ({"vc-b": {"ExclusiveUser": "YES"}}, ""),
    ({"vc-a": {"LLN": "YES"}}, ""),
    ({"vc-a": {"MaxCPUsPerNode": "4"}}, "MaxCPUsPerNode=4"),
    ({"vc-a": {"MaxCPUsPerNode": "8"}}, ""),  # nodes have 8
    ({}, "QOS four"),
]


@pytest.mark.parametrize(("seen", "words"), UNSERVED, ids=str)
def test_what_packing_does_not_serve_is_refused_for_these_partitions_alone(root: Path, seen: Any, words: str) -> None:
    """And order mode goes."""
    limits = Limits() if seen else Limits(("QOS four (gres/gpu=4)",))
    site = running(AccountingStorageEnforce="associations,limits")
    site = replace(site, partition_settings=seen, gpu_limits=limits)
    plan = plan_for(root, "pack", site)
    assert [words in each.what for each in plan.refused] == [True] * bool(words)
    assert any("LLN" in note for note in plan.notes) is ("LLN" in str(seen))
    assert all("order" in each.remedy for each in plan.refused if "vc-a" in each.what)
    assert not plan_for(root, "order", site).refused


def test_partitions_over_common_nodes_are_packed_only_in_layers(root: Path) -> None:
    both = ("vc-a", "vc-b")
    seen = replace(running(), nodes=[vc_node(name, *both, kinds=("a100", "a100")) for name in ("n1", "n2")])
    assert "node n1 stands in vc-a and vc-b" in what(plan_for(root, "pack", seen, *both))
    tiers, modes = {"vc-a": 10, "vc-b": 1}, {"vc-a": "REQUEUE", "vc-b": "REQUEUE"}
    by = Preemption("partition", "REQUEUE", tiers=tiers, modes=modes)
    plan = plan_for(root, "pack", replace(seen, preemption=by), *both)
    assert not plan.refused
    assert any("jobs of vc-a claim GPUs of vc-b" in note for note in plan.notes)
    naps = replace(seen, preemption=replace(by, modes={**modes, "vc-b": "SUSPEND"}))
    assert "jobs of vc-b are suspended for jobs of vc-a" in plan_for(root, "pack", naps, *both).refused[0].what


def test_a_drained_node_is_remembered_until_slurmctld_has_resumed_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.locked():
        journal.begin("pack")
        for name in ("n1", "n2"):
            journal.note("drained", name)
        head = Head()
        assert resume_nodes(head, journal) == ["n2", "n1"]
        head.answers = True
        assert resume_nodes(head, journal) == []
        assert journal.has("drained") == []


def test_files_that_slurmctld_refuses_are_not_taken_back_over_an_edit(tmp_path: Path) -> None:
    """They were written by a run before, and edited since: the message says both, and nothing is lost."""
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("a\n")
    journal = Journal(tmp_path)
    with journal.locked():
        journal.begin("pack")
        journal.apply([Change(conf, b"a\n", b"a\nb\n")])
        conf.write_text("a\nb\nmine\n")
        plan = Plan(Mode.PACK, ("vc-a",), [], [("reconfigure", "")], wanted={"GresTypes": "gpu,shard"})
        with pytest.raises(ConfigError, match=r"(?s)could not use the new files.*\n\+mine\n"):
            apply_plan(tmp_path, Head(), journal, plan, {}, drain=False, nodes_have_files=True, say=print)
    assert conf.read_text() == "a\nb\nmine\n"
    assert Journal.read(tmp_path).state == "applying", "it can be undone"


def test_setup_offers_the_past_of_the_site_for_estimates(root: Path) -> None:
    def offers(plan: Plan) -> bool:
        return any("--past DAYS" in note for note in plan.notes)

    assert offers(plan_for(root, "observe"))
    assert not offers(plan_for(root, "observe", running(AccountingStorageType="(null)")))
    plan = plan_for(root, "observe", past_days=30)
    assert not offers(plan)
    assert b"catch_up_days = 30" in next(change for change in plan.changes if change.path.name == "lucid.toml").after
    done(plan)
    assert not offers(plan_for(root, "observe"))


POOL_CONF = """\
PartitionName=DEFAULT MaxTime=2-0 OverSubscribe=NO
PartitionName=vc-a Nodes=n1 Default=YES AllowAccounts=ml,nlp
PartitionName=vc-b Nodes=n2 MAXTIME=2-0 AllowAccounts=vision AllowGroups=ALL
PartitionName=vc-c Nodes=n[3-4] State=UP AllowAccounts=ml
"""
VCS = ("vc-a", "vc-b", "vc-c")
NODES = [vc_node("n1", "vc-a"), vc_node("n2", "vc-b"), vc_node("n3", "vc-c"), vc_node("n4", "vc-c")]


def texts_of(folder: Path, conf: str = POOL_CONF) -> Texts:
    path = folder / "slurm.conf"
    path.write_text(conf)
    return read_texts(folder, path)


def lending(folder: Path, asked: str, data: dict[str, object] | None = None, conf: str = POOL_CONF) -> Lending:
    return lending_of(asked, settings_from(data or {}, "test"), texts_of(folder, conf), VCS, NODES, [])


def test_like_vcs_get_a_partition_over_all_their_nodes_for_whoever_may_use_one_of_them(tmp_path: Path) -> None:
    pool = pool_for(texts_of(tmp_path), VCS, NODES)
    assert (pool.partition, pool.quotas) == ("overflow", {"vc-a": 4, "vc-b": 4, "vc-c": 8})
    assert pool.lines[1] == (
        "PartitionName=overflow Nodes=n[1-4] MaxTime=2-0 OverSubscribe=NO AllowAccounts=ml,nlp,vision AllowGroups=ALL"
    )
    assert not pool.left_out
    packed = [vc_node("n1", "vc-a", kinds=("g0", "g1", "g2", "g3"), features=["a100"]), *NODES[1:]]
    assert pool_for(texts_of(tmp_path), VCS, packed).quotas == pool.quotas, "addresses of GPUs are no kind of GPU"
    taken = [replace(one, partitions=one.partitions | {"overflow"}) for one in NODES]
    assert pool_for(texts_of(tmp_path), VCS, taken).partition == "lucid-overflow"
    common = [vc_node("n1", "vc-a", "vc-b"), NODES[2]]
    assert not pool_for(texts_of(tmp_path), VCS, common).quotas, "this is left to an administrator"
    made = lending_of("borrow", Settings(), texts_of(tmp_path), VCS, common, [])
    assert "only a QOS can be its quota" in made.refused[0].what


UNLIKE = [
    (POOL_CONF, [*NODES[:2], vc_node("n3", "vc-c", kinds=("h100",) * 4)], "its nodes are not like those of vc-a"),
    (POOL_CONF, [*NODES[:2], vc_node("n3", "vc-c", features=["ib"])], "its nodes are not like those of vc-a"),
    (POOL_CONF, [*NODES[:3], vc_node("n4", "vc-c", cpus=64)], "its nodes are of several kinds"),
    (POOL_CONF, NODES[:2], "it has no GPUs"),
    (POOL_CONF.replace("State=UP", "MaxTime=1:00 QOS=c"), NODES, "its line has another maxtime, qos than vc-a"),
    ("".join(POOL_CONF.splitlines(keepends=True)[:3]), NODES, "no line of slurm.conf says what it is"),
]


@pytest.mark.parametrize(("conf", "nodes", "words"), UNLIKE, ids=[words for *_, words in UNLIKE])
def test_a_vc_that_is_not_like_the_others_stays_outside(tmp_path: Path, conf: str, nodes: Any, words: str) -> None:
    pool = pool_for(texts_of(tmp_path, conf), VCS, nodes)
    assert pool.quotas == {"vc-a": 4, "vc-b": 4}
    assert pool.left_out == [f"vc-c lends and borrows nothing: {words}"]


def test_the_pool_is_told_of_made_and_ended(tmp_path: Path) -> None:
    """A site that has already decided about lending gets no hint."""
    could = lending(tmp_path, "")
    assert could == Lending(notes=could.notes), "nothing but a note"
    assert "vc-a, vc-b, vc-c could lend each other idle GPUs: --lending borrow" in could.notes[0]
    assert "`lucidctl report --jobs sacct.txt --vcs vcs.csv`" in could.notes[0]
    assert lending(tmp_path, "", {"policy": {"lending": {"mode": "off"}}}) == Lending()
    made = lending(tmp_path, "borrow")
    (text,) = made.files.values()
    assert text.startswith(POOL_CONF)
    there = {"daemon": {"pool": made.tables["daemon.pool"]}, "policy": {"lending": made.tables["policy.lending"]}}
    assert not lending(tmp_path, "", there, text).notes
    assert lending(tmp_path, "borrow", there, text).tables == {"policy.lending": {}}, "all of it is done"
    ending = lending(tmp_path, "off", there, text)
    assert (ending.again, ending.files, ending.leaves) == (True, {}, ""), "jobs may run there"
    there["policy"] = {"lending": {"mode": "off"}}
    ended = lending(tmp_path, "off", there, text)
    assert (ended.gone, ended.leaves, list(ended.files.values())) == ("overflow", "daemon.pool", [POOL_CONF])
    mine = lending(tmp_path, "off", there, text.replace("# Lucid: ", "# mine: "))
    assert mine == Lending({"policy.lending": {"mode": "off"}}), "another's line stays"


def test_a_run_that_ended_half_way_is_gone_on_with(tmp_path: Path) -> None:
    """lucid.toml may outlive slurm.conf's line (``--undo`` without ``--purge``), and slurmctld's partition that line
    (no ``--nodes-have-files``)."""
    pool = {"partition": "overflow", "quotas": {"vc-a": 4, "vc-b": 4, "vc-c": 8}}
    kept = lending(tmp_path, "", {"daemon": {"pool": pool}, "policy": {"lending": {"mode": "borrow"}}})
    assert list(kept.files.values()) == list(lending(tmp_path, "borrow").files.values())
    assert not lending(tmp_path, "", {"daemon": {"pool": pool}, "policy": {"lending": {"mode": "off"}}}).files
    texts = texts_of(tmp_path)
    off = settings_from({"policy": {"lending": {"mode": "off"}}}, "test")
    assert lending_of("off", off, texts, VCS, NODES, [], "overflow").gone == "overflow"


def test_a_table_leaves_lucid_toml_and_all_other_lines_stay() -> None:
    first, last = "# mine\n[daemon]\n# why\n", '[daemon.partitions]\na = "pack"\n'
    text = first + '[daemon.pool]\npartition = "x"\nquotas = { a = 1 }\n\n' + last
    assert without_table(text, "daemon.pool") == first + last
    assert without_table(text, "web") == text
    with pytest.raises(ConfigError, match="take it out there yourself"):
        without_table('[daemon]\npool = { partition = "x" }\n', "daemon.pool")
