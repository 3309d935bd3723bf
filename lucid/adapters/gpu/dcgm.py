"""Readings from DCGM: the page of a running dcgm-exporter, or ``dcgmi dmon`` where there is none.

Better than opening the profiling counters a second time where a site already exports them. Neither source knows of
processes, so two jobs on one GPU cannot be told apart by it: the sampler then takes NVML beside it.
"""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from lucid.core.readings import GpuCard, GpuCondition, GpuLost, GpuReading
from lucid.errors import MetricsError

__all__ = ["DcgmiMetrics", "ExporterMetrics", "parse_dmon", "parse_exporter"]

_BLANK: Final = 1e14
"""DCGM's blank values (0x7ffffff0 in 32 bits, 140737488355328.0, 9223372036854775792 …) mean 'not available'."""
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
        MetricsError: a line is not of the format; the message names ``where`` and the line.
    """
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
    """``GpuMetrics`` from a dcgm-exporter's page: ``http://host:9400/metrics``, or a file (for node_exporter's
    textfile collector, and for tests)."""

    name = "dcgm-exporter"

    def __init__(self, source: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._xids: dict[str, int] = {}

    def cards(self) -> Sequence[GpuCard]:
        """As the port says; memory is what is used, free and reserved together."""
        cards = []
        for card, values in self._page().values():
            parts = [values.get(name) for name in (_MEM_MIB, _FREE)]
            total = None if None in parts else sum(p for p in parts if p is not None) + values.get(_RESERVED, 0.0)
            cards.append(GpuCard(card.uuid, card.index, card.name, total, card.mig))
        return sorted(cards, key=lambda card: card.index)

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """As the port says. The exporter repeats the last Xid for ever: reported is one that is new."""
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

    def conditions(self) -> Sequence[GpuCondition] | None:
        """Not told: NVML stands beside it."""
        return None

    def xids(self) -> Mapping[int, Sequence[int]]:
        """None: NVML stands beside it."""
        return {}

    def close(self) -> None:
        """Nothing is held open."""

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


_FIELDS: Final = {
    "GPUTL": (203, _UTIL),
    "MCUTL": (204, _MEM_UTIL),
    "FBUSD": (252, _MEM_MIB),
    "SMACT": (1002, _SM),
    "SMOCC": (1003, _OCCUPANCY),
    "DRAMA": (1005, _DRAM),
}
"""Short name in dmon's header: field id, name."""


def parse_dmon(output: str, where: str) -> dict[int, dict[str, float]]:
    """Values of the newest line of each GPU by its DCGM id, from the table that ``dcgmi dmon`` prints.

    The header's first line names the columns (``#Entity GPUTL …``), its second says ``ID`` and units; both are
    repeated every few rows. ``N/A`` is left out, and so is a cell that is blank, as newer versions leave what a card
    does not have: there the columns stand to the left, each below its name.

    Raises:
        MetricsError: there is no header, or a row does not fit it.
    """
    columns: list[tuple[str, int]] | None = None
    found: dict[int, dict[str, float]] = {}
    for number, line in enumerate(output.splitlines(), 1):
        words = line.split()
        if not words or words[0].upper() == "ID":
            continue
        if words[0].lstrip("#") in ("Entity", "Entity-ID") or words[0] == "#":
            named = [(match[0], match.start()) for match in re.finditer(r"\S+", line)][1:]
            columns = [item for item in named if item[0] != "Entity"]
            continue
        if words[0] != "GPU":
            continue
        cells = None if columns is None else _cells(line, words, columns)
        if cells is None or not words[1].isdecimal():
            names = [name for name, _ in columns or ()]
            raise MetricsError(f"{where}: line {number}: {line.strip()!r} does not fit the header {names}")
        values: dict[str, float] = {}
        for column, word in cells.items():
            if column in _FIELDS and word not in ("", "N/A"):
                try:
                    value = float(word)
                except ValueError:
                    raise MetricsError(f"{where}: line {number}: {column} is {word!r}, not a number") from None
                if _known(value):
                    values[_FIELDS[column][1]] = value
        found[int(words[1])] = values
    if columns is None:
        raise MetricsError(f"{where}: no table ({output.strip()[:120]!r}); is nv-hostengine running?")
    return found


def _cells(line: str, words: Sequence[str], columns: Sequence[tuple[str, int]]) -> dict[str, str] | None:
    """What stands in each column of a GPU's row; ``None`` where the row does not fit."""
    names = [name for name, _ in columns]
    if len(words) == len(columns) + 2:
        return dict(zip(names, words[2:], strict=True))
    if len(words) > len(columns) + 2 or not columns or line[: columns[0][1]].split() != list(words[:2]):
        return None
    starts = [start for _, start in columns]
    cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return None if any(" " in cell for cell in cells) else dict(zip(names, cells, strict=True))


_LISTED: Final = re.compile(r"^\|\s*(\d+)\s*\|\s*Name:\s*(.*?)\s*\|?$")
_LISTED_UUID: Final = re.compile(r"Device UUID:\s*(GPU-[\w-]+)")


def _run(arguments: Sequence[str]) -> str:
    command = " ".join(arguments)
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise MetricsError(f"{command}: dcgmi is not installed; use NVML, or a dcgm-exporter's page") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MetricsError(f"{command}: {error}; is nv-hostengine running?") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[:200]
        raise MetricsError(f"{command}: exit code {done.returncode}: {words}; is nv-hostengine running?")
    return done.stdout


class DcgmiMetrics:
    """``GpuMetrics`` through the ``dcgmi`` command: one process for each reading, so use it last.

    ``run`` runs a command and returns what it prints (for tests).
    """

    name = "dcgmi"

    def __init__(self, run: Callable[[Sequence[str]], str] = _run) -> None:
        self._run = run
        self._cards: dict[str, GpuCard] = {}

    def cards(self) -> Sequence[GpuCard]:
        """As the port says, from ``dcgmi discovery -l``; memory is not told there."""
        command = ["dcgmi", "discovery", "-l"]
        cards: dict[str, GpuCard] = {}
        at: tuple[int, str] | None = None
        for line in self._run(command).splitlines():
            listed = _LISTED.match(line)
            if listed:
                at = (int(listed[1]), listed[2])
            uuid = _LISTED_UUID.search(line)
            if uuid and at is not None:
                cards[uuid[1]] = GpuCard(uuid[1], *at)
                at = None
        self._cards = cards
        return sorted(cards.values(), key=lambda card: card.index)

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """As the port says."""
        if any(uuid not in self._cards for uuid in uuids):
            self.cards()
        fields = ",".join(str(number) for number, _ in _FIELDS.values())
        command = ["dcgmi", "dmon", "-e", fields, "-c", "1"]
        rows = parse_dmon(self._run(command), " ".join(command))
        found: dict[str, GpuReading | GpuLost] = {}
        for uuid in uuids:
            card = self._cards.get(uuid)
            values = None if card is None else rows.get(card.index)
            if values is None:
                found[uuid] = GpuLost(uuid, "not listed by dcgmi")
            else:
                found[uuid] = _reading(uuid, values, None)
        return found

    def conditions(self) -> Sequence[GpuCondition] | None:
        """Not told: NVML stands beside it."""
        return None

    def xids(self) -> Mapping[int, Sequence[int]]:
        """None: NVML stands beside it."""
        return {}

    def close(self) -> None:
        """Nothing is held open."""
