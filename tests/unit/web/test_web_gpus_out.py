"""A GPU that gets no new start, on the page of the cluster: named with its cause, while those who run there go on."""

from __future__ import annotations

from pathlib import Path

from scenes.pages import Pages


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
