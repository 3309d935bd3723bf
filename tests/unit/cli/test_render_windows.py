"""What is said of windows: in the story of a job, under the queue, and by why-not, over a lucidd that runs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon_site import Site
from lucid.core.node import Window
from lucid.core.reasons.queue import Closes, NodesOut
from lucid.core.snapshot import Seen
from lucid.explain import reasons as window_words
from lucid.slurm.records.reservations import Reservation

LONG, ENDLESS, SHORT = "1", "2", "3"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A job of an hour and one without limit wait; a window of two hours is 20 minutes ahead."""
    site = Site(tmp_path, restarts=None)
    start_s = site.slurm.now + 1200.0
    nodes = ("n1", "n2", "p1")
    site.slurm.reserved = [
        Reservation("m", nodes, start_s, start_s + 7200.0, frozenset(["MAINT"]), node_list="n[1-2],p1")
    ]
    site.submit(LONG, 1, time_limit_s=3600.0)
    site.submit(ENDLESS, 1)
    site.submit(SHORT, 1, run_s=3000.0, time_limit_s=600.0)
    site.turns(30.0)
    monkeypatch.setattr(window_words, "time", SimpleNamespace(time=lambda: site.slurm.now))
    return site


def test_explain_says_with_which_limit_it_would_start_now(site: Site) -> None:
    told = site.ctl("explain", LONG)
    window = "maintenance of n[1-2],p1 (m) from day 0 00:36:40 to day 0 02:36:40"
    assert f"{window}; its time limit of 60 min ends after that begins" in told.replace("1.0 h", "60 min")
    assert "with --time 0:18:00 it would start now" in told
    assert json.loads(site.ctl("explain", LONG, "--json"))["sooner"] == {"limit_s": 1080.0}
    early_s, likely_s, _ = json.loads(site.ctl("explain", LONG, "--json"))["starts_in_s"]
    assert early_s == likely_s >= 8370, "it cannot be before the end"
    assert "this job has no time limit, so it cannot start before" in site.ctl("explain", ENDLESS)
    assert site.slurm.writes == [(SHORT, "update"), (SHORT, "release")], "and nothing was written because of it"


def test_why_not_plans_with_a_shorter_limit(site: Site) -> None:
    assert "with --time 0:18:00: start" in site.ctl("why-not", LONG)
    assert "with --time 0:30:00: waits" in site.ctl("why-not", LONG, "--time", "30")


def test_a_running_job_that_may_last_into_it_is_named(site: Site) -> None:
    window = site.slurm.reserved[0]
    site.slurm.reserved = [replace(window, start_s=site.slurm.now + 300.0)]
    site.turns(70.0)
    assert "may last into: maintenance of n[1-2],p1 (m) from" in site.ctl("explain", SHORT)
    assert len(json.loads(site.ctl("explain", SHORT, "--json"))["reaches"]) == 1
    assert f"job {SHORT} may still run then" in site.ctl("queue")
    (told,) = json.loads(site.ctl("queue", "--json"))["windows"]
    assert (told["nodes"], told["reaching"]) == (["n1", "n2", "p1"], [SHORT])


def test_words_of_windows() -> None:
    open_ended = Seen(Window(100.0, None, "w"), ("n1",), tuple(map(str, range(10))))
    assert window_words.window_words(open_ended, 0.0) == (
        "w from day 0 00:01:40; jobs 0, 1, 2, 3, 4, 5, 6, 7 and 2 more may still run then"
    )
    assert window_words.window_words(replace(open_ended, reaching=()), 200.0) == "w now"
    assert window_words.limit_words(2700.0) == "0:45:00"
    closes = Closes(4, 3600.0, 1190.0, 1200.0, None, "w")
    assert window_words.ends_in_time_s([closes], time.time()) == 1080.0
    assert window_words.ends_in_time_s([replace(closes, room_s=100.0), NodesOut(1, "w")], time.time()) is None, (
        "less than a minute"
    )
