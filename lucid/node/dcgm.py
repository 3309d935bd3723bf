"""``ExporterMetrics``: readings from a dcgm-exporter's page; joined with NVML, which knows processes.

The page is better than opening the profiling counters a second time where a site already exports them. It knows of no
processes, so two jobs on one GPU cannot be told apart by it: the sampler then takes NVML beside it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from lucid.core.gpu import GpuCard, GpuCondition, GpuLost, GpuReading
from lucid.core.ports import GpuMetrics
from lucid.errors import MetricsError

_BLANK: Final = 1e14
"""Values from this on are DCGM's blanks (0x7ffffff0 in 32 bits, 140737488355328.0, 9223372036854775792 …): 'not
available'."""
_BLANK_32: Final = 0x7FFFFFF0
_LARGEST_PAGE: Final = 32 << 20
_TIMEOUT_S: Final = 5.0

_UTIL, _MEM_UTIL, _MEM_MIB = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_FB_USED"
_FREE, _RESERVED, _XID = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_XID_ERRORS"
_SM, _OCCUPANCY, _DRAM = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_DRAM_ACTIVE"

_LINE: Final = re.compile(r"^([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL: Final = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_UNCONVERTED: Final = "ERROR - FAILED TO CONVERT TO STRING"
"""What the exporter prints in place of a value that it cannot read."""
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse_exporter(page: str, where: str) -> dict[str, tuple[GpuCard, dict[str, float]]]:
    """Cards and their values by UUID, from a page in Prometheus' text format 0.0.4.

    Values that DCGM marks as not available are left out, as are lines of MIG instances (their card is marked).

    Raises:
        MetricsError: a line is not of the format; the message names ``where`` and the line."""
    found: dict[str, tuple[GpuCard, dict[str, float]]] = {}
    for number, line in enumerate(page.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.endswith(_UNCONVERTED):
            continue
        match = _LINE.match(line)
        try:
            if match is None:
                raise ValueError("not a metric")
            name, value = match[1], float(match[3])
            labels = dict(_labels(match[2] or ""))
        except ValueError as error:
            raise MetricsError(
                f"{where}: line {number}: {error}; is this the page of a dcgm-exporter (usually :9400/metrics)?"
            ) from None
        uuid = labels.get("UUID")
        if not name.startswith("DCGM_FI_") or not uuid:
            continue
        mig = bool(labels.get("GPU_I_ID"))
        card, values = found.setdefault(uuid, (_card(uuid, labels), {}))
        if mig:
            found[uuid] = (GpuCard(uuid, card.index, card.name, card.mem_mib, True), values)
        elif _known(value):
            values[name] = value
    return found


def _labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError(f"labels {text[at : at + 40]!r} cannot be read")
        yield match[1], re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], match[2])
        at = match.end()


def _card(uuid: str, labels: Mapping[str, str]) -> GpuCard:
    index = labels.get("gpu", "")
    return GpuCard(uuid, int(index) if index.isdecimal() else 0, labels.get("modelName", ""))


def _known(value: float) -> bool:
    return value == value and abs(value) < _BLANK and not _BLANK_32 <= value < _BLANK_32 + 16


def _reading(uuid: str, values: Mapping[str, float], xid: int | None) -> GpuReading:
    def share(name: str) -> float | None:
        value = values.get(name)
        return None if value is None else min(value * 100.0, 100.0)

    return GpuReading(
        uuid,
        values.get(_UTIL),
        values.get(_MEM_UTIL),
        values.get(_MEM_MIB),
        share(_SM),
        share(_OCCUPANCY),
        share(_DRAM),
        None,
        xid,
    )


class ExporterMetrics:
    """Readings from a dcgm-exporter's page: ``http://host:9400/metrics``, or a file (for node_exporter's textfile
    collector, and for tests)."""

    name = "dcgm-exporter"

    def __init__(self, source: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._xids: dict[str, int] = {}

    def cards(self) -> Sequence[GpuCard]:
        """The cards of the page; a card's memory is that used, free and reserved together."""
        cards = []
        for card, values in self._page().values():
            parts = [values.get(name) for name in (_MEM_MIB, _FREE)]
            total = None if None in parts else sum(p for p in parts if p is not None) + values.get(_RESERVED, 0.0)
            cards.append(GpuCard(card.uuid, card.index, card.name, total, card.mig))
        return sorted(cards, key=lambda card: card.index)

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """One reading of each GPU. The exporter repeats the last Xid for ever, so only a new one is reported."""
        page = self._page()
        found: dict[str, GpuReading | GpuLost] = {}
        for uuid in uuids:
            _, values = page.get(uuid, (None, None))
            if values is None:
                found[uuid] = GpuLost(uuid, "not on the exporter's page")
                continue
            last = int(values.get(_XID, 0))
            new = last if last and last != self._xids.get(uuid, 0) else None
            self._xids[uuid] = last
            found[uuid] = _reading(uuid, values, new)
        return found

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _page(self) -> dict[str, tuple[GpuCard, dict[str, float]]]:
        source = self._source
        try:
            if source.startswith(("http://", "https://")):
                with urllib.request.urlopen(source, timeout=self._timeout_s) as answer:
                    content = answer.read(_LARGEST_PAGE)
            else:
                content = Path(source).read_bytes()
            page = content.decode("utf-8")
        except (OSError, urllib.error.URLError, UnicodeDecodeError, ValueError) as error:
            raise MetricsError(f"{source}: not a page of a dcgm-exporter ({error}); is it running there?") from None
        return parse_exporter(page, source)


class JoinedMetrics:
    """Everything from ``main``, and from ``beside`` what ``main`` does not know. Either may fail alone."""

    def __init__(self, main: ExporterMetrics, beside: GpuMetrics) -> None:
        self._main = main
        self._beside = beside
        self.name = f"{main.name}+{beside.name}"

    def cards(self) -> Sequence[GpuCard]:
        """The cards of whichever source answers; if both do, those of ``beside`` (NVML knows the memory)."""
        try:
            return self._beside.cards()
        except MetricsError:
            return self._main.cards()

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """One joined reading of each GPU; an error only where both sources fail."""
        try:
            main = self._main.read(uuids)
        except MetricsError:
            return self._beside.read(uuids)
        try:
            beside = self._beside.read(uuids)
        except MetricsError:
            return main
        return {uuid: _joined(main[uuid], beside[uuid]) for uuid in uuids}

    def conditions(self) -> Sequence[GpuCondition] | None:
        """The conditions of ``beside``: NVML reports faults, DCGM's page says nothing of a GPU that is away."""
        return self._beside.conditions()

    def xids(self) -> Mapping[int, Sequence[int]]:
        """The Xids of ``beside``."""
        return self._beside.xids()

    def close(self) -> None:
        """Close both sources."""
        self._main.close()
        self._beside.close()


def _joined(main: GpuReading | GpuLost, beside: GpuReading | GpuLost) -> GpuReading | GpuLost:
    if isinstance(main, GpuLost) or isinstance(beside, GpuLost):
        return beside if isinstance(main, GpuLost) else main
    names = ("gpu_util", "mem_util", "mem_mib", "sm_active", "sm_occupancy", "dram_active", "processes", "xid",
             "energy_j")  # fmt: skip
    absent = {name: getattr(beside, name) for name in names if getattr(main, name) is None}
    return replace(main, **absent)
