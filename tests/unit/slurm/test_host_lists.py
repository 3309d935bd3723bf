"""Host lists are read as Slurm reads them, wherever they come from."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lucid.core.placement import hosts_in
from lucid.errors import ConfigError
from lucid.slurm.records.fields import hosts

SUFFIXES = (23, 11)
"""From here on Slurm reads text behind the last bracket."""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n[1-3,07-08]", "n1 n2 n3 n07 n08"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("x[1-2]y[1-2]z[1-2]", "x1y1z1 x1y1z2 x2y1z1 x2y1z2 x1y2z1 x1y2z2 x2y2z1 x2y2z2"),
        ("a[1-2][3-4][5-6]", "a135 a136 a235 a236 a145 a146 a245 a246"),
        ("a[1-2]-b[01-02].x", "a1-b01.x a1-b02.x a2-b01.x a2-b02.x"),
        ("n[1-2]b,c[3],", "n1b n2b c3"),
        ("a,,b\tc d", "a b c d"),
        ("n[2-]", "n2"),
        ("n[9-010]", "n9 n10"),
        ("[1-3]", "1 2 3"),
    ],
)
def test_both_readers_give_what_slurm_24_11_gave(text: str, named: str) -> None:
    assert hosts_in(text) == hosts(text) == named.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[1-", "n[1-2,]", "n[2-1]", "n[a-b]", "n[]", "n[,]", "n[1-65537]", "n[1-2]][3]", "n[0x2]", "n]1"],
)
def test_what_is_no_host_list_is_refused_by_one_and_nothing_to_the_other(text: str) -> None:
    with pytest.raises(ConfigError, match=r"host|range"):
        hosts_in(text)
    assert hosts(text) == []


def test_what_a_host_list_costs_is_bounded() -> None:
    with pytest.raises(ConfigError, match="100,000"):
        hosts_in("n[1-60000]m[1-60000]")
    assert len(hosts("n[1-60000]m[1-60000]")) == 100_000


@st.composite
def _range(draw: st.DrawFn) -> str:
    first = draw(st.integers(0, 120))
    text = str(first).zfill(draw(st.integers(0, 4)))
    return draw(st.sampled_from([text, f"{text}-{max(0, first + draw(st.integers(-1, 4)))}"]))


BRACKET = st.lists(_range(), min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
WORD = st.sampled_from(["n", "gpu-", "a.b", "r2_", "01", "7"])
NAME = st.lists(st.one_of(WORD, BRACKET, BRACKET), min_size=1, max_size=5).map("".join)
LIST = st.lists(NAME, min_size=1, max_size=3).flatmap(
    lambda names: st.sampled_from([",", ",,"]).map(lambda by: by.join(names))
)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The command, and its version."""
    command = shutil.which("scontrol")
    if command is None:
        pytest.skip("no scontrol on this machine (apt-get install slurm-client)")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        if said.returncode:
            pytest.skip(f"scontrol does not work here: {said.stderr[-200:]}")
        yield command, tuple(map(int, re.findall(r"\d+", said.stdout)))


@settings(max_examples=80)
@given(text=LIST)
def test_generated_lists_are_read_as_scontrol_reads_them(scontrol: tuple[str, tuple[int, ...]], text: str) -> None:
    command, version = scontrol
    assume(version >= SUFFIXES or not re.search(r"\][^\[,]+(,|$)", text))
    done = subprocess.run([command, "show", "hostnames", text], capture_output=True, text=True, check=False)
    if "Invalid" in done.stderr:
        with pytest.raises(ConfigError):
            hosts_in(text)
    else:
        assert hosts_in(text) == done.stdout.split()
