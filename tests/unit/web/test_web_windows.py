"""Windows on the page of the cluster: named, drawn over their nodes, and only with jobs that the viewer may see."""

from __future__ import annotations

from pathlib import Path

from lucid.slurm.records.reservations import Reservation
from scenes.pages import Pages


def test_a_window_is_told_and_drawn_over_its_nodes(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"others": "nothing"})
    slurm = pages.slurm.slurm
    start_s = slurm.now + 1800.0
    slurm.reserved = [Reservation("m", ("n2",), start_s, start_s + 3600.0, frozenset(["MAINT"]), node_list="n2")]
    pages.slurm.turns(120.0)
    pages.source.look()
    told = pages.client("ada").get("/cluster.json").json()["windows"]
    assert [(one["why"], one["nodes"], one["from_s"]) for one in told] == [("maintenance of n2 (m)", ["n2"], start_s)]
    assert told[0]["reaching"], "those of n2 have no time limit"
    page = pages.client("ada").get("/?hours=3").text
    assert "Maintenance of n2 (m) from" in page
    assert page.count('class="g g-window"') == 1
    assert 'class="now"' in page
    assert pages.client("bob").get("/cluster.json").json()["windows"][0]["reaching"] == []
    pages.source.stop()
