"""GRES index, device number and the driver's index are three numbers: whatever the map from one to another, the GPU
that a job is told, that is sampled for it and that is taken out is the one of its device file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from fake_slurm import fake_node
from lucid.core.ports import GpuMetrics
from lucid.node.nvml import NvmlMetrics
from lucid.node.sampler import Sampler
from lucid.setup.conf_text import read_texts
from lucid.setup.render import addressed_gres, addresses
from lucid.slurm.act.prolog_extra import Items
from lucid.slurm.records.fields import gpu_types
from lucid_hooks import seal
from nvml_emulator import Board, Gpu, build, load, smi, uuid_of

SLURM = Path(__file__).parents[3] / "slurm"
HOLES = (0, 1, 3, 4, 5, 7)
"""Device files that gres.conf of a real site names (monal02)."""


class Host:
    """A machine's GPUs in the driver's order, and those of them that gres.conf gives to Slurm."""

    def __init__(self, folder: Path, minors: Sequence[int], files: Sequence[str]) -> None:
        self.folder = folder
        self.uuids = {f"/dev/nvidia{minor}": uuid_of(place) for place, minor in enumerate(minors)}
        (folder / "nvidia-smi").write_text(smi({uuid_of(place): minor for place, minor in enumerate(minors)}))
        (folder / "nvidia-smi").chmod(0o755)
        (folder / "gres.conf").write_text("".join(f"NodeName=n1 Name=gpu File={file}\n" for file in files))
        made = addressed_gres(read_texts(folder, folder / "gres.conf"), {"n1": len(files)}, ())
        assert made.problems == []
        text = made.files[folder / "gres.conf"]
        lines = [line for line in text.splitlines() if "Name=gpu" in line]
        self.files = [line.rpartition("File=")[2] for line in lines]
        """By their place among Slurm's GPUs, which is that of their line."""
        kinds, shards = gpu_types(addresses(made.numbers["n1"]))
        assert [f"Type={kind} " in line for kind, line in zip(kinds, lines, strict=True)] == [True] * len(lines)
        self.node = fake_node("n1", "vc", gpu_types=tuple(kinds), shard_types=frozenset(shards))

    def payload(self, places: tuple[int, ...]) -> str:
        numbers = tuple(self.node.gpu_numbers[place] for place in places)
        return Items("n1", places, 9000, 0.9, numbers=() if numbers == places else numbers).payload(77, 0)

    def of_files(self, places: Sequence[int]) -> list[str]:
        return [self.uuids.get(self.files[place], "") for place in places]

    def told(self, numbers: Sequence[int]) -> str:
        """The UUIDs that the shipped hook finds for sealed GPUs."""
        words = f". {SLURM}/node_hook.sh; limit=5; gpus={','.join(map(str, numbers))}; lucid_uuids"
        path = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(
            ["sh", "-c", words], capture_output=True, text=True, check=True, env=path
        ).stdout.strip()


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[int], list[str], tuple[int, ...]]:
    """Minors in the driver's order; device files of gres.conf, in any order; a job's places among them."""
    minors = draw(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True))
    named = draw(st.permutations(minors))[: draw(st.integers(1, len(minors)))]
    style = draw(st.sampled_from(["/dev/nvidia{}"] * 4 + ["/dev/dri/renderD{}"]))
    files = [style.format(number + (128 if "render" in style else 0)) for number in named]
    job = draw(st.lists(st.integers(0, len(files) - 1), min_size=1, unique=True))
    return minors, files, tuple(sorted(job))


@given(hosts())
@settings(max_examples=examples(60, least=12), deadline=None)
def test_the_jobs_uuids_are_those_of_its_device_files(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[list[int], list[str], tuple[int, ...]]
) -> None:
    minors, files, job = made
    host = Host(tmp_path_factory.mktemp("host"), minors, files)
    sealed = seal.read(host.payload(job), "77", 0, "n1", job[-1:])  # Slurm names the last, by its place
    uuids = host.of_files(job)
    assert host.told(sealed.gpus) == (",".join(uuids) if all(uuids) else "")
    numbers = host.node.gpu_numbers
    assert [host.node.place_of(number) for number in numbers] == list(range(len(files)))
    with pytest.raises(seal.Refused, match="the seal names"):
        seal.read(host.payload(job), "77", 0, "n1", [len(files)])


UNMUNGE = "#!/bin/sh\nprintf 'STATUS: Success (0)\\nENCODE_TIME: 9999999999\\nUID: 0\\n\\n'; cat {}\n"


@pytest.mark.parametrize(
    ("minors", "style", "job", "says"),
    [
        ((4, 5, 6, 7, 0, 1, 2, 3), "/dev/nvidia{}", (0,), "/dev/nvidia0"),  # PrincetonUniversity/jobstats#34
        (tuple(range(8)), "/dev/nvidia{}", (1, 2), "/dev/nvidia1,/dev/nvidia3"),
        ((0,), "/dev/dri/renderD{}", (0,), ""),
    ],
)
def test_the_prolog_starts_mps_on_the_gpu_of_the_device_file_or_on_none(
    tmp_path: Path, minors: tuple[int, ...], style: str, job: tuple[int, ...], says: str
) -> None:
    files = [style.format(number) for number in HOLES] if len(minors) == 8 else [style.format(128)]
    host = Host(tmp_path, minors, files)
    for name in ("node_hook.sh", "unseal"):
        shutil.copy(SLURM / name, tmp_path)
    shutil.copytree(SLURM / "prolog.d", tmp_path / "prolog.d")
    shutil.copytree(SLURM / "lucid_hooks", tmp_path / "lucid_hooks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mps").mkdir()
    (tmp_path / "payload").write_text(host.payload(job))
    for name, text in (
        ("unmunge", UNMUNGE.format(tmp_path / "payload")),
        ("sampler", f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n'),
        ("mps/start", f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n'),
        ("mps/stop", "#!/bin/sh\n"),
        ("logger", f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "node.conf").write_text(
        f"sampler {tmp_path}/sampler\nmps {tmp_path}/mps\nlimit 20\ndaemon 0\npath {tmp_path}:{os.environ['PATH']}\n"
    )
    environ = {
        "SLURM_JOB_ID": "77", "SLURM_JOB_UID": "1000", "SLURM_JOB_RESTART_COUNT": "0", "SLURMD_NODENAME": "n1",
        "SLURM_JOB_GPUS": str(job[-1]), "SLURM_JOB_EXTRA": f"lucid-seal=MUNGE:{'A' * 32}:",
    }  # fmt: skip
    subprocess.run(["sh", tmp_path / "prolog.d/50-lucid"], check=True, env=environ)
    sampled, *started = (tmp_path / "log").read_text().splitlines()
    numbers = ",".join(str(host.node.gpu_numbers[place]) for place in job)
    assert f" --gpus {numbers} " in sampled
    uuids = ",".join(host.uuids[file] for file in says.split(",") if file)
    assert [line.split(" --gpus ")[1].split()[0] for line in started] == ([uuids] if uuids else [])
    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    assert ("of the GPUs with device numbers 128" in said) is not bool(uuids)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    load(build(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def nvml(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuMetrics]:
    monkeypatch.setenv("LUCID_NVML_STATE", str(tmp_path / "state"))
    made = NvmlMetrics()
    yield made
    made.close()


def test_the_sampler_and_the_look_at_conditions_go_by_the_device_file(nvml: GpuMetrics, tmp_path: Path) -> None:
    minors: Mapping[int, int] = {0: 4, 1: 9, 2: 0, 3: 1}  # by the driver's order
    board = Board(tmp_path / "state", {place: Gpu(minor=minor) for place, minor in minors.items()})
    board.gpus[2].ecc = 3
    board.write()
    sampler = Sampler(nvml, tmp_path / "spool", tmp_path, "n1")
    assert {minor: sampler._resolve(str(minor)) for minor in minors.values()} == {
        minor: uuid_of(place) for place, minor in minors.items()
    }
    assert sampler._resolve("2") is None
    assert [one.index for one in nvml.conditions() or () if one.uncorrected] == [0]
