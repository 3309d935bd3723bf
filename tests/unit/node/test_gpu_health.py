"""GPUs that are not well: injected faults on the emulated driver, and quiet hours with the usual noise."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lucid.core.gpu import KINDS, GpuCondition, GpuFault
from lucid.node.health import HealthPolls
from lucid.node.nvml import NvmlMetrics
from lucid.node.reports import HealthFolder, health_folder, read_health
from lucid.profiler.gpu_health import POLL_S, XIDS, HealthWatch
from nvml_emulator import DRIVER_NOT_LOADED, GPU_IS_LOST, Board, Gpu, uuid_of

GPUS = 8


class Machine:
    """A node of eight GPUs, its sampler's looks, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.profiles, self.spool = folder / "profiles", folder / "spool"
        for made in (self.profiles, self.spool):
            made.mkdir(exist_ok=True)
        self.board = Board(folder / "state", {i: Gpu(util=90.0) for i in range(GPUS)})
        self.board.write()
        self.now_s = 1000.0
        self.said: list[str] = []
        self.start()

    def start(self, boot: str = "boot-1") -> None:
        self.metrics = NvmlMetrics()
        self.looks = HealthPolls(self.metrics, self.spool, self.profiles, "n1", self.said.append, boot)

    def run(self, seconds: int, step: int = 1) -> None:
        self.board.write()
        for _ in range(0, seconds, step):
            self.now_s += step
            self.looks.tick(self.now_s)

    @property
    def report(self) -> Path:
        return health_folder(self.profiles) / "n1.json"

    def faults(self, *, bad: bool = True) -> dict[int, list[GpuFault]]:
        health = read_health(self.report)
        found = {card.index: [one for one in card.faults if one.bad or not bad] for card in health.cards}
        return {index: faults for index, faults in found.items() if faults}

    def kinds(self) -> dict[int, list[str]]:
        return {index: [one.kind for one in faults] for index, faults in self.faults().items()}


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("LUCID_NVML_STATE", str(tmp_path / "state"))
    made = Machine(tmp_path)
    yield made
    made.metrics.close()


INJECT: dict[str, Callable[[Board, int], None]] = {
    "xid": lambda board, gpu: setattr(board.gpus[gpu], "xid", (48, 79, 95, 119, 64)[gpu % 5]),
    "ecc": lambda board, gpu: setattr(board.gpus[gpu], "ecc", 2),
    "row remap": lambda board, gpu: setattr(board.gpus[gpu], "remap_pending", True),
    "lost": lambda board, gpu: board.fail.update({("nvmlDeviceGetMemoryInfo", gpu): GPU_IS_LOST}),
    "thermal": lambda board, gpu: setattr(board.gpus[gpu], "throttle", 0x40),
    "power": lambda board, gpu: setattr(board.gpus[gpu], "throttle", 0x80),
}
LASTS_S = {"thermal": 600, "power": 600}
"""So long it lasts before it is a fault."""


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_five_injected_faults_of_a_kind_names_that_gpu_and_no_other(machine: Machine, kind: str) -> None:
    numbers = random.Random(f"{kind} ").sample(range(2 * GPUS), GPUS)  # device files in another order, and with holes
    for gpu in random.Random(kind).sample(range(GPUS), 5):
        machine.board.gpus = {i: Gpu(util=90.0, minor=number) for i, number in enumerate(numbers)}
        machine.board.fail = {}
        for path in (machine.report, machine.spool / "gpu-health.jsonl"):
            path.unlink(missing_ok=True)
        machine.start()
        machine.run(20)
        assert machine.faults() == {}
        INJECT[kind](machine.board, gpu)
        lasts_s = LASTS_S.get(kind, 0)
        machine.run(max(lasts_s - 10, 0), 5)
        assert machine.faults() == {}, "not before it is one"
        assert read_health(machine.report).order == tuple(numbers)
        machine.run(20 if lasts_s else 9)
        assert machine.kinds() == {numbers[gpu]: [kind]}
        series = [json.loads(line) for line in (machine.spool / "gpu-health.jsonl").read_text().splitlines()]
        assert {line["gpu"] for line in series} == {numbers[gpu]}


def test_a_gpu_that_is_gone_keeps_its_number_and_the_others_keep_theirs(machine: Machine) -> None:
    """NVML counts those that are there: after a loss the ones behind it move up."""
    machine.run(6)
    del machine.board.gpus[2]
    machine.run(9)
    assert machine.kinds() == {2: ["lost"]}
    machine.board.gpus[5].xid = 79
    machine.run(2)
    assert [one.code for one in machine.faults()[5]] == [79]
    assert 4 not in machine.faults()


def test_a_gpu_whose_handle_fails_is_the_one_that_stood_there(machine: Machine) -> None:
    machine.run(6)
    for call in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo"):
        machine.board.fail[call, 3] = GPU_IS_LOST
    machine.board.write()
    machine.metrics.read([uuid_of(3)])  # for a job: the card is looked for again from then on
    machine.run(9)
    assert list(machine.faults()) == [3]


@pytest.mark.parametrize("broken", ["driver", "vanish", "lost"])
def test_a_driver_that_fails_as_a_whole_says_nothing_of_single_gpus(machine: Machine, broken: str) -> None:
    machine.run(6)
    if broken == "driver":
        machine.board.fail["nvmlInitWithFlags", None] = DRIVER_NOT_LOADED
        machine.board.generation = 2
    elif broken == "vanish":
        machine.board.gpus = {0: machine.board.gpus[0]}
    else:
        machine.board.fail["nvmlDeviceGetMemoryInfo", None] = GPU_IS_LOST
    machine.run(60)
    assert machine.faults() == {}
    assert read_health(machine.report).silent_s > 0
    machine.board.fail, machine.board.gpus = {}, {i: Gpu() for i in range(GPUS)}
    machine.run(9)
    assert machine.faults() == {}
    assert read_health(machine.report).silent_s == 0


def test_what_an_application_did_is_told_and_is_no_fault_of_the_gpu(machine: Machine) -> None:
    machine.run(6)
    machine.board.gpus[1].xid = 31
    machine.run(3)
    assert machine.faults() == {}
    (fault,) = machine.faults(bad=False)[1]
    assert (fault.code, fault.whose, fault.words) == (31, "application", "GPU memory page fault")


def test_no_xid_that_may_be_the_applications_leaves_a_gpu_out() -> None:
    assert all(one.whose in ("gpu", "driver") and one.needs for one in XIDS.values() if one.bad)


def test_a_sampler_that_starts_again_knows_what_was(machine: Machine) -> None:
    machine.board.gpus[4].ecc = 3
    machine.run(6)
    assert machine.faults() == {}, "counted before anybody looked"
    machine.board.gpus[4].ecc, machine.board.gpus[1].remap_pending = 5, True
    machine.run(6)
    machine.metrics.close()
    machine.start()
    machine.board.gpus[4].ecc = 6
    machine.run(6)
    assert [one.times for one in machine.faults()[4]] == [2]
    machine.metrics.close()
    machine.start("boot-2")
    machine.board.gpus[4].ecc, machine.board.gpus[1].remap_pending = 0, False
    machine.run(6)
    assert not machine.faults()[1][0].lasts, "the reset that it waited for"


def test_another_card_in_its_place_has_no_past(machine: Machine) -> None:
    watch = HealthWatch("n1")
    for now_s, uuid in ((10.0, "GPU-a"), (13.0, "GPU-c")):
        watch.observe([GpuCondition(uuid, 0, remap_pending=uuid == "GPU-a"), GpuCondition("GPU-b", 1)], now_s)
    assert [(card.uuid, card.faults) for card in watch.report(13.0).cards] == [("GPU-c", ()), ("GPU-b", ())]


def test_the_folder_tells_what_is_new_who_is_silent_and_what_cannot_be_read(machine: Machine) -> None:
    folder = HealthFolder(health_folder(machine.profiles))
    assert folder.read() == {}
    machine.run(3)
    first = folder.read()["n1"]
    assert folder.read()["n1"] is first
    machine.board.gpus[0].xid = 79
    machine.run(3)
    assert [card.index for card in folder.read()["n1"].cards if card.faults] == [0]
    written_s = machine.report.stat().st_mtime
    assert [folder.silent(written_s + later_s) for later_s in (10, 1000)] == [[], ["n1"]]
    machine.report.rename(machine.report.with_name("n2.json"))  # and it says that it is n1's
    assert list(folder.read()) == []
    assert "n2.json" in folder.bad


def quiet(hours: float, seed: int) -> Iterator[tuple[float, list[GpuCondition] | None, dict[int, list[int]]]]:
    """Readings of a node on which nothing is wrong: programs that crash, clocks that are lowered for a while, calls
    of the driver that fail once, a driver that is loaded anew."""
    chance = random.Random(seed)
    well = [GpuCondition(uuid_of(i), i, "card", "", 0, False, False) for i in range(GPUS)]
    hot = dict.fromkeys(range(GPUS), 0.0)
    now_s, silent_until_s = 1.7e9, 0.0
    for _ in range(int(hours * 3600 / POLL_S)):
        now_s += POLL_S + chance.choice((0.0, 0.0, 0.0, 1.0))
        xids = {chance.randrange(GPUS): [chance.choice((13, 31, 43, 45, 94))]} if chance.random() < 1e-3 else {}
        if chance.random() < 2e-5:
            silent_until_s = now_s + 90.0
        if now_s < silent_until_s:
            yield now_s, None, xids
            continue
        seen = well
        if chance.random() < 2e-3:  # a spell of heat, at most four minutes
            hot[chance.randrange(GPUS)] = now_s + chance.uniform(3.0, 240.0)
        if chance.random() < 1e-3 or max(hot.values()) > now_s:
            once = chance.randrange(GPUS) if chance.random() < 1e-2 else None
            words = ["Timeout" if index == once else "" for index in range(GPUS)]
            slowed = [("thermal",) if hot[index] > now_s else () for index in range(GPUS)]
            seen = [GpuCondition(uuid_of(i), i, "card", words[i], 0, False, False, slowed[i]) for i in range(GPUS)]
        yield now_s, seen, xids


def alarms(hours: float, seed: int) -> list[GpuFault]:
    watch = HealthWatch("n1")
    for now_s, seen, xids in quiet(hours, seed):
        watch.events(xids, now_s)
        if seen is None:
            watch.silent(now_s)
        else:
            watch.observe(seen, now_s)
    return [fault for card in watch.report(0.0).cards for fault in card.faults if fault.bad]


THOUSAND = [pytest.param(250, 100 + seed, marks=pytest.mark.slow) for seed in range(4)]


@pytest.mark.parametrize(("gpu_hours", "seed"), [(40, 1), *THOUSAND])
def test_quiet_gpu_hours_raise_no_alarm(gpu_hours: float, seed: int) -> None:
    assert alarms(gpu_hours / GPUS, seed) == []
