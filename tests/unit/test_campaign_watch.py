"""The campaign's watch on made-up looks: who is held by nobody, and where nothing starts beside free GPUs."""

from __future__ import annotations

from typing import Any

from campaign.facts import Order
from campaign.watch import HELD_S, WAITS_S, Look, Watch, free_gpus, yielding

FOLDER, BOUND_S = "/var/campaign", 45.0


def watch(**more: Any) -> Watch:
    return Watch({"j1-1": Order("j1-1", 0.0, "alice", (), "", partition="vc-a", gpus=2, **more)}, FOLDER, BOUND_S)


def job(state: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {
        "job_id": 7, "job_state": [state], "standard_output": f"{FOLDER}/out/j1-1", "admin_comment": "",
        "comment": "",
        "priority": {"set": True, "number": 100}, "eligible_time": {"set": True, "number": 1}, "dependency": "",
    } | more  # fmt: skip


HELD = {"priority": {"set": True, "number": 0}, "admin_comment": "lucid:vc=vc-a;held=1"}


def seen(
    watch_: Watch, seconds: float, *jobs: dict[str, Any], free: int = 4, age_s: float = 1.0, **more: Any
) -> Watch:
    begin = more.pop("begin", 1000.0)
    broken = more.pop("broken", ())
    for step in range(int(seconds / 2.5) + 1):
        watch_.look(Look(begin + 2.5 * step, jobs, {"vc-a": [free, 0]}, age_s, broken, **more))
    return watch_


def test_held_by_nobody_is_stuck() -> None:
    assert seen(watch(), HELD_S + 10, job(**HELD), age_s=BOUND_S + 1, free=0).stuck.keys() == {"j1-1"}


def test_held_while_somebody_decides_or_slurm_cannot_be_told_is_not_stuck() -> None:
    assert not seen(watch(), HELD_S + 10, job(**HELD), age_s=5.0, free=0).stuck
    assert not seen(watch(), HELD_S + 10, job(**HELD), age_s=BOUND_S + 1, free=0, barred=True).stuck
    assert not seen(watch(), HELD_S - 10, job(**HELD), age_s=BOUND_S + 1, free=0).stuck
    own = HELD | {"admin_comment": ""}
    assert not seen(watch(release_after_s=5.0), HELD_S + 10, job(**own), age_s=BOUND_S + 1, free=0).stuck
    assert not seen(watch(), HELD_S + 10, job(**HELD, comment="lucid:held"), age_s=BOUND_S + 1, free=0).stuck


def test_a_job_that_waits_beside_free_gpus_for_too_long_is_stuck() -> None:
    assert seen(watch(), WAITS_S + 10, job()).stuck.keys() == {"j1-1"}
    assert not seen(watch(), WAITS_S + 10, job(), broken=("disk-full",)).stuck
    assert not seen(watch(), WAITS_S + 10, job(), free=1).stuck


def test_the_longest_standstill_is_told_with_and_without_faults() -> None:
    both = watch()
    seen(both, 20, job(), broken=("slurmctld-stop",))
    seen(both, 10, job(), begin=1022.5)
    assert (both.whole.longest_s, both.clear.longest_s) == (32.5, 12.5)
    assert both.whole.partition == "vc-a"
    assert both.whole.key == "j1-1"


def test_a_start_ends_a_standstill() -> None:
    both = Watch(
        {name: Order(name, 0.0, "a", (), "", partition="vc-a", gpus=1) for name in ("j1-1", "j1-2")}, FOLDER, BOUND_S
    )
    other = {"standard_output": f"{FOLDER}/out/j1-2", "job_id": 8}
    seen(both, 10, job(), job(**other))
    seen(both, 10, job(), job("RUNNING", **other), begin=1012.5)
    assert both.whole.longest_s == 10.0


def test_what_cannot_start_now_is_no_standstill() -> None:
    later = {"eligible_time": {"set": True, "number": 5000}}
    for more in (later, {"dependency": "afterok:3(unfulfilled)"}):
        assert seen(watch(), 20, job(**more)).whole.longest_s == 0
    assert seen(watch(nodes=2), 20, job()).whole.longest_s == 0, "the other node is full"


def test_tasks_of_an_array_are_told_apart_before_slurm_does() -> None:
    array = Watch({"j1-1": Order("j1-1", 0.0, "a", (), "", tasks=(0, 1, 2))}, FOLDER, BOUND_S)
    one = job("RUNNING", job_id=8, array_task_id={"set": True, "number": 0})
    rest = job(array_task_id={"set": False}, array_task_string="1-2%1")
    array.look(Look(1000.0, [one, rest], {}, 1.0, ()))
    assert {key: (r.job, r.state) for key, r in array.records.items()} == {
        "j1-1_0": ("8", "RUNNING"), "j1-1_1": ("7", "PENDING"), "j1-1_2": ("7", "PENDING"),
    }  # fmt: skip


def test_free_gpus_are_whole_ones_of_nodes_that_can_be_used() -> None:
    node = {
        "state": ["MIXED"], "partitions": ["vc-a"], "cpus": 16, "alloc_cpus": 2, "real_memory": 64000,
        "alloc_memory": 2000, "gres": "gpu:g0:1,gpu:g1:1,gpu:g2:1,shard:g0:2,shard:g1:2,shard:g2:2",
        "gres_used": "gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),shard:g1:1(1/2),shard:g2:0(0/2)",
    }  # fmt: skip
    assert free_gpus([node], ["vc-a", "vc-b"]) == {"vc-a": [1], "vc-b": []}
    for more in (
        {"state": ["IDLE", "DRAIN"]},
        {"state": ["DOWN"]},
        {"alloc_cpus": 15},
        {"alloc_memory": 63000},
        {"state": ["IDLE", "RESERVED", "MAINTENANCE"]},
        {"state": ["IDLE", "REBOOT_ISSUED"]},
        {"state": ["MIXED", "REBOOT_REQUESTED"]},
        {"state": ["IDLE", "POWERING_DOWN"]},
    ):
        assert free_gpus([node | more], ["vc-a"]) == {"vc-a": []}
    asleep = node | {"state": ["IDLE", "POWERED_DOWN"]}
    assert free_gpus([asleep], ["vc-a"]) == {"vc-a": [1]}, "Slurm wakes it"


def test_gpus_of_those_that_give_way_are_free_for_who_may_preempt_them() -> None:
    jobs = [
        {"partition": "scav", "job_state": ["RUNNING"], "nodes": "n[1-2]",
         "gres_detail": ["gpu:g0:0(IDX:),gpu:g1:1(IDX:1)", "shard:g2:1(0/2,0/2,1/2,0/2)"]},
        {"partition": "vc-a", "job_state": ["RUNNING"], "nodes": "n2", "gres_detail": ["shard:g2:1(0/2,0/2,1/2)"]},
        {"partition": "scav", "job_state": ["PENDING"], "nodes": "", "gres_detail": []},
    ]  # fmt: skip
    assert yielding(jobs, "scav") == {"n1": {"g1"}, "n2": set()}
    node = {
        "name": "n1", "state": ["MIXED"], "partitions": ["vc-a"], "cpus": 16, "alloc_cpus": 2, "real_memory": 64000,
        "alloc_memory": 2000, "gres": "gpu:g0:1,gpu:g1:1", "gres_used": "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)",
    }  # fmt: skip
    assert free_gpus([node], ["vc-a"], {"n1": {"g1"}}) == {"vc-a": [1]}
