"""One record that cannot be read is left out and told; the rest is read as if it were not there."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from builders import at
from fake_slurm import fake_node
from lucid.errors import ClusterError, ClusterUnreadable
from lucid.left_out import LeftOut, short
from lucid.slurm.accounting import accounted_from
from lucid.slurm.records.configuration import fair_shares_from
from lucid.slurm.records.fields import array_tasks, gpu_count, gpu_mask, gpu_types, hosts, memory_mib
from lucid.slurm.records.from_json import JOB_NEEDS, NODE_NEEDS, jobs_from, nodes_from
from lucid.slurm.records.job import without_unread
from lucid.slurm.records.json import loads

RUNNING: dict[str, Any] = {
    "job_id": 7, "job_state": ["RUNNING"], "partition": "a", "user_name": "bob", "nodes": "n1", "name": "x",
    "tres_per_node": "gres/gpu:2", "gres_detail": ["gpu:g0:1(IDX:0),gpu:g2:1(IDX:2)"], "start_time": 5,
    "job_resources": {},
}  # fmt: skip
RUNNING |= dict.fromkeys(JOB_NEEDS - RUNNING.keys())
NODE = {**dict.fromkeys(NODE_NEEDS), "name": "n1", "state": ["IDLE"]}
WAITING: dict[str, Any] = dict.fromkeys(JOB_NEEDS)
WAITING |= {"job_id": 8, "job_state": ["PENDING"], "partition": "a", "tres_per_node": "gres/gpu:1", "user_name": "al"}


def jobs(*records: Any, left_out: LeftOut | None = None) -> Any:
    return jobs_from({"jobs": list(records)}, left_out)


@pytest.mark.parametrize(
    "bad",
    [
        {**WAITING, "job_id": 9, "tres_per_node": "gres/gpu:99999999999999999999"},
        {**WAITING, "job_id": 9, "tres_per_node": "gres/gpu:100001"},
        {**WAITING, "job_id": 9, "tres_per_node": "gres/gpu:1," * 9999},
        {**WAITING, "job_id": 9, "name": {"a": 1}},
        {**WAITING, "job_id": 9, "job_resources": {"nodes": {"allocation": [5]}}},
        {**WAITING, "job_id": 9, "gres_detail": "gpu"},
        {**WAITING, "job_id": 9, "job_state": None},
        {"job_id": 9},
        5, None, "x", [], {},
    ],
)  # fmt: skip
def test_the_good_records_beside_a_bad_one_are_what_they_were(bad: Any) -> None:
    left_out = LeftOut()
    alone = jobs(RUNNING, WAITING)
    beside = jobs(RUNNING, bad, WAITING, left_out=left_out)
    assert [job for job in beside if not job.unread] == alone
    assert left_out.summary()["jobs"]["now"] == 1
    jobs(RUNNING, WAITING, left_out=left_out)
    assert (left_out.summary()["jobs"]["now"], left_out.summary()["jobs"]["ever"]) == (0, 1)


@pytest.mark.parametrize(
    ("change", "placement", "lost"),
    [
        ({"name": 5}, at("n1:0,2"), False),
        ({"gres_detail": "gpu"}, (), True),
        ({"gres_detail": ["gpu:g0:1(IDX:²)"]}, (), True),
        ({"gres_detail": [5], "name": 5}, (), True),
        ({"nodes": "", "name": "x"}, (), True),
        ({"job_state": []}, at("n1:0,2"), False),
        ({"job_resources": {"nodes": {"allocated": []}}}, (), True),
        ({"job_resources": {"nodes": {"allocation": [{"name": "n1", "cpus": {"number": 5}}]}}}, (), True),
        ({"gres_detail": []}, (), True),
        ({"gres_detail": None}, (), True),
        ({"gres_detail": ["gpu:2(IDX:N/A)"]}, (), True),
        ({"gres_detail": [], "tres_per_node": "", "tres_alloc_str": "cpu=1,gres/shard=2"}, (), True),
        ({"gres_detail": ["gpu:g0:1(IDX:0)"], "tres_alloc_str": "cpu=1,gres/gpu:g0=1,gres/gpu=2"}, (), True),
    ],
)  # fmt: skip
def test_an_unreadable_job_still_holds_its_gpus(change: dict[str, Any], placement: Any, lost: bool) -> None:
    (job,) = jobs({**RUNNING, **change})
    assert job.unread
    assert (job.id, job.placement, job.lost) == ("7", placement, lost)


@pytest.mark.parametrize("states", ["COMPLETING RUNNING", "RUNNING COMPLETING", "PENDING"])
def test_slurm_forgets_the_gpus_of_a_job_that_completes(states: str) -> None:
    gone = {"job_state": states.split(), "gres_detail": [], "tres_alloc_str": "cpu=1,gres/gpu=2"}
    (job,) = jobs({**RUNNING, **gone})
    assert not job.unread


def without(record: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != field}


WHOLE = [{**RUNNING, "job_id": 100 + number} for number in range(2)]
META = {"slurm": {"version": {"major": "27", "minor": "05"}}}


@pytest.mark.parametrize("field", sorted({*JOB_NEEDS, "job_resources"}))
def test_a_job_without_a_field_cannot_be_read_and_one_that_most_lack_is_a_change_of_slurms_format(field: str) -> None:
    """Each of them would be unreadable, and each that Lucid holds would be let go, all at once."""
    job, *others = jobs(without(RUNNING, field), *WHOLE)
    assert job.unread
    assert not any(other.unread for other in others)
    assert job.placement == at("n1:0,2") or job.lost, "it holds its GPUs"
    lacking = [without({**RUNNING, "job_id": number}, field) for number in (1, 2, 3)]
    for records in (lacking, [*lacking, *WHOLE], [*lacking, 5, None, "x"]):
        with pytest.raises(ClusterUnreadable, match=rf"Slurm 27\.05.*no field '{field}'.*3 of [35]"):
            jobs_from({"jobs": records, "meta": META})
    assert len(jobs(*lacking[:2], *WHOLE)) == 4, "half of them are not most"


@pytest.mark.parametrize("field", sorted(NODE_NEEDS))
def test_a_node_without_a_field_is_left_out_and_one_that_most_lack_is_a_change_of_slurms_format(field: str) -> None:
    """No node would be left, and jobs would be held for as long as lucidd lives."""
    whole = [{**NODE, "name": f"n{number}"} for number in (2, 3)]
    assert len(nodes_from({"nodes": [NODE, *whole]})) == 3
    assert [node.name for node in nodes_from({"nodes": [without(NODE, field), *whole]})] == ["n2", "n3"]
    with pytest.raises(ClusterUnreadable, match=f"this Slurm.*no field '{field}'.*1 of 1"):
        nodes_from({"nodes": [without(NODE, field)]})


def test_what_users_write_never_makes_most_jobs_look_like_another_format() -> None:
    bad = {**WAITING, "tres_per_node": "gres/gpu:99999999999999999999"}
    assert all(job.unread for job in jobs(*[{**bad, "job_id": number} for number in range(1, 50)]))
    assert all(not job.id for job in jobs(5, None, "x"))


def test_where_a_lost_job_may_be_nothing_starts() -> None:
    nodes = [fake_node("n1", "a"), replace(fake_node("n2", "a"), states=frozenset({"MIXED"})), fake_node("n3", "a")]
    (here,) = jobs({**RUNNING, "gres_detail": "gpu"})
    assert [node.available for node in without_unread(nodes, [here])] == [False, True, True]
    (anywhere,) = jobs({**RUNNING, "nodes": 5, "gres_detail": "gpu"})
    assert [node.available for node in without_unread(nodes, [anywhere])] == [True, False, True]
    assert [node.available for node in without_unread(nodes, jobs(5))] == [True, False, True]
    assert without_unread(nodes, jobs({**WAITING, "name": 5})) is nodes


def test_numbers_are_bounded_where_they_enter() -> None:
    assert gpu_count("gres/gpu:²") == 1  # a type of that name
    assert gpu_count("gres/gpu:٣") == 1
    assert gpu_count("gres/gpu:" + "9" * 5000) == 2**53
    assert gpu_mask("gpu:g0:2(IDX:0-99999999999999)").bit_length() <= 1024
    assert len(gpu_types("gpu:99999999999999999999")) == 1024
    assert memory_mib("mem=1.2.3M") == 0
    assert memory_mib("mem=" + "9" * 400 + "T") == 0
    assert hosts("n[0-99999999][0-99999999]") == [], "Slurm has no such range"
    assert hosts("n" + "[0-9]" * 100_000) == []
    assert hosts("n[1-2]" + "x" * 1000) == []
    assert array_tasks("0-99999999999999", 3)[0] == [0, 1, 2]
    assert array_tasks("²", 3) == ([], None)
    (job,) = jobs({**RUNNING, "start_time": 1e400, "end_time": 10**30, "restart_cnt": float("nan"), "cpus": 10**25})
    assert (job.start_s, job.end_s, job.restarts, job.cpus) == (0.0, 0.0, 0, 0)


def test_bytes_that_are_no_text_blind_nobody() -> None:
    body = json.dumps({"jobs": [RUNNING, {**WAITING, "name": "NAME"}]}).encode().replace(b"NAME", b"\xff\xfe\x80")
    assert jobs_from(loads(body))[0] == jobs(RUNNING)[0]
    assert jobs_from(loads(body))[1].name == "\ufffd\ufffd\ufffd"


def test_one_record_that_nests_too_deep_or_does_not_parse_is_left_out_and_an_answer_cut_short_is_none() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for inside in (deep, "nil", "1e", "9" * 5000, "{,}"):
        body = json.dumps({"jobs": [RUNNING, {**WAITING, "cpus": "HERE"}, RUNNING]}).replace('"HERE"', inside)
        made = jobs_from(loads(body))
        assert [made[0], made[2]] == jobs(RUNNING, RUNNING)
    for cut in (1, 2, 20, 100):
        with pytest.raises(ValueError):
            loads(json.dumps({"jobs": [RUNNING, WAITING]})[:-cut])


def test_other_lists_have_the_same_barrier() -> None:
    left_out = LeftOut()
    nodes = [NODE, 5, {"gres": []}, {"name": "n3"}, {**NODE, "name": "n2"}]
    assert [node.name for node in nodes_from({"nodes": nodes}, left_out)] == ["n1", "n2"]
    ended = {"job_id": 3, "state": {"current": ["COMPLETED"]}, "time": {"start": 5, "end": 9}}
    document = {"jobs": [ended, {**ended, "tres": {"requested": 5}}, 7, {**ended, "job_id": 4}]}
    assert [one.ended.job.id for one in accounted_from(document, left_out)] == ["3", "4"]
    share = {"type": ["USER"], "parent": "ml", "name": "ann", "fairshare": {"factor": {"set": True, "number": 0.5}}}
    shares = {"shares": {"shares": [share, 5, {**share, "name": "bob", "fairshare": {"factor": {"set": 1}}}]}}
    assert fair_shares_from(shares, left_out) == {("ml", "ann"): 0.5}
    told = {source: found["now"] for source, found in left_out.summary().items()}
    assert told == {"nodes": 3, "accounting": 2, "shares": 2}
    with pytest.raises(ClusterError):
        jobs_from({"jobs": {}}, left_out)


def test_each_record_is_logged_once_without_effect_and_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut()
    many = [{**WAITING, "job_id": n, "job_state": []} for n in range(1, 3001)]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            jobs(*many, left_out=left_out)
    assert len(caplog.records) == 1000
    told = left_out.summary()["jobs"]
    assert (told["now"], len(told["first"])) == (3000, 5)
    assert short("a\x1b[31m\n[/]" + "x" * 999).startswith("a\\x1b[31m\\n[/]xxx")
    assert len(short("x" * 999)) == 201
