"""Best-fit placement: which nodes give a job its GPUs (E11, E12: Algorithm 3)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import TypeVar

__all__ = ["NotEnoughGpus", "best_fit"]

Node = TypeVar("Node", int, str)
Job = TypeVar("Job", int, str)


class NotEnoughGpus(ValueError):
    """The jobs need more GPUs than the nodes have free; nothing was placed."""


def best_fit(free: Mapping[Node, int], jobs: Iterable[tuple[Job, int]]) -> dict[Job, list[tuple[Node, int]]]:
    """Place jobs, largest first, each on the tightest node that holds it, else on the emptiest (E11).

    GPUs of jobs that are redeployed must be back in ``free`` before; jobs that keep their GPUs take no
    part. Ties, which the document leaves open: equal jobs in the order given; of equal nodes, the
    smallest id where one node suffices, the largest where a job is spread.

    Args:
        free: free GPUs by node.
        jobs: (job, GPUs) to place.

    Returns:
        For each job the (node, GPUs) that it gets, in the order taken.

    Raises:
        NotEnoughGpus: the jobs need more than is free.
    """
    wanted = sorted(jobs, key=lambda item: -item[1])
    need = sum(gpus for _, gpus in wanted)
    queue = sorted((gpus, node) for node, gpus in free.items() if gpus > 0)
    if need > sum(gpus for gpus, _ in queue):
        raise NotEnoughGpus(f"jobs need {need} GPUs, free are {sum(gpus for gpus, _ in queue)}")
    out: dict[Job, list[tuple[Node, int]]] = {}
    for job, gpus in wanted:
        parts = out.setdefault(job, [])
        while gpus > 0:
            # The first entry with at least that many GPUs; the last one, the emptiest, if there is none.
            index = min(bisect_left(queue, gpus, key=lambda entry: entry[0]), len(queue) - 1)
            have, node = queue.pop(index)
            taken = min(have, gpus)
            parts.append((node, taken))
            gpus -= taken
            if have > taken:
                insort(queue, (have - taken, node))
    return out
