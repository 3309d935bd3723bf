"""One bundle for each job, or none, so that the sum of what they are worth is best (section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.systems.sia.configurations import Bundle, Kind
from lucid.systems.threads import one_thread

__all__ = ["Choice", "choose"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """``bundle``: by job, the number of its bundle, -1 for none. ``value``: the sum. ``proved``: no better one
    exists, up to the gap."""

    bundle: tuple[int, ...]
    value: float
    proved: bool


def choose(
    utility: Floats,
    bundles: Sequence[Bundle],
    kinds: Sequence[Kind],
    *,
    maximise: bool,
    idle: float,
    gap: float = 1e-4,
    nodes: int = 1000,
) -> Choice | None:
    """Solve the program with HiGHS.

    At most one bundle a job. For each kind of nodes, and each power of two: what is handed out in pieces of at least
    this size is no more than there is in such pieces; and no more whole nodes than there are. So every solution can
    be placed.

    Args:
        utility: (J, C) what a bundle is worth to a job; NaN where it cannot have it.
        bundles: the C bundles.
        kinds: the kinds of nodes that they are of.
        maximise: the largest sum, else the smallest.
        idle: what a job without a bundle counts: lost from the largest sum, added to the smallest.
        gap: how far, relatively, the sum may be from the best one.
        nodes: most nodes of the search's tree: a bound on its effort that is the same on every machine.

    Returns:
        The choice; ``None`` if the solver found none.
    """
    job, bundle = np.nonzero(~np.isnan(utility))
    if not len(job):
        return Choice((-1,) * len(utility), -idle * len(utility) if maximise else idle * len(utility), True)
    # the constant part, ``idle`` for each job, is left out: a bundle saves it
    cost = -utility[job, bundle] - idle if maximise else utility[job, bundle] - idle
    variable = np.arange(len(job))
    limits = [(number, level) for number, kind in enumerate(kinds) for level in kind.levels]
    pieces = [[b.takes(kinds[n], level) if b.kind == n else 0 for b in bundles] for n, level in limits]
    nodes_taken = [[b.nodes if b.whole and b.kind == n else 0 for b in bundles] for n in range(len(kinds))]
    taken = np.array([*pieces, *nodes_taken], dtype=np.float64)
    row, column = np.nonzero(taken[:, bundle])
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    ones = coo_array((np.ones(len(job)), (job, variable)), shape=(len(utility), len(job)))
    uses = coo_array((taken[:, bundle][row, column], (row, column)), shape=(len(taken), len(job)))
    room = np.array(
        [*(kinds[n].room(level) for n, level in limits), *(kind.whole for kind in kinds)], dtype=np.float64
    )
    rules = [LinearConstraint(ones.tocsr(), ub=1.0), LinearConstraint(uses.tocsr(), ub=room)]
    # without presolve: twice as fast on these programs, and HiGHS then writes nothing to stdout
    options = {"mip_rel_gap": gap, "node_limit": nodes, "presolve": False}
    with one_thread():
        found = milp(cost, integrality=np.ones(len(job)), bounds=Bounds(0, 1), constraints=rules, options=options)
    if found.x is None:
        return None
    chosen = np.full(len(utility), -1, dtype=np.intp)
    mine = np.flatnonzero(found.x > 0.5)
    chosen[job[mine]] = bundle[mine]
    lost = idle * len(utility)
    return Choice(tuple(chosen.tolist()), -found.fun - lost if maximise else found.fun + lost, found.status == 0)
