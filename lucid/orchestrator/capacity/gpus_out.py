"""Which GPUs get no new start, by the faults that samplers report; one broken sampler cannot take a cluster.

A fault takes out the GPU that has it. The GPU comes back once the fault is over: a state that has not held for a
while, the reset or boot that an error calls for, another card in its place, or a person's word. A fault that comes
again and again waits for a person."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lucid.config.live import GpuHealthSettings
from lucid.core.gpu import CardHealth, GpuFault, GpuOut, NodeHealth

_STATES = ("thermal", "power", "row remap")
"""Faults that may end without a boot: a GPU that no longer has them is well."""
_AGAIN = 3
"""A state that began this often is not taken to be over by itself."""
_RETURN_AFTER_S = 600.0
"""A GPU that Lucid left out gets starts again once it was well for so long, after its fault is over and the node has
booted anew where the fault calls for that."""
_MOST_OF_NODE = 0.5
"""The most of one node's GPUs that Lucid itself leaves out, and one at the least."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of ``judge``. ``outs``: the GPUs that are out, by name (``node7:3``). ``new``, ``returned``: what
    changed, the latter with the reason. ``beyond``: GPUs that would be out but for the bound on how many Lucid takes
    out by itself."""

    outs: Mapping[str, GpuOut]
    new: tuple[GpuOut, ...] = ()
    returned: tuple[tuple[GpuOut, str], ...] = ()
    beyond: tuple[GpuOut, ...] = field(default=())


def words_of(fault: GpuFault) -> str:
    """A fault in words: ``Xid 79, fallen off the bus``."""
    return f"Xid {fault.code}, {fault.words}" if fault.kind == "xid" else fault.words


def _counts(fault: GpuFault, health: NodeHealth, back_s: float, now_s: float) -> bool:
    """Whether a GPU with this fault gets no new start. ``back_s``: when a person last returned it."""
    if not fault.bad or fault.began_s <= back_s:
        return False
    if fault.lasts or now_s - fault.last_s < _RETURN_AFTER_S:
        return True
    if fault.kind in _STATES:
        return fault.times >= _AGAIN
    return fault.began_s >= health.since_s  # the node has not booted since


def _out(health: NodeHealth, card: CardHealth, fault: GpuFault) -> GpuOut:
    return GpuOut(
        health.node,
        card.index,
        fault.began_s,
        words_of(fault),
        fault.kind,
        fault.code,
        fault.whose,
        fault.needs,
        uuid=card.uuid,
    )


def judge(
    before: Mapping[str, GpuOut],
    back: Mapping[str, float],
    health: Mapping[str, NodeHealth],
    gpus: Mapping[str, Collection[int]],
    now_s: float,
    rules: GpuHealthSettings,
) -> Judged:
    """Which GPUs are out now. ``before``: those that were out. ``back``: when persons returned GPUs, by name.
    ``gpus``: by node of the cluster, the device numbers by which Slurm knows its GPUs."""
    outs = dict(before)
    returned: list[tuple[GpuOut, str]] = []
    wanted: list[GpuOut] = []
    for node, told in health.items():
        for card in told.cards:
            name = f"{node}:{card.index}"
            counting = [f for f in card.faults if _counts(f, told, back.get(name, 0.0), now_s)]
            known = outs.get(name)
            if known is None and counting and card.index in gpus.get(node, ()):
                wanted.append(_out(told, card, counting[0]))
            elif known is not None and not known.by and not counting and not told.silent_s:
                another = known.uuid != card.uuid
                if another or now_s - told.since_s >= _RETURN_AFTER_S:
                    del outs[name]
                    returned.append((known, "another card stands in its place" if another else "it is well again"))
    new: list[GpuOut] = []
    beyond: list[GpuOut] = []
    alone = [out for out in outs.values() if not out.by]
    most = max(1, int(rules.most_share * sum(map(len, gpus.values()))))
    for out in sorted(wanted, key=lambda one: (one.since_s, one.name)):
        here = sum(other.node == out.node for other in alone)
        if len(alone) >= most or here >= max(1, int(_MOST_OF_NODE * len(gpus[out.node]))):
            beyond.append(out)
            continue
        alone.append(out)
        new.append(out)
        outs[out.name] = out
    return Judged(outs, tuple(new), tuple(returned), tuple(beyond))
