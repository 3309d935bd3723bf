"""What explain, queue and the other tables show."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from builders import LIGHT, FixedPredictor, kinds, nodes, part, policy, runs, snap, waits
from daemon_site import Site
from kept import HERE, same_as
from lucid.binder.contention import contention_speeds
from lucid.core import reasons as why
from lucid.core.decision import Decision, DecisionRow
from lucid.core.node import Window
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Closes, NodesOut
from lucid.core.snapshot import Seen
from lucid.explain import reasons as window_words
from lucid.explain.formatting import duration, when
from lucid.explain.queue_rows import guess_words, start_words
from lucid.explain.reasons import decision_text, reason_text, reason_texts
from lucid.explain.story import Story
from lucid.slurm.records.configuration import Reservation

SAID: list[Reason] = [
    why.Priority("estimate x GPUs", 7200.0, 3600.0, 2, "history"),
    why.Priority("estimate x GPUs", 9.0, 9.0, 1, "x", 70), why.Priority("estimate x GPUs", 9.0, 9.0, 1, "x", 0, 50),
    why.Priority("attained GPU-seconds", 12000.0, 0.0, 2, "x"), why.FairOrder(3661.0),
    why.SlurmPriority(1234.4, 0.5, 0.25), why.SlurmPriority(5.0, 0.5, 0.25, 0.125),
    why.FairShare("vision", 0.25, 1.5, 4.0), why.Backfill(1, 7200.0, True), why.Backfill(3, 7200.0, False),
    why.PlainOrder(0.0, 7200.0, 7200.0, 14400.0), why.PlainOrder(0.0, 60.0, 7200.0, 14400.0),
    why.FreeGpus(1, 4, 9, True), why.FreeGpus(2, 4, 9, True), why.FreeGpus(2, 1, 1, False),
    why.FreeGpus(4, 3, 6, False), why.FreeGpus(1, 3, 6, False), why.OtherNodes(4, "h100"),
    why.HostFits(8, 100, False), why.HostFits(8, 100, True), why.AsksForGpus(0), why.AsksForGpus(1),
    why.TooLarge(9, 8), why.EverFits(9, 8, 7, False), why.EverFits(9, 8, 7, True), why.Boots("n3", True, 240.0),
    why.Boots("n3", False, 90.0, 2), why.BehindHead("a"), why.NextRound(60.0), why.Preempted(2, 1),
    why.Preempted(2, 3), why.Shareable(1, 0), why.Shareable(2, 1), why.Shareable(1, 2), why.UserAllows(False, False),
    why.UserAllows(True, True), why.InSlots(True, False, 1, False, False, None, 1),
    why.InSlots(True, False, 1, True, False, 1, 1), why.InSlots(True, False, 1, True, False, 2, 1),
    why.InSlots(True, False, 1, True, True, 1, 1), why.InSlots(True, False, 2, True, False, 1, 1),
    why.InSlots(False, False, 1, True, False, 1, 1), why.InSlots(True, True, 1, True, False, 1, 1),
    why.InSlots(True, False, 1, True, False, 0, -1), why.PairHarm("7", 0.75, 0.3), why.PairHarm("7", 0.5, 0.3),
    why.PairWork("7", 1.2, 1.1, 0.0, 0.0), why.PairWork("7", 1.0, 1.1, 60.0, 780.0),
    why.PairWork("7", 1.0, 1.1, 60.0, None), why.Overflow("vision", False), why.Overflow("vision", True),
    why.Requeueable(True, "asked", True), why.Requeueable(True, "asked"), why.Requeueable(True, "never", True),
    why.Requeueable(False, "asked", True), why.NotMeasured(False), why.NotMeasured(True), why.SameGpus(1, 0),
    why.SameGpus(2, 1), why.SameGpus(2, 3), why.SameUser("ada", 0), why.SameUser("ada", 2), why.ShareScores(1, 1, 2),
    why.ShareScores(1, 2, 2), why.GpuMemory("p", 9000.0, 4000.0, 24576.0), why.GpuMemory("p", 9.0, 4.0, 10.0),
    why.Stable("a", True), why.Stable("a", False), why.SharedBy("p", True, True), why.SharedBy("p", False, True),
    why.SharedBy("p", True, False), why.SeenSpeed("a", "p", 0.7, 0.5), why.SeenSpeed("a", "p", 0.4, 0.5),
    why.DistributedAlone(9, 8), why.PartnerOutlasts("p", 400.0, 300.0), why.PartnerOutlasts("p", 90.0, 300.0),
    why.PartnerLeaves("p", 100.0, 60.0, 2.0), why.PartnerLeaves("p", 130.0, 60.0, 2.0),
    why.PairSpeed("p", 0.9, 0.95, 0.85, "m"), why.PairSpeed("p", 0.8, 0.95, 0.85, "m"),
    why.PairSpeed("p", None, None, 0.85, "m"), why.PairSpeed("p", None, None, 0.85, "m", failed=True),
    why.BestPartner("p", 1.9, 4), why.BestPartner("p", 1.9, 1), why.BestPartner("p", 1.9, 1, "first"),
    why.Reserved("b", 60.0, 600.0, 1), why.Reserved("b", 60.0, 600.0, 1, 2.5), why.Allotted("speedup", 4, 8, 2.5),
    why.Allotted("speedup", 0, 8, 0.0), why.Rescaled(2, 3, 0), why.Rescaled(2, 1, 1),
    why.Interleaved(2, "a b", 0.25, 0.4), why.Overlaps("a b", 0.25, 0.33), why.SlowBefore("a b", 0.55, 0.8),
    why.Overlaps("a b", 0.5, 0.33), why.Reserved("b", 60.0, 0.0, 2),
    why.LargeShare(32, 32, 72, 0.5, "s", 7200.0, 7200.0), why.LargeShare(32, 32, 72, 0.5, "s", 3500.0, 7200.0),
    why.Unranked("", 240, 0.02, 0.16), why.Unranked("vision", 240, -0.4, 0.16), why.Unranked("", 240, 0.4, 0.06),
    why.Unranked("", 240, 0.4, 0.06, "history"), why.Unranked("", 0, 0.0, 1.0),
    why.WaitOrder(8, 7200.0, 16, "history", 172800.0), why.Quota("a", 2, 6, 8), why.Quota("a", 4, 6, 8),
    why.Quota("a", 2, 4, 8, 4, "j"), why.Borrows(600.0, ("b",), 4), why.OwnTurn("b", 7200.0, 3600.0),
    why.OwnTurn("b", 60.0, 3600.0), why.Borrows(600.0, ("b", "c", "d", "e")), why.Borrows(600.0),
    why.SkipsProfiling(16, 8), why.ProfileTime(80.0, 80.0), why.NobodyWaits(0), why.NobodyWaits(1),
    why.CarryNode("n1", True), why.CarryNode("n1", False), why.HomeWaits("v", 0), why.HomeWaits("v", 1),
    why.HomeWaits("v", 2), why.Requeueable(False), why.Requeueable(True), why.ProfilingTaken(4),
    why.ProfilingFits(8, False), why.ProfilerPressure(320.0, 160.0), why.ProfilerPressure(80.0, 160.0),
    why.HomeHasRoom("vc", 7, True), why.HomeHasRoom("vc", 0, False), why.Calm("nlp", 180000.0, 86400.0),
    why.Calm("nlp", 600.0, 86400.0), why.ProfilerPressure(320.0, 160.0, 90.0, "seasonal means"),
    why.SlurmBars("QOSMaxJobsPerUserLimit", 60.0), why.SlurmBars("Licenses", 0.0), why.NodesOut(8, "down, reserved"),
    why.GpusOut(2, "n7", 3, 3600.0, "Xid 79, fallen off the bus", "eve"), why.NodesOut(1, ""),
    why.NodesOut(8, "maintenance m1", 7200.0), why.Closes(4, 3600.0, 1200.0, 1200.0, 8400.0, "maintenance m1"),
    why.Closes(1, None, 1200.0, 1200.0, None, ""), why.Spread(2, 1), why.Spread(3, 2, 7200.0),
    why.Switches(1, 0, 7200.0, 0.0), why.Switches(2, 2, None, 0.0),
    why.Claims(2, (why.Victim("7", "scav", 4, 5400.0),), 36000.0),
    why.Claims(3, (why.Victim("7", "scav", 2, 0.0, saves=True), why.Victim("8", "scav", 1, 360.0, ends=True))),
    why.HeldBy("scav", 8, 2), why.HeldBy("scav", 1, 1, 1, 60.0), why.Unplanned("ValueError: it rained"),
    why.Unsafe("job 1: no room"), why.WaitedForProfiling(15000.0, 14400.0),
]  # fmt: skip
"""Their words stand in tests/golden/words/reasons.txt."""


def test_every_reason_of_ours_in_words() -> None:
    ours = {kind.kind for kind in why.REASONS.values() if kind.__module__.startswith(f"{why.__name__}.")}
    assert ours == {reason.kind for reason in SAID}
    same_as(HERE / "words/reasons.txt", "".join(f"{one.kind}: {reason_text(one)}\n" for one in SAID))


def test_gpus_that_are_free_on_kept_nodes_alone_are_said_to_be() -> None:
    fence = why.Reserved("49469", 9e4, 60.0, 4)
    one, four = why.FreeGpus(1, 3, 11, False), why.FreeGpus(4, 4, 11, False)
    assert reason_texts((fence, one)) == [reason_text(fence), "needs 1 GPU; 11 free, all on reserved nodes"]
    assert (
        reason_texts((fence, four), "nodes kept for 7")[1]
        == "needs 4 GPUs; 11 free, together only on nodes kept for 7"
    )
    for reasons in ((one,), (fence, one, why.OtherNodes(3, "h100")), (fence, why.FreeGpus(4, 3, 11, False))):
        assert reason_texts(reasons, "never said") == [reason_text(reason) for reason in reasons]


def test_a_story_marks_what_keeps_a_job_waiting_and_fits_on_a_screen() -> None:
    no, yes = why.FreeGpus(1, 0, 0, False), why.Reserved("7", 9e4, 60.0, 4)
    rows = [DecisionRow(60.0 * n, "1", "vc", "hold", (yes, no)) for n in range(40)]
    story = Story(
        "job 1", rows, estimate=["estimate 1.0 h by model:", "    the user's last job: +3 min"], first=["now"]
    )
    whole = story.lines(80)
    assert [text for text, light in whole if "✗" in text and light] == []
    assert {text.strip() for text, light in whole if not light and "GPU" in text} == {"✗ needs 1 GPU, 0 free"}
    assert {light for text, light in whole if text.strip().startswith("- ")} == {True}
    shown = story.lines(80, 23)
    assert len(shown) == 23
    assert shown[:2] == [("now", False), (f"({len(whole) - 22} earlier lines: --long)", True)]
    assert shown[2:] == whole[-21:]
    assert story.lines(80, len(whole)) == whole


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"), (80.0, "80 s"), (119.0, "119 s"), (120.0, "2 min"), (150.0, "2.5 min"), (599.0, "10 min"),
        (3599.0, "60 min"), (3600.0, "1.0 h"), (5400.0, "1.5 h"), (172000.0, "47.8 h"), (172800.0, "2.0 d"),
        (-90.0, "-90 s"),
    ],
)  # fmt: skip
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_moment_in_words() -> None:
    assert when(2 * 86400.0 + 3 * 3600.0 + 4 * 60.0 + 4.6) == "day 2 03:04:05"
    assert re.fullmatch(r"2026-11-2\d \d\d:\d\d:\d\d", when(1795258065.9)), "of a live daemon"


def test_decisions_that_no_golden_file_tells_of() -> None:
    assert decision_text(DecisionRow(0.0, "j", "v", "keep", ()), False) == "carries on in place (v)"
    start = DecisionRow(0.0, "j", "v", "start", (), "n1:0", "p")
    assert decision_text(start, True) == "starts its profiling run on n1:0, sharing GPUs with job p"
    resize = DecisionRow(0.0, "j", "v", "resize", (), "n1:0-1")
    assert decision_text(resize, False) == "is resized, and goes on from a checkpoint on n1:0-1"


def test_a_rule_that_is_not_set_is_no_reason_and_the_first_partner_is_not_called_the_best() -> None:
    room = part(nodes(1, 1), [waits("g", profile=LIGHT)], [runs("h", "n1:0", profile=LIGHT)])

    def packed(**packing: object) -> Decision:
        chosen = policy("lucid", FixedPredictor(speed=contention_speeds), packing=packing)
        return chosen.plan(snap(0.0, room)).partitions["vc"].decisions["g"]

    assert not {"PartnerLeaves", "HostFits"} & set(kinds(packed()))
    assert "PartnerLeaves" in kinds(packed(priority_ratio=2.0))
    for rule, words in (("first", "the first partner found"), ("best", "the only partner")):
        assert words in reason_text(packed(partner=rule).reasons[-1])


H, D = 3600, 86400


@pytest.mark.parametrize(
    ("starts_in_s", "words"),
    [
        ((0, 0, 0), "now"), ((50 * 60, 60 * 60, 70 * 60), "in 1.0 h (50 min to 1.2 h)"),
        ((1, 1, 1), "within a minute"), ((1, 20, 100), "within 2 min"), ((1, 4 * H, 4 * H), "within 4 h"),
        ((1, 264, 5400), "within 2 h, most likely in minutes"), ((1, H, 23 * H), "within a day"),
        ((1, 30 * 60, 50 * 60), "within the hour, most likely in 30 min"), ((1, H, 28 * D), "not known yet"),
        ((60, 6600, int(5.4 * H)), "within 6 h, most likely in 2 h"), (None, "in more than 12.0 h"),
        ((int(0.4 * D), int(7.4 * D), int(16.7 * D)), "within 17 d, most likely in 7 d"),
    ],
)  # fmt: skip
def test_a_range_is_said_as_narrow_as_it_is(starts_in_s: tuple[int, int, int] | None, words: str) -> None:
    assert start_words(starts_in_s, 12.0 * H) == words


def test_a_start_that_is_not_foreseen_is_a_dash_and_one_before_any_wait_has_ended_a_first_guess() -> None:
    assert (start_words(None, math.inf), start_words(None, 60.0, barred=True)) == ("-", "-")
    first, second, third = (guess_words(seen) for seen in (0, 3, 10))
    assert first.startswith("a first guess: no wait")
    assert second.startswith("a first guess: only 3 waits")
    assert third == ""


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
    monkeypatch.setattr(time, "time", lambda: site.slurm.now)
    monkeypatch.setenv("COLUMNS", "120")
    return site


def test_a_window_is_told_as_recorded(site: Site) -> None:
    """With which limit a job would start before it; then a running job that may last into it."""
    asked = [f"explain {LONG}", f"explain {ENDLESS}", f"why-not {LONG}", f"why-not {LONG} --time 30"]
    told = {words: site.ctl(*words.split()) for words in asked}
    data = json.loads(site.ctl("explain", LONG, "--json"))
    assert data["sooner"] == {"limit_s": 1080.0}
    early_s, likely_s, _ = data["starts_in_s"]
    assert early_s == likely_s >= 8370, "it cannot be before the end"
    assert site.slurm.writes == [(SHORT, "update"), (SHORT, "release")], "and nothing was written because of it"
    window = site.slurm.reserved[0]
    site.slurm.reserved = [replace(window, start_s=site.slurm.now + 300.0)]
    site.turns(70.0)
    told |= {words: site.ctl(*words.split()) for words in (f"explain {SHORT}", "queue")}
    same_as(HERE / "words/window.txt", "".join(f"$ lucidctl {words}\n{text}" for words, text in told.items()))
    assert len(json.loads(site.ctl("explain", SHORT, "--json"))["reaches"]) == 1
    (seen,) = json.loads(site.ctl("queue", "--json"))["windows"]
    assert (seen["nodes"], seen["reaching"]) == (["n1", "n2", "p1"], [SHORT])


def test_words_of_windows() -> None:
    open_ended = Seen(Window(100.0, None, "w"), ("n1",), tuple(map(str, range(10))))
    assert window_words.window_words(open_ended, 0.0) == (
        "w from day 0 00:01:40; jobs 0, 1, 2, 3, 4, 5, 6, 7 and 2 more may still run then"
    )
    assert window_words.window_words(structs.replace(open_ended, reaching=()), 200.0) == "w now"
    assert window_words.limit_words(2700.0) == "0:45:00"
    closes = Closes(4, 3600.0, 1190.0, 1200.0, None, "w")
    assert window_words.ends_in_time_s([closes], time.time()) == 1080.0
    assert (
        window_words.ends_in_time_s([structs.replace(closes, room_s=100.0), NodesOut(1, "w")], time.time()) is None
    ), "less than a minute"
