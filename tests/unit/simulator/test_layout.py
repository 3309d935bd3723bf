"""Which nodes a replay runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import a_trace, by, nodes
from lucid.core.node import Node
from lucid.errors import ConfigError, TraceError
from lucid.simulator.layout import NodeShape, build_layout, lend_profiling_nodes, read_vcs, sized_vcs
from lucid.simulator.traces.record import Trace


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",num\na,0\n", "line 2: column num: '0' is not a number of nodes of at least 1"),
        (",num\na,-1\n", "line 2: column num: '-1'"),
        (",num\na,2\n\nb\n", "line 4: 'b' has no second column"),
        (",num\n,2\n", "line 2: column 1: VC name '' is empty"),
        (",num\na,1\na,1\n", "line 3: column 1: VC name 'a' is empty or is in the file twice"),
        ("", "names no VC"),
    ],
)
def test_a_bad_file_of_vcs_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "vcs.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_vcs(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_of_vcs_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vcs.csv").write_bytes(b",num\n\xff\xfe,1\n")
    with pytest.raises(TraceError, match="cannot be read"):
        read_vcs(tmp_path / "vcs.csv")


def test_nodes_have_the_shape_and_names_of_their_vc() -> None:
    layout = build_layout({"a": 2, "b": 1}, NodeShape(4, 11000, 32, 64000))
    assert layout["a"] == [Node("a-000", 4, 11000, 32, 64000), Node("a-001", 4, 11000, 32, 64000)]
    assert [node.name for node in layout["b"]] == ["b-000"]


def test_a_vc_is_sized_for_what_its_jobs_hold_at_once_for_95_percent_of_the_time() -> None:
    burst = [by(f"b{i}", 1, 10.0, 0.0) for i in range(40)]
    steady = [by(f"s{i}", 4, 100.0, 100.0 * i) for i in range(11)]
    # 44 GPUs are held for 10 s of the 1,000 s, 4 for the rest: the burst queues
    assert sized_vcs(a_trace(*burst, *steady), 4) == {"vc": 1}
    long_burst = [by(f"b{i}", 1, 100.0, 0.0) for i in range(40)]
    assert sized_vcs(a_trace(*long_burst, *steady), 4) == {"vc": 11}


def two_vcs() -> Trace:
    return a_trace(by("a", 8, 300.0, vc="x"), by("b", 8, 100.0, vc="y"))


def test_nodes_are_shared_out_by_gpu_hours() -> None:
    assert sized_vcs(two_vcs(), 8, 8) == {"x": 6, "y": 2}
    assert sized_vcs(two_vcs(), 8, 2) == {"x": 1, "y": 1}


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 nodes of 8 GPUs cannot hold .* \(that takes 2\); give --nodes more"):
        sized_vcs(two_vcs(), 8, 1)


def test_profiling_nodes_are_lent_by_the_largest_vcs_in_turn() -> None:
    layout = {"small": nodes(2, prefix="s"), "large": nodes(5, prefix="l"), "middle": nodes(3, prefix="m")}
    left, lent = lend_profiling_nodes(layout, a_trace(by("j", 8, vc="large")), 4)
    assert [node.name for node in lent] == ["l5", "m3", "s2", "l4"]
    assert {vc: len(own) for vc, own in left.items()} == {"small": 1, "large": 3, "middle": 2}
    assert len(layout["large"]) == 5, "the layout given stays as it was"


def test_two_percent_of_the_nodes_profile_unless_told_and_at_least_one() -> None:
    for count, lent in ((4, 1), (96, 2), (150, 3)):
        assert len(lend_profiling_nodes({"vc": nodes(count)}, a_trace(), None)[1]) == lent


def test_a_vc_keeps_room_for_its_own_largest_job() -> None:
    layout = {"vc": nodes(3, 8)}
    assert len(lend_profiling_nodes(layout, a_trace(by("j", 16)), 1)[1]) == 1
    assert lend_profiling_nodes(layout, a_trace(by("j", 17)), None)[1] == []
    with pytest.raises(ConfigError, match=r"only 1 of 3 nodes can be spared .* give --profiling-nodes 1"):
        lend_profiling_nodes(layout, a_trace(by("j", 16)), 2)
