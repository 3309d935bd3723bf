"""A GPU that gets no new start, on the page of the cluster: named with its cause, while those who run there go on."""

from __future__ import annotations

from pathlib import Path

from scenes.pages import Pages


def test_where_device_numbers_have_holes_the_page_goes_by_them(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"others": "nothing"})
    kinds = ("g0", "g1", "g3", "g5")
    pages.slurm.slurm.node("n2", gpu_types=kinds, shard_types=frozenset(kinds))
    pages.slurm.store.set_setting("gpu.out.n2:3", '{"node": "n2", "index": 3, "since_s": 1000.0, "words": "noisy"}')
    pages.slurm.turns(120.0)
    pages.source.look()
    told = pages.client("ada").get("/cluster.json").json()
    assert [(out["node"], out["gpu"]) for out in told["gpus_out"]] == [("n2", 3)]
    numbers = {one["name"]: one["numbers"] for one in told["nodes"]}
    assert (numbers["n1"], numbers["n2"]) == ([0, 1, 2, 3], [0, 1, 3, 5])
    cells = [cell for one in told["nodes"] if one["name"] == "n2" for row in one["slots"] for cell in row]
    assert (2, 1) in [(cell["gpu"], cell["gpus"]) for cell in cells], "the third stands apart"
    page = pages.client("ada").get("/").text
    assert "GPU 3 of n2</b> gets no new start" in page
    assert "vc, GPUs 0 1 3 5" in page
    assert "GPUs 0 1 2 3" not in page
    pages.source.stop()


def test_a_gpu_that_is_out_is_named(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"others": "nothing"})
    out = '{"node": "n2", "index": 3, "since_s": 1000.0, "words": "fan <is> noisy", "by": "root"}'
    pages.slurm.store.set_setting("gpu.out.n2:3", out)
    pages.slurm.turns(120.0)
    pages.source.look()
    told = pages.client("ada").get("/cluster.json").json()
    assert told["gpus_out"] == [{"node": "n2", "gpu": 3, "since_s": 1000.0, "why": "fan <is> noisy"}]
    cells = [cell for one in told["nodes"] if one["name"] == "n2" for row in one["slots"] for cell in row]
    assert [(cell["gpu"], cell["gpus"]) for cell in cells] == [(0, 3), (3, 1)] * 2, (
        "it stands apart; who runs goes on"
    )
    assert (told["totals"]["out"], told["totals"]["shared"]) == (0, 4), (
        "out is what nobody may have, and nobody holds"
    )
    page = pages.client("ada").get("/").text
    assert "GPU 3 of n2</b> gets no new start" in page
    assert "fan &lt;is&gt; noisy" in page
    pages.source.stop()
