"""What a node's prolog is told of a job in slots: short items of numbers in the job's Extra.

``lucid-gpus=1,3;lucid-mem=9312;lucid-speed=0.93``: the indices of its GPUs on the node (Slurm names only the last of
them to a prolog), its memory fence under MPS in MiB, and the speed expected of it beside its partner. The prolog
(slurm/node_hook.sh) starts MPS and the sampler by them. A user's own Extra is never changed, nor sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lucid.binder.sharing import fence
from lucid.core.job import JobProfile
from lucid.core.reason import PairSpeed, Reason

__all__ = ["extra_for", "free_extra"]

_OURS = re.compile(r"lucid-[a-z]+=[0-9.,]+(;lucid-[a-z]+=[0-9.,]+)*")


def free_extra(extra: str) -> bool:
    """May Lucid write a job's Extra? Where it is empty, or holds nothing but Lucid's items."""
    return not extra or _OURS.fullmatch(extra) is not None


def extra_for(
    gpus: Sequence[int], profile: JobProfile | None, capacity_mib: float, reasons: Sequence[Reason] = ()
) -> str:
    """The items of a job in slots on these GPUs of ``capacity_mib`` each; ``reasons`` are those of its start."""
    items = [f"lucid-gpus={','.join(map(str, gpus))}"]
    limit_mib = fence(profile, capacity_mib).mem_mib
    if limit_mib is not None:
        items.append(f"lucid-mem={limit_mib}")
    speed = next((reason.own for reason in reasons if isinstance(reason, PairSpeed)), None)
    if speed is not None:
        items.append(f"lucid-speed={speed:.2f}")
    return ";".join(items)
