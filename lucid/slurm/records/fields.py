"""Small languages inside Slurm's answers: host lists, GRES and TRES strings, array task lists, our own mark.

Users write these texts. Every function takes any text, raises nothing, and returns bounded numbers: what is no number
that Slurm could mean counts as a word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from lucid.core.placement import each_host, mask_of
from lucid.errors import ConfigError
from lucid.text import MOST, digits, finite

MARK = "lucid:"
"""The beginning of an AdminComment that job_submit.lua wrote as a tag."""

_MOST = 100_000
_MOST_HERE = 1024
"""Most GPUs of one node, and places in one bit mask."""
_KEPT = 16_384
"""How many parsed texts are cached: the same ones come with every poll."""
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1 / 1024**2}


def split_outside(text: str) -> list[str]:
    """The parts of a text between commas that stand outside brackets and parentheses."""
    parts, depth, begin = [], 0, 0
    for i, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    parts.append(text[begin:])
    return [part for part in parts if part]


def _numbers(text: str) -> Iterator[tuple[int, int]]:
    """Each number of ``1,3-5`` with its width as written."""
    for item in text.split(","):
        first, dash, last = item.partition("-")
        low, high = digits(first), digits(last if dash else first)
        if low is None or high is None:
            return
        for n in range(low, min(high, low + _MOST) + 1):
            yield n, len(first)


def hosts(text: str) -> list[str]:
    """Names of a host list: ``n[1-3,07],gpu-a`` is n1, n2, n3, n07, gpu-a. At most 100,000 of them; none where Slurm
    would not read it."""
    try:
        return list(islice(each_host(text), _MOST))
    except ConfigError:
        return []


def array_tasks(text: str, most: int) -> tuple[list[int], int | None]:
    """Task numbers of ``1-5,8%2``, at most ``most`` of them, and the throttle. A step (``0-10:2``) is understood."""
    body, _, throttle = text.partition("%")
    tasks: list[int] = []
    for item in body.split(","):
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        begin = digits(first)
        if begin is None:
            break
        end = digits(last)
        tasks += range(begin, (begin if end is None else end) + 1, digits(step) or 1)[: most - len(tasks)]
        if len(tasks) >= most:
            break
    return tasks, digits(throttle)


def gpu_mask(detail: str) -> int:
    """GPU indices that one node's entry of ``gres_detail`` gives to the job, as a mask. Its forms are
    ``gpu:g0:1(IDX:0),gpu:a:2(IDX:1-2)`` and ``shard:g1:1(0/2,1/2,0/2,0/2)``."""
    mask = 0
    for item in split_outside(detail):
        name, _, rest = item.partition("(")
        rest = rest.rstrip(")")
        if name.startswith(("gpu:", "shard:")) and rest.startswith("IDX:"):
            mask |= mask_of(n for n, _ in _numbers(rest[4:]) if n < _MOST_HERE)
        elif name.startswith("shard:"):
            used_of = rest.split(",")[:_MOST_HERE]
            mask |= mask_of(i for i, used in enumerate(used_of) if used.split("/")[0] not in ("", "0"))
    return mask


def _entries(tres: str) -> Iterator[tuple[str, str, int]]:
    """(name, type, count) of ``gres/gpu:a100:2,gres/shard:g1:1`` and of ``gres/gpu=1``."""
    for item in split_outside(tres):
        body = item.partition("(")[0].removeprefix("gres/").removeprefix("gres:")
        parts = re.split(r"[:=]", body)
        count = 1
        if len(parts) > 1 and parts[-1].isascii() and parts[-1].isdecimal():
            number = digits(parts.pop())
            count = MOST if number is None else number  # more digits than any number of GPUs has
        yield parts[0], parts[1] if len(parts) > 1 else "", count


@lru_cache(maxsize=_KEPT)
def gpu_count(tres: str) -> int:
    """GPUs asked for by one TRES string. Each entry of shards is one GPU, which is how Lucid writes them. The most is
    2⁵³, more than any cluster has."""
    wanted = sum(1 if name == "shard" else count for name, _, count in _entries(tres) if name in ("gpu", "shard"))
    return min(wanted, MOST)


@lru_cache(maxsize=_KEPT)
def is_shards(tres: str) -> bool:
    """Whether the request asks for shards."""
    return any(name == "shard" for name, _, _ in _entries(tres))


def gpu_types(gres: str) -> list[str]:
    """From a node's ``gres``: the type of each GPU by index (at most 1,024)."""
    gpus: list[str] = []
    for name, kind, count in _entries(gres):
        if name == "gpu":
            gpus += [kind] * min(count, _MOST_HERE - len(gpus))
    return gpus


def shard_counts(gres: str) -> dict[str, int]:
    """From a node's ``gres``: how many shards the GPU of each type has."""
    return {kind: count for name, kind, count in _entries(gres) if name == "shard" and kind}


def partition_settings_from(text: str) -> dict[str, dict[str, str]]:
    """``scontrol -o show partition`` by partition and key: its JSON leaves most of it out on 24.11."""
    rows = ({key: value for key, eq, value in (word.partition("=") for word in line.split()) if eq}
            for line in text.splitlines())  # fmt: skip
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def memory_mib(tres: str) -> int:
    """``mem`` of a TRES string in MiB; 0 where it has none."""
    found = re.search(r"(?:^|,)mem=([0-9]{1,18}(?:\.[0-9]{0,18})?)(?![0-9.])([KMGT]?)", tres)
    return int(finite(float(found[1]) * _UNITS[found[2]], float(MOST))) if found else 0


def features_of(constraint: str) -> set[str]:
    """The features that a constraint lists, which has no operator but "and"."""
    return {item.strip() for item in re.split("[&,]", constraint)} - {""}


@lru_cache(maxsize=_KEPT)
def parse_mark(admin_comment: str) -> Mapping[str, str] | None:
    """The pairs of our mark (``lucid:vc=main;held=1``), or ``None`` where the job does not bear it. What stands
    behind the first blank is the site's. Nothing in it is trusted: a comment of 1,024 strange characters is just
    pairs that nobody asks for."""
    if not admin_comment.startswith(MARK):
        return None
    pairs: dict[str, str] = {}
    for item in re.split(r"\s", admin_comment[len(MARK) :], maxsplit=1)[0].split(";"):
        key, eq, value = item.partition("=")
        if eq:
            pairs[key] = value
    return pairs


@lru_cache(maxsize=_KEPT)
def says(comment: str, word: str) -> bool:
    """Whether a job's comment has ``lucid:WORD`` as a word of its own, as job_submit.lua reads it."""
    return _word(comment, re.escape(word)) is not None


def resized(comment: str) -> bool:
    """Whether job_submit.lua noted in the comment that the job's size was changed while it waited."""
    return _word(comment, r"resized(?:=\d{1,9})?") is not None


def lease_s(comment: str) -> float:
    """The begin time that job_submit.lua gave a job at its release, for Lucid to take it over (Unix s); 0 if none."""
    found = _word(comment, r"lease=(\d{1,12})")
    return float(found[1]) if found else 0.0


def wrong_start(comment: str) -> str:
    """The note of slurm/task_prolog in the comment of a job that it sent back: ``2 of 4 tasks``; empty without
    one."""
    found = _word(comment, r"wrong=(\d{1,9})-of-(\d{1,9})-([A-Za-z]{1,5})")
    return "{} of {} {}".format(*found.groups()) if found else ""


def _word(comment: str, pattern: str) -> re.Match[str] | None:
    return re.search(rf"(?:^|[\s,;])lucid:{pattern}(?:[\s,;]|$)", comment) if MARK in comment else None
