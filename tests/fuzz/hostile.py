"""Inputs that nobody should send: mutations of real answers, values made by a grammar, raw bytes.

Every test draws from a seed of its own, made from ``LUCID_FUZZ_SEED`` (1 unless given) and its name, and prints the
seed and the input with a failure: ``LUCID_FUZZ_SEED=n pytest tests/fuzz -k name`` shows it again.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lucid.errors import LucidError

SEED = int(os.environ.get("LUCID_FUZZ_SEED", "1"))
TIMES = float(os.environ.get("LUCID_FUZZ_TIMES", "1"))
"""How many times the usual number of inputs."""
COUNTS = {
    "turns in pack": 90, "turns in observe": 90, "spool": 700, "summaries": 1000, "small files": 1200,
    "rows": 1500, "lucid.toml": 1500, "shares": 800, "documents": 1500, "bytes": 2500, "names": 1500,
    "texts": 1500, "seed": 3, "jobs": 5000, "nodes": 1500, "partitions": 800, "accounting": 1500, "traces": 150,
}  # fmt: skip
"""How many inputs each test draws."""

TEXTS = (
    "", " ", "\0", "\n", "|", ";", ",", "=", "\t\x1b[31m", "[/]", "<b>", "%s%n", "'; drop table notes; --",
    "\ud800", "\ufffe", "²", "٣", "1e400", "-1", "0x10", "9" * 20, "9" * 5000, "1" * 400 + ".5", "nan", "inf",
    "gres/gpu:²", "gres/gpu:٣", "gres/gpu:99999999999999999999", "gres/gpu:-1", "gres/gpu:1e400", "gres/gpu=",
    "gres/gpu:a:(", "gres/shard:g1:1", "gres/gpu:1k,gres/gpu:2,cpu=9", "gpu:g0:1(IDX:0-99999999999)",
    "gpu:(IDX:²)", "shard:g1:1(0/2,1/2,x)", "(null)", "n[1-99999999]", "n[1-9][1-9][1-9][1-9][1-9][1-9]", "n[",
    "n]1[", "[1-3]", "0-99999999999", "1-5:0%²", "5-1", "UNKNOWN", "RUNNING", "PENDING", "COMPLETING", "COMPLETED",
    "NOPE", "lucid:vc=vc;held=1", "lucid:" + "a=1;" * 500, "lucid:vc=\0", "lucid:off", "mem=1.2.3M",
    "mem=99999999999999999999T", "cpu=1,mem=1000M,node=1", "x" * 100_000, "é" * 1000, "../../etc/passwd",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 255, 1024, 100_001, 2**31, 2**32 - 2, 2**53, 2**63, 2**64 - 1, 10**25, -(10**25), 0.5, -0.0,
    1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 253402300800, 4294967294,
)  # fmt: skip


class Hostile(random.Random):
    """Draws."""

    def value(self, depth: int = 0) -> Any:
        kind = self.randrange(10 if depth < 3 else 6)
        if kind < 2:
            return self.choice(NUMBERS)
        if kind < 4:
            return self.text()
        if kind < 6:
            return self.choice((None, True, False, [], {}))
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.randrange(4))]
        if kind == 7:
            return {"set": self.value(4), "infinite": self.value(4), "number": self.value(4)}
        if kind == 8:
            return {self.text()[:20]: self.value(depth + 1) for _ in range(self.randrange(4))}
        return {"set": True, "infinite": False, "number": self.choice(NUMBERS)}

    def text(self) -> str:
        if self.random() < 0.7:
            return self.choice(TEXTS)
        if self.random() < 0.5:
            return "".join(self.choice(TEXTS)[:12] for _ in range(3))
        return self.raw().decode("latin-1")

    def raw(self, most: int = 40) -> bytes:
        return self.randbytes(self.randrange(most))

    def mutated(self, document: Any, most: int = 4) -> Any:
        """With some of its values replaced, taken away, doubled or wrapped."""
        made = copy.copy(document)
        for _ in range(self.randrange(1, most + 1)):
            if self.random() < 0.02:
                return self.value()
            at = made
            for _ in range(self.randrange(1, 6)):
                keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
                if not keys:
                    break
                key = self.choice(keys)
                if isinstance(at[key], dict | list) and at[key] and self.random() < 0.6:
                    at[key] = copy.copy(at[key])  # what is changed below is this document's own
                    at = at[key]
                    continue
                how = self.randrange(8)
                if how == 0:
                    del at[key]
                elif how == 1:
                    at[key] = [at[key], at[key]]
                elif how == 2:
                    at[key] = {"number": at[key]}
                else:
                    at[key] = self.value()
                break
        return made

    def garbled(self, content: bytes) -> bytes:
        """With some bytes changed, cut, doubled or put in."""
        made = bytearray(content)
        for _ in range(self.randrange(1, 5)):
            at, how = self.randrange(len(made) + 1), self.randrange(6)
            if how == 0:
                made[at : at + 1] = self.raw(4)
            elif how == 1:
                made[at:at] = self.choice(
                    (b"\xff\xfe\x80", b'"', b"\\", b"[" * 300, b"}", b"\0", b"1e999", b"9" * 5000, b"\\ud800")
                )
            elif how == 2:
                del made[at : at + self.randrange(20)]
            elif how == 3:
                made[at:at] = made[at : at + self.randrange(30)]
            elif how == 4:
                made[at : at + 3] = self.choice((b"nan", b"NaN", b"\xc3\x28", b":::", b"\n\n\n"))
            elif self.random() < 0.3:
                del made[at:]
        return bytes(made)


def inputs(name: str) -> Iterator[Hostile]:
    """A generator for each input, that input's own."""
    for number in range(max(int(COUNTS[name] * TIMES), 1)):
        yield Hostile(f"{SEED} {name} {number}")


@contextmanager
def only_our_errors(name: str, given: Any) -> Iterator[None]:
    """Nothing but a LucidError may come out."""
    try:
        yield
    except LucidError:
        return
    except Exception as error:
        raise AssertionError(f"LUCID_FUZZ_SEED={SEED}, {name}: {error!r} of {short(given)}") from error


def short(given: Any) -> str:
    try:
        return json.dumps(given)[:3000]
    except (TypeError, ValueError):
        return repr(given)[:3000]
