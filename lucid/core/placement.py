"""Placements (the GPUs of each node that a job holds), their text form, and Slurm's host lists read.

The one reader of host lists is compared with ``scontrol show hostnames`` in tests/unit/slurm/test_host_lists.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice, product
from typing import NamedTuple

from lucid.core.names import Shown
from lucid.errors import ConfigError
from lucid.text import digits

_MOST_GPUS = 1024
"""Bound of GPU numbers: no node has a GPU of this number."""


class NodeGpus(NamedTuple):
    """The GPUs of one node that a job holds. Bit *i* of ``mask`` is GPU *i*; with a mask a set question is one
    machine instruction, which matters with thousands of GPUs a cycle."""

    node: Shown
    mask: int

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPU indices, ascending."""
        return indices_of(self.mask)


Placement = tuple[NodeGpus, ...]
"""All GPUs of a job, nodes in order of choice; empty only for a job that asked for no GPU."""


@lru_cache(maxsize=65536)
def indices_of(mask: int) -> tuple[int, ...]:
    """Positions of the bits set in ``mask``, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def mask_of(gpus: Iterable[int]) -> int:
    """The bit mask of some GPU indices."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def placement_gpus(placement: Placement) -> int:
    """How many GPUs a placement holds."""
    if len(placement) == 1:  # nearly always, and asked for each running job of every plan
        return placement[0].mask.bit_count()
    return sum(part.mask.bit_count() for part in placement)


def show_placement(placement: Placement) -> str:
    """A placement as an administrator writes it: ``n1:0,3 n2:0-7``."""
    shown = ((part.node, (str(a) if a == b else f"{a}-{b}" for a, b in stretches(part.gpus))) for part in placement)
    return " ".join(f"{node}:{','.join(runs)}" for node, runs in shown)


def parse_placement(text: str) -> Placement:
    """The placement that ``show_placement`` wrote as ``text``; empty for any other text."""
    parts = []
    for item in text.split():
        name, _, gpus = item.rpartition(":")
        numbers = [_span(run) for run in gpus.split(",")]
        if not name or any(run is None for run in numbers):
            return ()
        parts.append(NodeGpus(name, mask_of(n for run in numbers if run is not None for n in run)))
    return tuple(parts)


def _span(run: str) -> range | None:
    """The numbers of ``3`` or ``0-7``, none of them above what one node can have."""
    first, dash, last = run.partition("-")
    low, high = digits(first), digits(last if dash else first)
    return range(low, high + 1) if low is not None and high is not None and low <= high < _MOST_GPUS else None


def stretches(gpus: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of neighbours."""
    runs: list[tuple[int, int]] = []
    for gpu in gpus:
        if runs and runs[-1][1] == gpu - 1:
            runs[-1] = runs[-1][0], gpu
        else:
            runs.append((gpu, gpu))
    return runs


_MOST = 100_000
_MOST_BRACKETS = 8
"""Most brackets in one name; with ``_LONGEST_NAME`` it bounds what reading a host list costs."""
_LONGEST_NAME = 256
"""Most characters of a name outside its brackets."""
_WIDEST = 65_536
"""Most hosts of one range, as Slurm bounds them."""
_DIGITS = 15
_PIECE = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")


def hosts_in(expression: str) -> list[str]:
    """The hosts that a host list names, in Slurm's order: ``rack[1-2]n[08-09],m`` is rack1n08, rack1n09, rack2n08,
    rack2n09, m. Leading zeros are kept.

    Raises: ConfigError: the text is not a host list, names no host, or more than 100,000 of them."""
    hosts = list(islice(each_host(expression), _MOST + 1))
    if not hosts:
        raise ConfigError(f"{expression!r} is not a host list; write for example n[1-4] or gpu01,gpu02")
    if len(hosts) > _MOST:
        raise ConfigError(f"the host list {expression[:60]!r} names more than {_MOST:,} hosts")
    return hosts


def each_host(expression: str) -> Iterator[str]:
    """The hosts of a host list one by one, without a bound on their number.

    Raises: ConfigError: the text is not a host list; raised before the first host is given."""
    pieces = _PIECE.findall(expression)
    if _PIECE.sub("", expression).strip(", \t\n"):
        raise ConfigError(f"{expression!r} is not a host list; write for example n[1-4] or gpu01,gpu02")
    for texts, numbers in [_parts(piece, expression) for piece in pieces]:
        if not numbers:
            yield texts[0]
            continue
        # Slurm's order: the last bracket runs fastest, then the first, the second, and so on
        *before, last = numbers
        for *chosen, final in product(*reversed(before), last):
            filled = (*reversed(chosen), final)
            yield "".join(text + number for text, number in zip(texts, (*filled, ""), strict=True))


def _parts(piece: str, expression: str) -> tuple[list[str], list[list[str]]]:
    """The texts around the brackets of one name, and the numbers in each bracket as they are written."""
    found = re.split(r"\[([^\]]*)\]", piece)
    texts, brackets = found[::2], found[1::2]
    if len(brackets) > _MOST_BRACKETS or sum(map(len, texts)) > _LONGEST_NAME:
        raise ConfigError(f"{piece[:60]!r} is not the name of a host or a range of them")
    return texts, [list(islice(_numbers(bracket, expression), _MOST + 1)) for bracket in brackets]


def _numbers(bracket: str, expression: str) -> Iterator[str]:
    for part in bracket.split(","):
        found = re.fullmatch(rf"([0-9]{{1,{_DIGITS}}})(?:-([0-9]{{0,{_DIGITS}}}))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or not 0 <= last - first < _WIDEST:
            raise ConfigError(f"{part!r} in {expression[:60]!r} is not a range of numbers; write for example [1-4]")
        yield from (f"{number:0{len(found[1])}d}" for number in range(first, last + 1))
