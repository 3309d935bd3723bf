"""A testbed with control groups: a job gets the cores, memory and devices that Slurm gave it, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box

from lucid.node.processes import Owners
from testbed import cgroups, cli, host
from testbed.settings import TestbedError, layout_from

OPENED = """import errno, os
said = []
for gpu in range(4):
    try:
        os.open(f"/dev/nvidia{gpu}", os.O_RDONLY)
    except OSError as error:
        said.append(errno.errorcode[error.errno])
print(*said)
"""
"""Nothing drives the fake GPUs: one that may be opened says ENXIO, one that may not says EPERM."""


@pytest.fixture(scope="module")
def constrained(testbed: Box) -> Iterator[Box]:
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')[:20]}-cgroup"
    layout = layout_from({**os.environ, "LUCID_TESTBED_NAME": name, "LUCID_TESTBED_CGROUP": "v1"})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    cli.down(layout)
    cli.up(layout, print)
    box = Box(layout.root)
    (box.root / "tmp/opened.py").write_text(OPENED)
    yield box
    cli.down(layout)
    assert not list(Path("/sys/fs/cgroup").glob(f"*/lucid-{name}"))


@pytest.mark.slow
def test_a_job_opens_its_own_gpus_only_whether_it_has_gpus_or_slots(constrained: Box) -> None:
    whole = constrained.sbatch(
        "-w", "n1", "--gres=gpu:2", script="python3 /tmp/opened.py; srun python3 /tmp/opened.py"
    )
    constrained.wait_ended(whole)
    assert constrained.output(whole) == 2 * "ENXIO ENXIO EPERM EPERM\n"
    ask = ("-w", "n1", "--gres=shard:g3:1")  # as nobody may but Lucid and root
    slots = [constrained.sbatch(*ask, script="python3 /tmp/opened.py", user="root") for _ in range(2)]
    constrained.wait_ended(*slots)
    assert {constrained.output(number) for number in slots} == {"EPERM EPERM EPERM ENXIO\n"}


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is all there is")
def test_a_job_runs_on_its_own_cores_only(constrained: Box) -> None:
    number = constrained.sbatch("-c", "1", script="nproc")
    constrained.wait_ended(number)
    assert constrained.output(number) == "1\n"


@pytest.mark.slow
def test_a_job_that_takes_more_memory_than_it_asked_for_is_ended(constrained: Box) -> None:
    number = constrained.sbatch("--mem=100", script="python3 -c 'print(len(bytearray(400 * 2**20)))'")
    constrained.wait("its end", lambda: constrained.state(number) == "OUT_OF_MEMORY")


@pytest.mark.slow
def test_a_process_that_left_its_parents_is_still_its_jobs(constrained: Box) -> None:
    script = "(setsid sleep 4321 < /dev/null > /dev/null 2>&1 &); sleep 60"
    number = constrained.sbatch("--gres=gpu:1", script=script)

    def strays() -> list[int]:
        found = [pid for pid, name in host.processes_in(constrained.root).items() if name == "sleep"]
        return [pid for pid in found if b"4321" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    constrained.wait("the process", lambda: len(strays()) == 1)
    (pid,) = strays()
    assert Owners().job_of(pid, {}) == number
    constrained.run("scancel", number)
    constrained.wait("its end with its job", lambda: not strays())


def test_what_the_machine_lacks_is_said(tmp_path: Path) -> None:
    mounts, own = tmp_path / "mounts", tmp_path / "cgroup"
    mounts.write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    own.write_text("0::/user.slice\n")

    def said(kind: str) -> str | None:
        return cgroups.unfit(layout_from({"LUCID_TESTBED_CGROUP": kind}), mounts, own)

    assert (said("none"), said("v2")) == (None, None)
    assert "devices, freezer, memory" in (said("v1") or "")
    own.write_text("4:memory:/\n0::/\n")
    assert "Hybrid mode is not supported" in (said("v2") or "")
    mounts.write_text("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n")
    own.write_text("0::/\n")
    assert "no mount of cgroup2" in (said("v2") or "")
    with pytest.raises(TestbedError, match="none, v1 or v2"):
        layout_from({"LUCID_TESTBED_CGROUP": "v3"})
