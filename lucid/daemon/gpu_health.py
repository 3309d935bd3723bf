"""``GpuHealth``: what lucidd knows of GPUs that are not well, and which of them get no new start.

Samplers report by files (``node.health``), persons by ``lucidctl gpu out`` and ``gpu return``. Both are kept as
switches in the store, so that they outlive lucidd, and hold for the lucidd on another host."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from lucid.config.live import GpuHealthSettings
from lucid.core.codec import from_others, to_json
from lucid.core.gpu import MOST_NUMBER, GpuOut, NodeHealth
from lucid.node.reports import HealthFolder
from lucid.orchestrator.capacity.gpus_out import judge, words_of
from lucid.store.sqlite import SqliteStore
from lucid.text import moment

_LOG = logging.getLogger("lucidd")
OUT, BACK = "gpu.out.", "gpu.back."
"""Keys of switches, before ``node7:3``: a GPU that is out, as JSON; and when a person returned one, and who."""


def outs_in(switches: Mapping[str, str]) -> dict[str, GpuOut]:
    """The GPUs that are out, by name. Entries that cannot be read are left out."""
    found = {}
    for key, text in switches.items():
        if key.startswith(OUT):
            try:
                out = from_others(GpuOut, json.loads(text))
            except Exception:
                continue
            if OUT + out.name == key and 0 <= out.index <= MOST_NUMBER:
                found[out.name] = out
    return found


def backs_in(switches: Mapping[str, str]) -> dict[str, float]:
    """When persons returned GPUs, Unix seconds, by name."""
    found = {}
    for key, text in switches.items():
        if key.startswith(BACK):
            try:
                found[key.removeprefix(BACK)] = moment(float(text.split()[0]))
            except (ValueError, IndexError):
                continue
    return found


def out_json(out: GpuOut) -> dict[str, Any]:
    """A GPU that is out, as it is stored and shown: by its device number alone, for its place among Slurm's GPUs may
    change."""
    return {key: value for key, value in to_json(out).items() if key != "place"}


def odd_numbers(one: Mapping[str, Any]) -> str:
    """An entry of ``odd_numbers`` (``GpuHealth.status``) in words."""
    slurm, seen = (", ".join(map(str, one[key])) for key in ("slurm", "sampler"))
    return (
        f"{one['node']}: by their types Slurm's GPUs are those with the device numbers {slurm}, and its sampler sees "
        f"{seen}: which is which is not known"
    )


class GpuHealth:
    """Judges the health of GPUs once a cycle."""

    def __init__(self, folder: HealthFolder, store: SqliteStore, rules: GpuHealthSettings) -> None:
        self._folder = folder
        self._store = store
        self._rules = rules
        self.outs: Mapping[str, GpuOut] = {}
        """GPUs that are out, by name."""
        self.beyond: tuple[GpuOut, ...] = ()
        """GPUs that would be out but for the bound."""
        self._health: Mapping[str, NodeHealth] = {}
        self._gpus: Mapping[str, Sequence[int]] = {}
        self._silent: list[str] = []
        self._said: frozenset[str] = frozenset()

    def poll(self, gpus: Mapping[str, Sequence[int]], now_s: float) -> Mapping[str, GpuOut]:
        """The GPUs that are out now. ``gpus``: by node, the device numbers by which Slurm knows its GPUs.

        Raises: StoreError: the store cannot be read or written."""
        self._health, self._gpus = self._folder.read(), gpus
        self._silent = self._folder.silent(now_s)
        switches = self._store.settings()
        judged = judge(outs_in(switches), backs_in(switches), self._health, gpus, now_s, self._rules)
        for out in judged.new:
            self._store.set_setting(OUT + out.name, json.dumps(out_json(out)))
            level = logging.ERROR if self._rules.leave_out else logging.WARNING
            _LOG.log(level, "GPU is not well", extra={"facts": {"gpu": out.name, "why": out.words, "kind": out.kind}})
        for out, why in judged.returned:
            self._store.set_setting(OUT + out.name, None)
            _LOG.warning("GPU is back", extra={"facts": {"gpu": out.name, "why": why, "was": out.words}})
        beyond = frozenset(out.name for out in judged.beyond)
        if beyond - self._said:
            _LOG.error(
                "more GPUs are said to be not well than Lucid takes out by itself: look at their nodes and samplers",
                extra={"facts": {"gpus": " ".join(sorted(beyond)), "most_share": self._rules.most_share}},
            )
        self.outs, self.beyond, self._said = judged.outs, judged.beyond, beyond
        return judged.outs

    @property
    def left_out(self) -> Mapping[str, GpuOut]:
        """The GPUs that get no new start in partitions in pack mode; those that persons took out always are among
        them."""
        kept = {name: out for name, out in self.outs.items() if out.by or self._rules.leave_out}
        faults = ("xid", "lost")  # of the GPU or its driver, a program does not survive them
        return {
            name: replace(out, ends_jobs=not out.by and out.kind in faults and out.whose in ("gpu", "driver"))
            for name, out in kept.items()
        }

    def status(self, not_kept: Mapping[str, str]) -> dict[str, Any]:
        """The health of GPUs for ``lucidctl``, pages and metrics. ``not_kept``: GPUs that are out and not kept from
        Slurm, and why."""
        known = sorted(self._health.items())
        return {
            "leave_out": self._rules.leave_out,
            "out": [out_json(self.outs[name]) for name in sorted(self.outs)],
            "beyond": [out_json(out) for out in self.beyond],
            "not_kept": [{"gpu": name, "why": why} for name, why in sorted(not_kept.items())],
            "faults": [
                {"gpu": f"{node}:{card.index}", "uuid": card.uuid, **to_json(replace(fault, words=words_of(fault)))}
                for node, told in known
                for card in told.cards
                for fault in card.faults
            ],
            "watched": [{"node": node, "gpus": len(told.cards)} for node, told in known],
            "odd_numbers": self._odd_numbers(known),
            "driver_silent": [{"node": node, "since_s": told.silent_s} for node, told in known if told.silent_s],
            "sampler_silent": self._silent,
            "unread": [{"file": name, "why": why} for name, why in sorted(self._folder.bad.items())],
        }

    def _odd_numbers(self, known: Sequence[tuple[str, NodeHealth]]) -> list[dict[str, Any]]:
        """Nodes with a GPU that Slurm knows by a number that no card there has, while a card has a number that Slurm
        does not know: which is which cannot be told. (Where only the latter is so, the site keeps a card from
        Slurm.)"""
        found = []
        for node, told in known:
            slurm, seen = self._gpus.get(node, ()), [card.index for card in told.cards]
            if {*slurm} - {*seen} and {*seen} - {*slurm}:
                found.append({"node": node, "slurm": list(slurm), "sampler": seen})
        return found
