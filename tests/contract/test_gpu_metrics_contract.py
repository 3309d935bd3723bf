"""What every source of GPU readings must do, shown on all of them; then what is particular to each.

NVML runs as the real nvidia-ml-py on the emulated libnvidia-ml.so.1; DCGM's pages are in the forms that several of
its versions print (tests/assets/dcgm/README.md).
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lucid.core.gpu import GpuLost, GpuProcess, GpuReading
from lucid.core.ports import GpuMetrics
from lucid.errors import MetricsError
from lucid.node.dcgm import ExporterMetrics, parse_exporter
from lucid.node.nvml import NvmlMetrics
from nvml_emulator import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Board,
    Gpu,
    Proc,
    uuid_of,
)

DCGM = Path(__file__).parent.parent / "assets" / "dcgm"
BUSY, IDLE = "GPU-5f8b1a0e-7b1d-4a3c-9a55-0d3d0c9b8e01", "GPU-5f8b1a0e-7b1d-4a3c-9a55-0d3d0c9b8e02"


@dataclass
class Source:
    """One source on a machine with a busy GPU 0 and an idle GPU 1."""

    metrics: GpuMetrics
    busy: str
    idle: str
    vanish: Callable[[], None]
    """Takes the busy GPU away."""
    silence: Callable[[], None]
    """Makes the source stop answering."""
    speak: Callable[[], None]


@pytest.fixture
def board(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board(tmp_path / "state")
    monkeypatch.setenv("LUCID_NVML_STATE", str(board.path))
    board.gpus = {
        0: Gpu(97, 41, 20518, 81559, (73.5, 25.0, 31.0), procs=[Proc(4711, 20000, 95, 40)]),
        1: Gpu(0, 0, 5, 81559),
    }
    board.write()
    return board


@pytest.fixture
def nvml(board: Board) -> Iterator[NvmlMetrics]:
    metrics = NvmlMetrics()
    yield metrics
    metrics.close()


@pytest.fixture(params=["nvml", "exporter-file", "exporter-http"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    if request.param == "nvml":
        board: Board = request.getfixturevalue("board")

        def take_away() -> None:
            del board.gpus[0]
            board.write()

        def unload() -> None:
            board.fail[("nvmlInitWithFlags", None)] = DRIVER_NOT_LOADED
            board.generation += 1
            board.write()

        def load_again() -> None:
            board.fail.clear()
            board.write()

        metrics = request.getfixturevalue("nvml")
        yield Source(metrics, uuid_of(0), uuid_of(1), take_away, unload, load_again)
        return
    page = (DCGM / "exporter-h100.txt").read_text()
    path = tmp_path / "page.txt"
    path.write_text(page)

    def drop_lines() -> None:
        path.write_text("".join(line for line in page.splitlines(True) if BUSY not in line))

    def restore() -> None:
        path.write_text(page)

    if request.param == "exporter-file":
        yield Source(ExporterMetrics(str(path)), BUSY, IDLE, drop_lines, path.unlink, restore)
        return

    exporter = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), exporter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}/page.txt"
    yield Source(ExporterMetrics(address), BUSY, IDLE, drop_lines, path.unlink, restore)
    server.shutdown()
    thread.join()
    server.server_close()


class TestContract:
    def test_cards_come_by_index_with_their_names(self, source: Source) -> None:
        cards = source.metrics.cards()
        assert [(card.uuid, card.index) for card in cards] == [(source.busy, 0), (source.idle, 1)]
        assert all(card.name for card in cards)
        assert not any(card.mig for card in cards)

    def test_readings_are_percent_and_mib(self, source: Source) -> None:
        source.metrics.read([source.busy, source.idle])
        found = source.metrics.read([source.busy, source.idle])
        assert list(found) == [source.busy, source.idle]
        busy, idle = found[source.busy], found[source.idle]
        assert (busy.gpu_util, busy.mem_util) == (97, 41)
        assert busy.mem_mib == pytest.approx(20518)
        assert busy.sm_active == pytest.approx(73.5, abs=0.1)
        assert busy.sm_occupancy == pytest.approx(25.0)
        assert busy.dram_active == pytest.approx(31.0)
        assert (idle.gpu_util, idle.mem_util, idle.mem_mib) == (0, 0, 5)
        assert idle.dram_active is None

    def test_only_what_was_asked_for_is_read_and_a_gpu_that_nobody_knows_is_lost(self, source: Source) -> None:
        assert list(source.metrics.read([source.idle])) == [source.idle]
        assert source.metrics.read([]) == {}
        found = source.metrics.read(["GPU-none", source.idle])
        assert isinstance(found["GPU-none"], GpuLost)
        assert isinstance(found[source.idle], GpuReading)

    def test_a_gpu_that_vanishes_leaves_the_others(self, source: Source) -> None:
        source.metrics.read([source.busy, source.idle])
        source.vanish()
        for _ in range(2):
            found = source.metrics.read([source.busy, source.idle])
            lost = found[source.busy]
            assert isinstance(lost, GpuLost)
            assert lost.why
            assert isinstance(found[source.idle], GpuReading)

    def test_silence_is_an_error_and_the_next_call_tries_afresh(self, source: Source) -> None:
        source.metrics.read([source.idle])
        source.silence()
        for _ in range(2):
            with pytest.raises(MetricsError):
                source.metrics.read([source.idle])
        source.speak()
        assert isinstance(source.metrics.read([source.idle])[source.idle], GpuReading)
        source.metrics.close()
        source.metrics.close()
        assert isinstance(source.metrics.read([source.idle])[source.idle], GpuReading), "closed twice, and read again"


PROCESSES = {
    "memory and shares": ([Proc(11, 8000, 60, 30), Proc(13)], (GpuProcess(11, 8000, 60, 30), GpuProcess(13))),
    "one process with two contexts is one": ([Proc(11, 500), Proc(11, 300)], (GpuProcess(11, 800),)),
    "a process is listed though it has no new sample": ([Proc(11, 8000)], (GpuProcess(11, 8000),)),
}
NOT_OFFERED = (
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlGpmSampleGet",
    "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMigMode",
)  # fmt: skip


class TestNvml:
    def read(self, nvml: NvmlMetrics, board: Board, index: int = 0) -> GpuReading:
        board.write()
        return nvml.read([uuid_of(index)])[uuid_of(index)]

    @pytest.mark.parametrize("name", PROCESSES)
    def test_processes(self, nvml: NvmlMetrics, board: Board, name: str) -> None:
        board.gpus[0].procs, told = PROCESSES[name]
        assert self.read(nvml, board).processes == told
        assert self.read(nvml, board, 1).processes == ()

    @pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
    def test_what_a_card_does_not_offer_is_unknown(self, nvml: NvmlMetrics, board: Board, code: int) -> None:
        board.fail = {(function, 0): code for function in NOT_OFFERED}
        found = self.read(nvml, board)
        assert (found.gpu_util, found.processes, found.sm_active) == (None, None, None)
        assert found.mem_mib == 20518

    def test_gpm_needs_two_samples_and_may_stop(self, nvml: NvmlMetrics, board: Board) -> None:
        assert [self.read(nvml, board).sm_active for _ in range(2)] == [None, 73.5]
        board.fail[("nvmlGpmMetricsGet", 0)] = NOT_SUPPORTED
        found = self.read(nvml, board)
        assert (found.sm_active, found.gpu_util) == (None, 97)

    def test_an_xid_is_told_once(self, nvml: NvmlMetrics, board: Board) -> None:
        assert self.read(nvml, board).xid is None
        board.gpus[0].xid = 31
        assert [self.read(nvml, board).xid for _ in range(2)] == [31, None]

    def test_a_card_off_the_bus_comes_back(self, nvml: NvmlMetrics, board: Board) -> None:
        self.read(nvml, board)
        board.fail[("nvmlDeviceGetMemoryInfo", 0)] = GPU_IS_LOST
        board.write()
        found = nvml.read([uuid_of(0), uuid_of(1)])
        assert isinstance(found[uuid_of(0)], GpuLost)
        assert "lost" in found[uuid_of(0)].why
        assert isinstance(found[uuid_of(1)], GpuReading)
        board.fail.clear()
        assert self.read(nvml, board).gpu_util == 97

    def test_a_restarted_driver_and_an_unknown_error_cost_one_reading_each(
        self, nvml: NvmlMetrics, board: Board
    ) -> None:
        self.read(nvml, board)
        board.generation += 1
        with pytest.raises(MetricsError, match="restarted or is gone"):
            self.read(nvml, board)
        assert self.read(nvml, board).gpu_util == 97
        board.fail[("nvmlDeviceGetMemoryInfo", 0)] = UNKNOWN
        with pytest.raises(MetricsError):
            self.read(nvml, board)
        board.fail.clear()
        assert self.read(nvml, board).gpu_util == 97

    def test_no_driver_says_what_to_look_at(self, nvml: NvmlMetrics, board: Board) -> None:
        board.path.unlink()
        with pytest.raises(MetricsError, match="is the NVIDIA driver loaded"):
            nvml.cards()

    def test_a_mig_card_is_marked_and_has_no_utilisation(self, nvml: NvmlMetrics, board: Board) -> None:
        board.gpus[0].mig = True
        assert self.read(nvml, board).gpu_util is None
        assert [card.mig for card in nvml.cards()] == [True, False]


GAUGE = "DCGM_FI_DEV_GPU_UTIL"
PARSED = {
    "labels may hold quotes, braces and commas": (
        f'{GAUGE}{{gpu="3",modelName="a \\"b\\", {{c}}",UUID="GPU-x"}} 5 1700000000000\n',
        {"GPU-x": (3, 'a "b", {c}', False, {GAUGE: 5.0})},
    ),
    "lines of MIG instances only mark their card": (
        f'{GAUGE}{{gpu="0",UUID="GPU-x",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"}} 5\n',
        {"GPU-x": (0, "", True, {})},
    ),
    "other metrics are passed over": ("go_goroutines 12\n\n# EOF\n", {}),
}


class TestDcgm:
    def test_the_last_xid_is_told_when_it_is_new_and_memory_is_used_free_and_reserved(self) -> None:
        metrics = ExporterMetrics(str(DCGM / "exporter-h100.txt"))
        seen = [metrics.read([IDLE])[IDLE] for _ in range(2)]
        assert [reading.xid for reading in seen if isinstance(reading, GpuReading)] == [79, None]
        assert metrics.cards()[0].mem_mib == 81559

    def test_cards_without_profiling_fields_have_none(self) -> None:
        metrics = ExporterMetrics(str(DCGM / "exporter-v100.txt"))
        reading = metrics.read([metrics.cards()[0].uuid])[metrics.cards()[0].uuid]
        assert (reading.gpu_util, reading.mem_mib, reading.sm_active, reading.processes) == (63, 10242, None, None)

    @pytest.mark.parametrize("name", PARSED)
    def test_what_a_page_says(self, name: str) -> None:
        page, told = PARSED[name]
        found = parse_exporter(page, "page")
        assert {uuid: (card.index, card.name, card.mig, values) for uuid, (card, values) in found.items()} == told

    @pytest.mark.parametrize(
        "page", ["<html>no</html>", 'DCGM_FI_DEV_GPU_UTIL{gpu="0} 5', 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} many']
    )
    def test_a_page_of_something_else_is_named_with_its_line(self, page: str) -> None:
        with pytest.raises(MetricsError, match=r"there:9400: line 2: .*dcgm-exporter"):
            parse_exporter("# HELP\n" + page, "there:9400")

    def test_a_page_of_the_newest_exporter(self) -> None:
        """Small letters in ``hostname``, a value that it could not convert, links that name no card of ours, MIG."""
        metrics = ExporterMetrics(str(DCGM / "exporter-4.8.2.txt"))
        cards = metrics.cards()
        assert [(card.index, card.name, card.mem_mib, card.mig) for card in cards] == [
            (0, "NVIDIA RTX 2000 Ada Generation", 16380, False),
            (1, "NVIDIA A30", None, True),
        ]
        plain, mig = (metrics.read([card.uuid])[card.uuid] for card in cards)
        assert (plain.gpu_util, plain.mem_util, plain.mem_mib, plain.xid) == (46, None, 4630, None)
        assert (mig.gpu_util, mig.mem_mib) == (None, None)
