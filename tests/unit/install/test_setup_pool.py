"""The pool of VCs that lend: which VCs could lend, the line in slurm.conf, its way in and out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lucid.config.load import Settings, settings_from
from lucid.errors import ConfigError
from lucid.setup.conf_text import Texts, read_texts
from lucid.setup.install import without_table
from lucid.setup.plan import Lending, lending_of, pool_for
from lucid.slurm.records.job import SlurmNode

CONF = """\
PartitionName=DEFAULT MaxTime=2-0 OverSubscribe=NO
PartitionName=vc-a Nodes=n1 Default=YES AllowAccounts=ml,nlp
PartitionName=vc-b Nodes=n2 MAXTIME=2-0 AllowAccounts=vision AllowGroups=ALL
PartitionName=vc-c Nodes=n[3-4] State=UP AllowAccounts=ml
"""
VCS = ("vc-a", "vc-b", "vc-c")


def node(name: str, *vcs: str, kinds: tuple[str, ...] = ("a100",) * 4, **more: object) -> SlurmNode:
    states, features = frozenset({"IDLE"}), frozenset(more.pop("features", ()))  # type: ignore[call-overload]
    made = SlurmNode(name, kinds, frozenset(), 8, 1000, features, frozenset(vcs), states)
    return replace(made, **more)  # type: ignore[arg-type]


NODES = [node("n1", "vc-a"), node("n2", "vc-b"), node("n3", "vc-c"), node("n4", "vc-c")]


def texts_of(folder: Path, conf: str = CONF) -> Texts:
    path = folder / "slurm.conf"
    path.write_text(conf)
    return read_texts(folder, path)


def lending(folder: Path, asked: str, data: dict[str, object] | None = None, conf: str = CONF) -> Lending:
    return lending_of(asked, settings_from(data or {}, "test"), texts_of(folder, conf), VCS, NODES, [])


def test_like_vcs_get_a_partition_over_all_their_nodes_for_whoever_may_use_one_of_them(tmp_path: Path) -> None:
    pool = pool_for(texts_of(tmp_path), VCS, NODES)
    assert (pool.partition, pool.quotas) == ("overflow", {"vc-a": 4, "vc-b": 4, "vc-c": 8})
    assert pool.lines[1] == (
        "PartitionName=overflow Nodes=n[1-4] MaxTime=2-0 OverSubscribe=NO AllowAccounts=ml,nlp,vision AllowGroups=ALL"
    )
    assert not pool.left_out
    packed = [node("n1", "vc-a", kinds=("g0", "g1", "g2", "g3"), features=["a100"]), *NODES[1:]]
    assert pool_for(texts_of(tmp_path), VCS, packed).quotas == pool.quotas, "addresses of GPUs are no kind of GPU"
    taken = [replace(one, partitions=one.partitions | {"overflow"}) for one in NODES]
    assert pool_for(texts_of(tmp_path), VCS, taken).partition == "lucid-overflow"


@pytest.mark.parametrize(
    ("conf", "nodes", "words"),
    [
        (CONF, [*NODES[:2], node("n3", "vc-c", kinds=("h100",) * 4)], "its nodes are not like those of vc-a"),
        (CONF, [*NODES[:2], node("n3", "vc-c", features=["ib"])], "its nodes are not like those of vc-a"),
        (CONF, [*NODES[:3], node("n4", "vc-c", cpus=64)], "its nodes are of several kinds"),
        (CONF, NODES[:2], "it has no GPUs"),
        (CONF.replace("State=UP", "MaxTime=1:00 QOS=c"), NODES, "its line has another maxtime, qos than vc-a"),
        ("".join(CONF.splitlines(keepends=True)[:3]), NODES, "no line of slurm.conf says what it is"),
    ],
)
def test_a_vc_that_is_not_like_the_others_stays_outside(
    tmp_path: Path, conf: str, nodes: list[SlurmNode], words: str
) -> None:
    pool = pool_for(texts_of(tmp_path, conf), VCS, nodes)
    assert pool.quotas == {"vc-a": 4, "vc-b": 4}
    assert pool.left_out == [f"vc-c lends and borrows nothing: {words}"]


def test_vcs_over_common_nodes_are_left_to_an_administrator(tmp_path: Path) -> None:
    common = [node("n1", "vc-a", "vc-b"), NODES[2]]
    assert not pool_for(texts_of(tmp_path), VCS, common).quotas
    made = lending_of("borrow", Settings(), texts_of(tmp_path), VCS, common, [])
    assert "only a QOS can be its quota" in made.refused[0].what


def test_the_pool_is_told_of_made_and_ended(tmp_path: Path) -> None:
    """Whoever has said something about lending already is told nothing."""
    could = lending(tmp_path, "")
    assert could == Lending(notes=could.notes), "nothing but a note"
    assert "vc-a, vc-b, vc-c could lend each other idle GPUs: --lending borrow" in could.notes[0]
    assert "`lucidctl report --jobs sacct.txt --vcs vcs.csv`" in could.notes[0]
    assert lending(tmp_path, "", {"policy": {"lending": {"mode": "off"}}}) == Lending()
    made = lending(tmp_path, "borrow")
    (text,) = made.files.values()
    assert text.startswith(CONF)
    there = {"daemon": {"pool": made.tables["daemon.pool"]}, "policy": {"lending": made.tables["policy.lending"]}}
    assert not lending(tmp_path, "", there, text).notes
    assert lending(tmp_path, "borrow", there, text).tables == {"policy.lending": {}}, "all of it is done"
    ending = lending(tmp_path, "off", there, text)
    assert (ending.again, ending.files, ending.leaves) == (True, {}, ""), "jobs may run there"
    there["policy"] = {"lending": {"mode": "off"}}
    ended = lending(tmp_path, "off", there, text)
    assert (ended.gone, ended.leaves, list(ended.files.values())) == ("overflow", "daemon.pool", [CONF])
    mine = text.replace("# Lucid: ", "# mine: ")
    assert lending(tmp_path, "off", there, mine) == Lending({"policy.lending": {"mode": "off"}}), (
        "another's line stays"
    )


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
