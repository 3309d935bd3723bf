"""Maximum-weight matching of jobs, fast on a thousand of them (M9).

Three ways, chosen by size:

* few vertices: the blossom algorithm on all edges;
* many vertices of few kinds (jobs of the same model weigh the same): how many pairs each two kinds form
  is a small integer programme;
* many vertices of many kinds: the fractional matching (an assignment problem) gives a price to every
  vertex; an edge that costs more than the gap between the fractional value and a matching already found
  cannot be part of a better one, so the blossom algorithm runs on the few edges left. The proof that
  the last edges change nothing takes most of the time; ``rel_gap`` says how small a doubt may stay."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Pairs = list[tuple[int, int]]

_SMALL = 64  # vertices up to which all edges go to the blossom algorithm
_FEW_KINDS = 120  # kinds up to which the integer programme is faster (measured: 0.2 s at 120)
_MEMBERS = 6  # vertices a kind from which it is worth it
_FIRST_EDGES = 8  # edges kept a vertex in the first try, in all and of its own
_TOLERANCE = 1e-11  # rounding of the prices


def max_weight_matching(weights: ArrayLike, rel_gap: float = 0.0) -> Pairs:
    """Disjoint pairs of vertices with the largest sum of weights (M9).

    Args:
        weights: (n, n), symmetric; an entry <= 0 means that the two must not be matched. The diagonal
            is ignored.
        rel_gap: the sum may fall short of the optimum by this fraction, if there are more than 64
            vertices; 0 is exact.

    Returns:
        Pairs (i, j) with i < j, ascending. Equal inputs give equal pairs.

    Raises:
        ValueError: ``weights`` is not a square symmetric matrix of finite numbers."""
    w = np.array(weights, dtype=np.float64)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or not np.isfinite(w).all() or not np.allclose(w, w.T):
        raise ValueError(f"weights of shape {w.shape}: need a square symmetric matrix of finite numbers")
    return match_by_kind(w, np.arange(len(w)), rel_gap)


def match_by_kind(weights: Floats, kinds: Ints, rel_gap: float = 0.0) -> Pairs:
    """Maximum-weight matching where the weight of two vertices depends only on their kinds.

    Args:
        weights: (kinds, kinds), symmetric; <= 0 forbids. Here the diagonal counts: two of one kind.
        kinds: (n,) kind of each vertex.

    Returns:
        Pairs of vertices (i, j), i < j, ascending."""
    n = len(kinds)
    used, kinds = np.unique(kinds, return_inverse=True)
    w = np.maximum(weights[np.ix_(used, used)], 0.0)
    if n < 2 or not w.any():
        return []
    if n <= _SMALL:
        i, j = np.triu_indices(n, 1)
        return _blossom(n, i, j, w[kinds[i], kinds[j]])
    if len(used) <= _FEW_KINDS and n >= _MEMBERS * len(used):
        return _by_integer_programme(w, kinds)
    return _by_prices(w[np.ix_(kinds, kinds)], rel_gap)


def _blossom(n: int, i: Ints, j: Ints, w: Floats) -> Pairs:
    """The blossom algorithm on the edges (i, j) of weight w > 0."""
    keep = w > 0
    i, j, w = i[keep], j[keep], w[keep]
    if not len(w):
        return []
    # Whole numbers, since the algorithm compares prices for equality.
    whole = np.rint(w * (2.0**50 / w.max())).astype(np.int64)
    import rustworkx as rx

    graph: rx.PyGraph[None, int] = rx.PyGraph(multigraph=False)
    graph.add_nodes_from([None] * n)
    graph.add_edges_from(list(zip(i.tolist(), j.tolist(), whole.tolist(), strict=True)))
    return sorted((min(e), max(e)) for e in rx.max_weight_matching(graph, weight_fn=int))


def _by_integer_programme(w: Floats, kinds: Ints) -> Pairs:
    """Maximise sum w_st x_st, x_st pairs of kinds s <= t, each kind's vertices used up."""
    members = [np.flatnonzero(kinds == kind).tolist() for kind in range(len(w))]
    if len(kinds) % 2:  # one vertex stays alone: give it a partner that weighs nothing
        w = np.pad(w, (0, 1))
        members.append([-1])
    count = np.array([len(m) for m in members])
    s, t = np.triu_indices(len(count))
    column = np.arange(len(s))
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    used = coo_array(
        (np.ones(2 * len(s)), (np.concatenate([s, t]), np.concatenate([column, column]))),
        shape=(len(count), len(s)),
    ).tocsc()
    most = np.where(s == t, count[s] // 2, np.minimum(count[s], count[t]))
    # The solver stops within 1e-6 of the optimum in absolute terms: large weights make that exact.
    result = milp(
        -w[s, t] * (1e6 / w.max()),
        integrality=np.ones(len(s)),
        bounds=Bounds(0, most),
        constraints=LinearConstraint(used, count, count),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise RuntimeError(f"matching of {len(kinds)} jobs of {len(w)} kinds: {result.message}")
    pairs: Pairs = []
    for a, b, number in zip(s.tolist(), t.tolist(), np.rint(result.x).astype(int).tolist(), strict=True):
        for _ in range(number):
            i, j = members[a].pop(0), members[b].pop(0)
            if i >= 0 and j >= 0 and w[a, b] > 0:
                pairs.append((min(i, j), max(i, j)))
    return sorted(pairs)


def _prices(w: Floats) -> Floats:
    """(n,) prices p with p_i + p_j >= w_ij for i != j, of least sum: the dual of fractional matching."""
    n = len(w)
    full = w.copy()
    np.fill_diagonal(full, -4 * w.max() - 1)  # low enough that no vertex is matched with itself
    from scipy.optimize import linear_sum_assignment

    _, partner = linear_sum_assignment(full, maximize=True)
    taken = full[np.arange(n), partner]
    regret = full - taken[:, None]
    column = np.zeros(n)
    for _ in range(n):  # longest paths; no circle is positive, for the assignment is optimal
        better = np.maximum(column, (column[partner][:, None] + regret).max(axis=0))
        done = (better - column).max() < 1e-13
        column = better
        if done:
            break
    row = taken - column[partner]
    return np.asarray((row + column) / 2)


def _by_prices(w: Floats, rel_gap: float) -> Pairs:
    """Blossom on the edges that the prices leave, more of them until the matching is proved optimal."""
    n = len(w)
    if n % 2:  # one vertex stays alone: give it a partner that weighs nothing
        w = np.pad(w, (0, 1))
    price = _prices(w)
    bound = float(price.sum())
    cost = price[:, None] + price[None, :] - w
    np.fill_diagonal(cost, np.inf)
    # Each vertex's own cheapest edges too: without them a corner of the graph may have no partner left.
    own = np.partition(cost, min(_FIRST_EDGES, len(w) - 1), axis=1)[:, min(_FIRST_EDGES, len(w) - 1)]
    i, j = np.triu_indices(len(w), 1)
    weight, slack = w[i, j], cost[i, j]
    near = (slack <= own[i]) | (slack <= own[j])
    keep = _FIRST_EDGES * len(w)
    gap = np.inf
    while True:
        limit = min(gap, float(np.partition(slack, keep)[keep]) if keep < len(slack) else np.inf)
        few = (slack <= limit + _TOLERANCE) | near
        pairs = _blossom(len(w), i[few], j[few], weight[few])
        gap = bound - sum(float(w[a, b]) for a, b in pairs)
        if gap <= max(limit + _TOLERANCE, rel_gap * bound):
            return pairs
        keep *= 4
