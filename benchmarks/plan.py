"""Latency of one ``plan()``, and how it grows with the queue. The measuring is that of ``benchmarks.bench``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.busy import PLAN_SIZES, bench_plan
from benchmarks.figure import Absent, Figure

__all__ = ["SIZES", "draw", "figures"]

SIZES = sorted({*PLAN_SIZES, (1_000, 8_192), (2_048, 8_192)}, key=lambda size: (size[1], size[0]))
"""(pending jobs, GPUs): those of ``benchmarks.bench``, and short queues on the large cluster, to see growth."""

_AT_MOST_MS = {(2_048, 1_024): 10.0, (10_000, 8_192): 60.0}
_REPEATS_A_RUN = 5


def figures(runs: int) -> Iterator[Figure]:
    """Lucid's median at each size against fifo's in the same process, both cold, both on a cluster of their own
    making."""
    repeat = max(3, runs * _REPEATS_A_RUN)
    for pending, gpus in SIZES:
        fifo = bench_plan("fifo", pending, gpus, repeat)
        lucid = bench_plan("lucid", pending, gpus, repeat)
        yield Figure(
            f"one plan(), {pending:,} pending on {gpus:,} GPUs",
            float(lucid["median_ms"]),
            "ms",
            repeat,
            float(fifo["median_ms"]),
            "fifo",
            at_most=_AT_MOST_MS.get((pending, gpus)),
            note=f"p99 {float(lucid['p99_ms']):.1f} ms, CPU {float(lucid['median_cpu_ms']):.1f} ms",
            detail={"pending": pending, "gpus": gpus, "lucid": lucid, "fifo": fifo},
        )


def draw(found: Sequence[Figure], out: Path) -> None:
    """The growth as a picture; the suffix of ``out`` says which format.

    Raises:
        Absent: the plan latencies were not measured in this run.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "lucid"
    from matplotlib import pyplot as plt

    points = [figure for figure in found if "pending" in figure.detail]
    if not points:
        raise Absent(f"{out} shows the growth of plan(), which was not measured; add --only plan")
    fig, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for policy, colour in (("lucid", "#1f5fa8"), ("fifo", "#a8711f")):
        for gpus, style, marker in ((1_024, "--", "o"), (8_192, "-", "s")):
            here = [f.detail for f in points if f.detail["gpus"] == gpus]
            at = [(size["pending"], size[policy]["median_cpu_ms"]) for size in here]
            if at:
                label = f"{policy}, {gpus:,} GPUs"
                axes.plot(*zip(*at, strict=True), style, marker=marker, color=colour, label=label)
    linear_from = next((f for f in points if f.detail["gpus"] == 8_192), points[0])
    first, first_ms = linear_from.detail["pending"], linear_from.detail["lucid"]["median_cpu_ms"]
    last = max(f.detail["pending"] for f in points)
    axes.plot([first, last], [first_ms, first_ms * last / first], ":", color="#888", label="proportional growth")
    axes.set(xscale="log", yscale="log", xlabel="pending jobs", ylabel="median CPU time of one plan(), ms")
    axes.set_title("One decision, nothing kept from the last one", fontsize=11)
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    fig.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    plt.close(fig)
