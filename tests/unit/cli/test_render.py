"""What explain, queue and the other tables show."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from builders import LIGHT, FixedPredictor, kinds, nodes, part, policy, runs, snap, waits
from daemon_site import Site
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
from lucid.explain.replayed_story import replayed
from lucid.explain.story import Story
from lucid.slurm.records.configuration import Reservation

SAID: list[tuple[Reason, str]] = [
    (why.Priority("estimate x GPUs", 7200.0, 3600.0, 2, "history"), "estimate 1.0 h by history, 2 GPUs"),
    (
        why.Priority("estimate x GPUs", 9.0, 9.0, 1, "x", 70),
        "its QOS has priority 70: before all jobs of a lower one",
    ),
    (
        why.Priority("estimate x GPUs", 9.0, 9.0, 1, "x", 0, 50),
        "its user said --nice=50: by that among their own jobs",
    ),
    (why.Priority("attained GPU-seconds", 12000.0, 0.0, 2, "x"), "has had 12,000 GPU-seconds of service"),
    (why.FairOrder(3661.0), "in order of submission (day 0 01:01:01)"),
    (why.SlurmPriority(1234.4, 0.5, 0.25), "priority 1,234 (age factor 0.50, size factor 0.25)"),
    (why.SlurmPriority(5.0, 0.5, 0.25, 0.125), "size factor 0.25, fair-share factor 0.12)"),
    (why.FairShare("vision", 0.25, 1.5, 4.0), "factor 0.25 of vision: its priority value counts 1.50 times"),
    (why.Backfill(1, 7200.0, True), "ends by its time limit of 2.0 h before GPUs are needed for the job ahead of it"),
    (why.Backfill(3, 7200.0, False), "no GPUs are free for its time limit of 2.0 h without delaying the 3 jobs"),
    (
        why.PlainOrder(0.0, 7200.0, 7200.0, 14400.0),
        "waits 2.0 h beyond plain Slurm order (day 0 00:00:00): this job goes before all others, to start by",
    ),
    (why.PlainOrder(0.0, 60.0, 7200.0, 14400.0), "waits 60 s beyond plain Slurm order (day 0 00:00:00)"),
    (why.FreeGpus(1, 4, 9, True), "1 of 9 free GPUs"),
    (why.FreeGpus(2, 4, 9, True), "2 of 9 free GPUs, together"),
    (why.FreeGpus(2, 1, 1, False), "needs 2 GPUs, 1 free"),
    (why.FreeGpus(4, 3, 6, False), "needs 4 GPUs together; 6 free, but scattered: at most 3 on one node"),
    (why.FreeGpus(1, 3, 6, False), "needs 1 GPU; 6 free, but on no node that could take it"),
    (why.OtherNodes(4, "h100"), "4 GPUs are free on nodes that its user did not ask for (asked: h100)"),
    (why.HostFits(8, 100, False), "8 CPUs and 100 MiB of host memory do not fit on such a node"),
    (why.HostFits(8, 100, True), "8 CPUs and 100 MiB of host memory fit"),
    (why.AsksForGpus(0), "asks for no GPU: Slurm starts it, not Lucid"),
    (why.AsksForGpus(1), "asks for 1 GPU"),
    (why.TooLarge(9, 8), "asks for 9 GPUs, the partition has 8: it can never run here"),
    (why.EverFits(9, 8, 7, False), "no node that is up could ever hold it"),
    (why.EverFits(9, 8, 7, True), "a node could hold it"),
    (why.Boots("n3", True, 240.0), "n3 sleeps; a boot takes about 4 min"),
    (why.Boots("n3", False, 90.0, 2), "n3 boots, about 90 s; 2 more of its nodes are not awake"),
    (why.BehindHead("a"), "behind job a, which does not fit"),
    (why.NextRound(60.0), "decided at the next round, day 0 00:01:00"),
    (why.Preempted(2, 1), "jobs that come before it leave 1 of the VC's GPUs, it needs 2"),
    (why.Preempted(2, 3), "2 GPUs within the 3 that jobs before it leave"),
    (why.Shareable(1, 0), "sharing is off (GSS 0)"),
    (why.Shareable(2, 1), "share score 2 above GSS 1"),
    (why.Shareable(1, 2), "share score 1 within GSS 2"),
    (why.UserAllows(False, False), "its user asked not to share"),
    (why.UserAllows(True, True), "was separated from a partner before: runs alone"),
    (why.InSlots(True, False, 1, False, False, None, 1), "in slots, so that a job may join it once it is measured"),
    (why.InSlots(True, False, 1, True, False, 1, 1), "in slots, so that a job may join it"),
    (why.InSlots(True, False, 1, True, False, 2, 1), "on whole GPUs: share score 2, at most 1 starts in slots"),
    (why.InSlots(True, False, 1, True, True, 1, 1), "on whole GPUs: its utilisation pattern is unstable"),
    (why.InSlots(True, False, 2, True, False, 1, 1), "on whole GPUs: 2 nodes"),
    (why.InSlots(False, False, 1, True, False, 1, 1), "on whole GPUs: its request rules sharing out"),
    (why.InSlots(True, True, 1, True, False, 1, 1), "on whole GPUs: it was separated from a partner before"),
    (why.InSlots(True, False, 1, True, False, 0, -1), "on whole GPUs: sharing is off"),
    (
        why.PairHarm("7", 0.75, 0.3),
        "the pair cannot be separated later: at worst it runs at 75% of full speed, at least 70%",
    ),
    (why.PairHarm("7", 0.5, 0.3), "at worst it runs at 50% of full speed, less than 70%"),
    (why.PairWork("7", 1.2, 1.1, 0.0, 0.0), "beside job 7 both do 1.20 times the work of one, at least 1.10"),
    (
        why.PairWork("7", 1.0, 1.1, 60.0, 780.0),
        "beside job 7 both do 1.00 times the work of one, less than 1.10: after 13 min of wait, so far 60 s",
    ),
    (why.PairWork("7", 1.0, 1.1, 60.0, None), "less than 1.10: only a job that would end before its partner"),
    (why.Overflow("vision", False), "its own VC vision has no place for it: starts here"),
    (why.Overflow("vision", True), "its own VC vision has a place for it"),
    (why.Requeueable(True, "asked", True), "its user asked to have it started over"),
    (why.Requeueable(True, "asked"), "its user did not ask to have it started over"),
    (why.Requeueable(True, "never", True), "may not be started over: policy.profiling.restarts is never"),
    (why.Requeueable(False, "asked", True), "may not be requeued"),
    (why.NotMeasured(False), "not measured yet, so it shares with no other job"),
    (why.NotMeasured(True), "measured"),
    (why.SameGpus(1, 0), "no running job with 1 GPU that may be joined"),
    (why.SameGpus(2, 1), "1 running job with 2 GPUs could be joined"),
    (why.SameGpus(2, 3), "3 running jobs with 2 GPUs could be joined"),
    (why.SameUser("ada", 0), "only jobs of one user share GPUs here"),
    (why.SameUser("ada", 2), "only jobs of one user share GPUs here; 2 of other users' could be joined"),
    (why.ShareScores(1, 1, 2), "share scores 1 + 1 within GSS 2"),
    (why.ShareScores(1, 2, 2), "share scores 1 + 2 exceed GSS 2"),
    (why.GpuMemory("p", 9000.0, 4000.0, 24576.0), "GPU memory 9,000 + 4,000 MiB fits in 24,576 MiB"),
    (why.GpuMemory("p", 9.0, 4.0, 10.0), "GPU memory 9 + 4 MiB does not fit in 10 MiB together with job p"),
    (why.Stable("a", True), "job a has an unstable utilisation pattern"),
    (why.Stable("a", False), "job a has a steady utilisation pattern"),
    (why.SharedBy("p", True, True), "shares with job p by MPS, where the node has it"),
    (why.SharedBy("p", False, True), "by time-slicing: MPS serves one user, and that job is another's"),
    (why.SharedBy("p", True, False), "by time-slicing: there is no MPS here"),
    (why.SeenSpeed("a", "p", 0.7, 0.5), "job a was measured at 70% of full speed, sharing with job p"),
    (
        why.SeenSpeed("a", "p", 0.4, 0.5),
        "measured at 40% of full speed, sharing with job p, below 50%: sharing does not pay",
    ),
    (why.DistributedAlone(9, 8), "9 GPUs on several nodes of 8: distributed jobs do not share their GPUs"),
    (why.PartnerOutlasts("p", 400.0, 300.0), "job p is expected to run 6.7 min more"),
    (why.PartnerOutlasts("p", 90.0, 300.0), "job p is expected to run 90 s more, less than 5 min: not worth joining"),
    (why.PartnerLeaves("p", 100.0, 60.0, 2.0), "priority value 100 at most 2 x 60 of job p"),
    (why.PartnerLeaves("p", 130.0, 60.0, 2.0), "priority value 130 above 2 x 60 of job p"),
    (why.PairSpeed("p", 0.9, 0.95, 0.85, "m"), "sharing with job p: expected at 90% of full speed, the other at 95%"),
    (why.PairSpeed("p", 0.8, 0.95, 0.85, "m"), "at 80% of full speed, the other at 95%; at least 85% is needed"),
    (why.PairSpeed("p", None, None, 0.85, "m"), "its speed with job p is not measured"),
    (why.PairSpeed("p", None, None, 0.85, "m", failed=True), "with job p on its GPUs is not known: m failed"),
    (why.BestPartner("p", 1.9, 4), "job p is the best of 4 partners that qualify"),
    (why.BestPartner("p", 1.9, 1), "job p is the only partner that qualifies"),
    (why.BestPartner("p", 1.9, 1, "first"), "job p is the first partner found that qualifies"),
    (
        why.Reserved("b", 60.0, 600.0, 1),
        "1 node reserved for job b, expected to be free by day 0 00:01:00: only jobs expected to take at most 10 min",
    ),
    (why.Reserved("b", 60.0, 600.0, 1, 2.5), "so long that they must have time for 2.5 x their estimate"),
    (why.Allotted("speedup", 4, 8, 2.5), "the round gives it 4 GPUs of at most 8 (speedup 2.5)"),
    (why.Allotted("speedup", 0, 8, 0.0), "the round gives all GPUs to other jobs"),
    (why.Rescaled(2, 3, 0), "from 2 to 3 GPUs: some are idle, and no request waits for them"),
    (why.Rescaled(2, 1, 1), "from 2 to 1 GPU: requests that wait: 1"),
    (
        why.Interleaved(2, "a b", 0.25, 0.4),
        "takes turns in a group of 2 (a b): a round takes 0.25 s, one after the other 0.4 s",
    ),
    (
        why.Overlaps("a b", 0.25, 0.33),
        "shares its GPUs (a b): both want the same resource 25% of the time, so expected at 80% of full speed",
    ),
    (
        why.SlowBefore("a b", 0.55, 0.8),
        "does not share its GPUs (a b): such a group was measured at 55% of full speed, where 80%",
    ),
    (why.Overlaps("a b", 0.5, 0.33), "would share its GPUs (a b): both want the same resource 50% of the time, more"),
    (
        why.Reserved("b", 60.0, 0.0, 2),
        "2 nodes reserved for job b, which should have drained: no other job may start",
    ),
    (
        why.LargeShare(32, 32, 72, 0.5, "s", 7200.0, 7200.0),
        "jobs as large as this one hold 32 of 72 GPUs; with its 32 they would hold more than 50%, and job s has",
    ),
    (why.LargeShare(32, 32, 72, 0.5, "s", 3500.0, 7200.0), "nodes may be reserved for this job"),
    (
        why.Unranked("", 240, 0.02, 0.16),
        "estimates ranked the last 240 jobs no better than chance (gain 0.02 of 1, needed 0.16): plain order",
    ),
    (
        why.Unranked("vision", 240, -0.4, 0.16),
        "estimates ranked the last 240 jobs of vision worse than chance (gain -0.40 of 1, needed 0.16): plain order",
    ),
    (
        why.Unranked("", 240, 0.4, 0.06),
        "estimates ranked the last 240 jobs (gain 0.40 of 1, needed 0.06): order by estimate",
    ),
    (
        why.Unranked("", 240, 0.4, 0.06, "history"),
        "estimates by what the same user's last jobs took (those given rank worse) ranked the last 240 jobs (gain",
    ),
    (why.Unranked("", 0, 0.0, 1.0), "policy.fairness.estimates is never: plain order"),
    (
        why.WaitOrder(8, 7200.0, 16, "history", 172800.0),
        "most jobs that wait need more than 8 GPUs: place by (waited / estimate)³ x GPUs, after 2.0 d the",
    ),
    (why.Quota("a", 2, 6, 8), "VC a holds 6 of its quota of 8 GPUs: there is room for the 2 of this job"),
    (why.Quota("a", 4, 6, 8), "VC a holds 6 of its quota of 8 GPUs: no room for the 4 of this job"),
    (
        why.Quota("a", 2, 4, 8, 4, "j"),
        "VC a holds 4 of its quota of 8 GPUs and reserves 4 for job j: no room for",
    ),
    (why.Borrows(600.0, ("b",), 4), "borrows 4 GPUs of VC b until it ends: estimate 10 min"),
    (why.OwnTurn("b", 7200.0, 3600.0), "VC b stays within its quota with this job, which has waited 2.0 h (policy"),
    (
        why.OwnTurn("b", 60.0, 3600.0),
        "VC b stays within its quota with this job, which has waited 60 s: it goes before",
    ),
    (why.Borrows(600.0, ("b", "c", "d", "e")), "borrows idle GPUs of VC b, c, d and others until it ends"),
    (why.Borrows(600.0), "may borrow, and no VC has idle GPUs of its quota: estimate 10 min"),
    (why.SkipsProfiling(16, 8), "16 GPUs, profiling takes jobs of at most 8"),
    (why.ProfileTime(80.0, 80.0), "profiled for 80 s (limit 80 s)"),
    (why.NobodyWaits(0), "no job waits for profiling nodes"),
    (why.NobodyWaits(1), "1 job waits for profiling nodes"),
    (why.CarryNode("n1", True), "node n1 is one on which jobs may carry on"),
    (why.CarryNode("n1", False), "node n1 is for profiling runs only"),
    (why.HomeWaits("v", 0), "no job waits in its own VC v"),
    (why.HomeWaits("v", 1), "1 job already waits in VC v"),
    (why.HomeWaits("v", 2), "2 jobs already wait in VC v"),
    (why.Requeueable(False), "may not be requeued"),
    (why.Requeueable(True), "may be requeued"),
    (
        why.ProfilingTaken(4),
        "jobs that Lucid does not schedule hold 4 GPUs of the profiling nodes: this job is measured in its own VC",
    ),
    (why.ProfilingFits(8, False), "no profiling node could hold 8 GPUs"),
    (why.ProfilerPressure(320.0, 160.0), "the profiling queue is 5.3 min long, a burst (above 2.7 min)"),
    (why.ProfilerPressure(80.0, 160.0), "the profiling queue is 80 s long, no burst (up to 2.7 min)"),
    (why.HomeHasRoom("vc", 7, True), "its own VC vc has 7 idle GPUs and no waiting job: measured where it runs"),
    (why.HomeHasRoom("vc", 0, False), "no room at once in its own VC vc"),
    (
        why.Calm("nlp", 180000.0, 86400.0),
        "no job has waited in VC nlp for 2.1 d (24.0 h are asked for): this job shares only if it would wait",
    ),
    (why.Calm("nlp", 600.0, 86400.0), "VC nlp for 10 min (24.0 h are asked for): this job shares where it can"),
    (
        why.ProfilerPressure(320.0, 160.0, 90.0, "seasonal means"),
        "the profiling queue is 5.3 min long, with what is to come (forecast 90 GPUs an hour by seasonal means), "
        "a burst (above 2.7 min)",
    ),
    (
        why.SlurmBars("QOSMaxJobsPerUserLimit", 60.0),
        "Slurm would not start it now: QOSMaxJobsPerUserLimit; Lucid tries",
    ),
    (why.SlurmBars("Licenses", 0.0), "Slurm would not start it now: Licenses"),
    (why.NodesOut(8, "down, reserved"), "8 GPUs on nodes where nothing may start (down, reserved)"),
    (
        why.GpusOut(2, "n7", 3, 3600.0, "Xid 79, fallen off the bus", "eve"),
        "GPU 3 of n7 is out since day 0 01:00:00: Xid 79, fallen off the bus (by eve); 1 more",
    ),
    (why.NodesOut(1, ""), "1 GPU on nodes where nothing may start"),
    (
        why.NodesOut(8, "maintenance m1", 7200.0),
        "8 GPUs on nodes where nothing may start (maintenance m1, until day 0 02:00:00)",
    ),
    (
        why.Closes(4, 3600.0, 1200.0, 1200.0, 8400.0, "maintenance m1"),
        "4 GPUs on nodes that close: maintenance m1 from day 0 00:20:00 to day 0 02:20:00; "
        "its time limit of 1.0 h ends after that begins",
    ),
    (
        why.Closes(1, None, 1200.0, 1200.0, None, ""),
        "1 GPU on nodes that close: closed from day 0 00:20:00; "
        "this job has no time limit, so it cannot start before",
    ),
    (why.Spread(2, 1), "2 nodes below one switch"),
    (why.Spread(3, 2, 7200.0), "3 nodes below 2 switches; below one by about day 0 02:00:00"),
    (
        why.Switches(1, 0, 7200.0, 0.0),
        "its user asked for nodes below at most 1 switch, until day 0 02:00:00: there is no room below so few",
    ),
    (why.Switches(2, 2, None, 0.0), "its user asked for nodes below at most 2 switches"),
    (
        why.Claims(2, (why.Victim("7", "scav", 4, 5400.0),), 36000.0),
        "preempts job 7 of scav (4 GPUs), which loses 1.50 GPU-hours: of all that would do, it loses least "
        "(the best choice on another node would lose 10.00 GPU-hours)",
    ),
    (
        why.Claims(3, (why.Victim("7", "scav", 2, 0.0, saves=True), why.Victim("8", "scav", 1, 360.0, ends=True))),
        "preempts job 7 of scav (2 GPUs), which goes on from a checkpoint; job 8 of scav (1 GPU), which is cancelled "
        "and loses 0.10 GPU-hours: of all that would do, they lose least",
    ),
    (why.HeldBy("scav", 8, 2), "8 GPUs are held by 2 jobs of partition scav, which may not be preempted"),
    (
        why.HeldBy("scav", 1, 1, 1, 60.0),
        "1 GPU is held by 1 job of partition scav: all of them may be preempted, the first from day 0 00:01:00 on, "
        "which does not suffice now",
    ),
    (
        why.Unplanned("ValueError: it rained"),
        "no plan of its partition can be made at present (ValueError: it rained)",
    ),
    (why.Unsafe("job 1: no room"), "the safety check stopped what was planned: job 1: no room"),
    (why.WaitedForProfiling(15000.0, 14400.0), "has waited 4.2 h for a profiling node, at most 4.0 h is allowed"),
]


@pytest.mark.parametrize(("reason", "words"), SAID, ids=lambda item: item.kind if isinstance(item, Reason) else "")
def test_a_reason_in_words(reason: Reason, words: str) -> None:
    assert words in reason_text(reason)


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


def test_every_reason_of_ours_has_words() -> None:
    ours = {kind.kind for kind in why.REASONS.values() if kind.__module__.startswith(f"{why.__name__}.")}
    assert ours == {reason.kind for reason, _ in SAID}


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


def test_a_moment_of_a_live_daemon_is_a_date() -> None:
    assert re.fullmatch(r"2026-11-2\d \d\d:\d\d:\d\d", when(1795258065.9))


def test_a_moment_in_words() -> None:
    assert when(2 * 86400.0 + 3 * 3600.0 + 4 * 60.0 + 4.6) == "day 2 03:04:05"


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("hold", "waits (v)"), ("requeue", "is preempted (v)"), ("release", "moves on to its VC (v)"),
        ("keep", "carries on in place (v)"), ("part", "is separated from its partner, and waits again (v)"),
    ],
)  # fmt: skip
def test_a_decision_in_words(verb: str, words: str) -> None:
    assert decision_text(DecisionRow(0.0, "j", "v", verb, ()), False) == words


def test_a_start_in_words() -> None:
    start = DecisionRow(0.0, "j", "v", "start", (), "n1:0", "p")
    assert decision_text(start, False) == "starts on n1:0, sharing GPUs with job p"
    assert decision_text(start, True) == "starts its profiling run on n1:0, sharing GPUs with job p"


JOB = {
    "job_id": "j", "user": "", "name": "", "gpus": "1", "vc": "v", "submit_s": "0", "end_s": "", "jct_s": "",
    "queue_s": "0", "duration_s": "5", "packed": "0", "packed_s": "0", "ended_in_profiling": "0",
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 140])
def test_long_lines_go_on_under_their_own_beginning(width: int) -> None:
    hold = DecisionRow(0.0, "j", "v", "hold", (why.Reserved("big", 60.0, 600.0, 1), why.TooLarge(9, 8)))
    lines = replayed(JOB, "lucid", [hold]).text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(re.match(r"(day \d|job |in all: it never ran| {16}(- |  )\S)", line) for line in lines)
    joined = " ".join(line.strip() for line in lines)
    assert reason_text(hold.reasons[1]) in joined


def packed(**packing: object) -> Decision:
    room = part(nodes(1, 1), [waits("g", profile=LIGHT)], [runs("h", "n1:0", profile=LIGHT)])
    chosen = policy("lucid", FixedPredictor(speed=contention_speeds), packing=packing)
    return chosen.plan(snap(0.0, room)).partitions["vc"].decisions["g"]


def test_a_rule_that_is_not_set_is_no_reason() -> None:
    assert "PartnerLeaves" not in kinds(packed())
    assert "PartnerLeaves" in kinds(packed(priority_ratio=2.0))
    assert "HostFits" not in kinds(packed())


def test_the_first_partner_is_not_called_the_best() -> None:
    for rule, words in (("first", "the first partner found"), ("best", "the only partner")):
        assert words in reason_text(packed(partner=rule).reasons[-1])


def test_a_resize_in_words() -> None:
    entry = DecisionRow(0.0, "j", "vc", "resize", (why.Allotted("speedup", 2, 4, 1.5),), placement="n1:0-1")
    assert decision_text(entry, False) == "is resized, and goes on from a checkpoint on n1:0-1"


H, D = 3600, 86400


@pytest.mark.parametrize(
    ("starts_in_s", "words"),
    [
        ((0, 0, 0), "now"),
        ((50 * 60, 60 * 60, 70 * 60), "in 1.0 h (50 min to 1.2 h)"),
        ((1, 1, 1), "within a minute"),
        ((1, 20, 100), "within 2 min"),
        ((1, 264, 5400), "within 2 h, most likely in minutes"),
        ((1, 30 * 60, 50 * 60), "within the hour, most likely in 30 min"),
        ((60, 6600, int(5.4 * H)), "within 6 h, most likely in 2 h"),
        ((1, 4 * H, 4 * H), "within 4 h"),
        ((int(0.4 * D), int(7.4 * D), int(16.7 * D)), "within 17 d, most likely in 7 d"),
        ((1, H, 23 * H), "within a day"),
        ((1, H, 28 * D), "not known yet"),
        (None, "in more than 12.0 h"),
    ],
)
def test_a_range_is_said_as_narrow_as_it_is(starts_in_s: tuple[int, int, int] | None, words: str) -> None:
    assert start_words(starts_in_s, 12.0 * H) == words


def test_a_start_that_is_not_foreseen_is_a_dash() -> None:
    assert (start_words(None, math.inf), start_words(None, 60.0, barred=True)) == ("-", "-")


def test_a_start_before_any_wait_has_ended_is_a_first_guess() -> None:
    assert [guess_words(seen)[:31] for seen in (0, 3, 10)] == [
        "a first guess: no wait has ende", "a first guess: only 3 waits hav", "",
    ]  # fmt: skip


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
    assert window_words.window_words(structs.replace(open_ended, reaching=()), 200.0) == "w now"
    assert window_words.limit_words(2700.0) == "0:45:00"
    closes = Closes(4, 3600.0, 1190.0, 1200.0, None, "w")
    assert window_words.ends_in_time_s([closes], time.time()) == 1080.0
    assert (
        window_words.ends_in_time_s([structs.replace(closes, room_s=100.0), NodesOut(1, "w")], time.time()) is None
    ), "less than a minute"
