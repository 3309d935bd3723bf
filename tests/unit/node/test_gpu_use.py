"""Use of GPUs as nvidia-smi and NVML tell it, and which number is whose."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_node_sampler import ON_0, Readings, a_sampler, ticks

from examples import examples
from fake_slurm import fake_node
from lucid.core.gpu import GpuProcess
from lucid.core.ports import GpuMetrics
from lucid.node.nvml import NvmlMetrics
from lucid.node.processes import JobSpec
from lucid.node.reports import UseFolder, read_profile_files
from lucid.node.sampler import Sampler
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.use import GpuUse, UseMeter
from lucid.setup.conf_text import read_texts
from lucid.setup.render import addressed_gres, addresses
from lucid.slurm.act.prolog_extra import Items
from lucid.slurm.records.fields import gpu_types
from lucid_hooks import seal
from nvml_emulator import Board, Gpu, smi, uuid_of

IDLE, WORK, LOST = GpuSample(0.0), GpuSample(50.0), GpuSample(lost=True)


def used(*parts: tuple[GpuSample, int]) -> GpuUse:
    """One GPU at 1 Hz from time 0."""
    meter, at_s = UseMeter(), 0
    for part, seconds in parts:
        for _ in range(seconds):
            at_s += 1
            meter.add(("g",), Sample(at_s, float(at_s), (part,)))
    (found,) = meter.uses
    return found


def lengths(use: GpuUse) -> list[tuple[float, float]]:
    return [(one.begin_s, one.end_s) for one in use.idle]


def test_work_and_stretches_add_up_and_the_longest_are_kept() -> None:
    use = used((IDLE, 400), (WORK, 100), (IDLE, 299), (WORK, 100), (IDLE, 301))
    assert (use.begin_s, use.end_s, use.measured_s, use.worked_s) == (0.0, 1200.0, 1200.0, 200.0)
    assert lengths(use) == [(0.0, 400.0), (899.0, 1200.0)], "299 s are a pause"
    use = used(*(part for n in range(20) for part in ((IDLE, 300 + n), (WORK, 10))))
    assert sorted(one.length_s for one in use.idle) == [float(300 + n) for n in range(4, 20)]


def test_a_moment_of_work_ends_no_stretch_and_work_that_goes_on_does() -> None:
    assert lengths(used((IDLE, 400), (WORK, 5), (IDLE, 400))) == [(0.0, 805.0)]
    assert lengths(used((IDLE, 400), (WORK, 6), (IDLE, 400))) == [(0.0, 400.0), (406.0, 806.0)]
    assert used(*[(IDLE, 19), (WORK, 1)] * 100).idle == ()
    assert len(used(*[(IDLE, 599), (WORK, 1)] * 6).idle) == 1


@pytest.mark.parametrize(("gap", "stretches", "measured_s"), [(59, 1, 659.0), (61, 2, 601.0)])
def test_what_is_not_read_for_a_minute_is_not_known(gap: int, stretches: int, measured_s: float) -> None:
    use = used((IDLE, 300), (LOST, gap), (IDLE, 300))
    if gap > 60:
        assert lengths(use) == [(0.0, 300.0), (300.0 + gap, 600.0 + gap)]
    assert (len(use.idle), use.measured_s) == (stretches, pytest.approx(measured_s, abs=1.0))


def test_time_without_a_process_is_counted_within_a_stretch() -> None:
    (one,) = used((IDLE, 200), (GpuSample(0.0, own_mib=0.0), 200)).idle
    assert (one.length_s, one.empty_s) == (400.0, 200.0)
    assert used((IDLE, 400)).idle[0].empty_s == 0.0, "processes are not known"


def test_beside_a_partner_only_what_is_the_jobs_own_counts() -> None:
    assert used((GpuSample(90.0, own_util=0.0, own_mib=500.0, shared=True), 400)).worked_s == 0.0
    assert used((GpuSample(0.0, own_util=None, shared=True), 400)).idle, "both idle"
    assert used((WORK, 10), (GpuSample(90.0, own_util=None, shared=True), 400)).measured_s == 10.0


def test_a_stretch_goes_on_over_a_restart() -> None:
    meter = UseMeter()
    for begin_s, end_s in ((1, 401), (395, 801)):
        meter = UseMeter(earlier=meter.uses)
        for at_s in range(begin_s, end_s):
            meter.add(("g",), Sample(at_s, float(at_s), (IDLE,)))
    (use,) = meter.uses
    assert lengths(use) == [(0.0, 800.0)]
    assert use.measured_s == 800.0, "what was counted before is not counted again"


def test_the_sampler_tells_it_and_a_sampler_that_is_restarted_goes_on(tmp_path: Path) -> None:
    source = Readings()
    source.tell(0, 0, 3200, processes=(GpuProcess(101, 3000, 0, 0),))
    sampler = a_sampler(tmp_path, source)
    ticks(sampler, [ON_0], 1000, 400)
    sampler.close()
    sampler = a_sampler(tmp_path, source)
    ticks(sampler, [ON_0], 1410, 400)
    sampler.end("a")
    (use,) = read_profile_files(tmp_path / "profiles").summaries["a"][0].use
    assert lengths(use) == [(999.0, 1809.0)]
    assert use.measured_s == 810.0
    assert UseFolder(tmp_path / "profiles").uses() == {"a": (use,)}


def test_the_folder_is_read_anew_where_a_file_has_changed_or_is_gone(tmp_path: Path) -> None:
    source = Readings()
    source.tell(80, 40, 900)
    folder = UseFolder(tmp_path / "profiles")
    assert folder.uses() == {}
    for seconds in (20, 40):
        sampler = a_sampler(tmp_path, source)
        ticks(sampler, [ON_0], 1000, seconds)
        sampler.end("a")
        assert folder.uses()["a"][0].worked_s == seconds
    (tmp_path / "profiles/junk.json").write_text("{")
    assert set(folder.uses()) == {"a"}
    (tmp_path / "profiles/a.json").unlink()
    assert folder.uses() == {}


def test_energy_goes_to_those_who_used_the_gpu(tmp_path: Path) -> None:
    source, jobs = Readings(), [ON_0, JobSpec("b", ("GPU-0",))]
    sampler = a_sampler(tmp_path, source)
    both = (GpuProcess(101, 3000, 30, 20), GpuProcess(201, 5000, 60, 15))
    for at_s, util, energy_j, processes, joules in (
        (0, 60, 1000.0, None, [None]),  # what the card took before is not the job's
        (1, 60, 1100.0, None, [100.0]),
        (2, 90, 1400.0, both, [200.0, 200.0]),
        (3, 0, 1500.0, (), [250.0, 250.0]),  # nobody worked
        (4, 50, 3.0, None, [250.0]),  # the driver counts anew
    ):
        source.tell(util, util / 2, 3200, processes=processes, energy_j=energy_j)
        ticks(sampler, jobs[: len(joules)], at_s, 1)
        assert [sampler.summary(job.job).use[0].energy_j for job in jobs[: len(joules)]] == joules
    sampler.close()
    sampler = a_sampler(tmp_path, source)
    ticks(sampler, [ON_0], 5, 1)
    assert sampler.summary("a").use[0].energy_j == 250.0, "the next sampler goes on from there"


def test_a_card_that_does_not_count_and_memory_that_nobody_sees_are_not_known() -> None:
    assert (used((WORK, 3)).energy_j, used((WORK, 3)).host_mib) == (None, None)
    meter = UseMeter()
    meter.add(("g", "h"), Sample(1, 1.0, (WORK, WORK)))
    for mib in (300.0, 500.0, 400.0):
        meter.held(mib)
    assert [use.host_mib for use in meter.uses] == [500.0, 500.0]


SLURM = Path(__file__).parents[3] / "slurm"


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
        kinds = gpu_types(addresses(made.numbers["n1"]))
        assert [f"Type={kind} " in line for kind, line in zip(kinds, lines, strict=True)] == [True] * len(lines)
        self.node = fake_node("n1", "vc", gpu_types=tuple(kinds), shard_types=frozenset(kinds))

    def payload(self, places: tuple[int, ...]) -> str:
        numbers = tuple(self.node.gpu_numbers[place] for place in places)
        return Items("n1", places, 9000, 0.9, numbers=() if numbers == places else numbers).payload(77, 0)

    def of_files(self, places: Sequence[int]) -> list[str]:
        return [self.uuids.get(self.files[place], "") for place in places]

    def told(self, numbers: Sequence[int]) -> str:
        """The UUIDs that the shipped hook finds for sealed GPUs."""
        words = f". {SLURM}/node_hook.sh; limit=5; gpus={','.join(map(str, numbers))}; lucid_uuids"
        path = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True, env=path)
        return done.stdout.strip()


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


@pytest.fixture
def nvml(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuMetrics]:
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
