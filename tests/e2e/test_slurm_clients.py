"""What every client of a real Slurm keeps to: by its commands, by pyslurm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
from box import Box
from breakage import Breakage
from pyslurm_box import HERE, LIBRARY, PyslurmProcess, no_pyslurm

from builders import at
from lucid.errors import ActionRefused, ClusterUnavailable, ConfigError
from lucid.slurm.client import Breaker, Changes
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.job import SlurmJob


def commands(box: Box, breaker: Breaker) -> CommandClient:
    return CommandClient(["chroot", "--userspec=lucid", str(box.root)], breaker)


def make(box: Box, kind: str) -> CommandClient:
    if kind == "commands":
        return commands(box, Breaker(time.monotonic))
    return cast("CommandClient", PyslurmProcess(box))


@pytest.fixture(params=["commands", "pyslurm"])
def client(request: pytest.FixtureRequest, box: Box) -> Iterator[CommandClient]:
    if request.param == "pyslurm" and (why := no_pyslurm(box)):
        pytest.skip(why)
    made = make(box, request.param)
    yield made
    if isinstance(made, PyslurmProcess):
        made.close()


def see(client: CommandClient, number: str) -> SlurmJob:
    return next(job for job in client.jobs() if job.id == number)


def test_all_see_the_same(client: CommandClient, box: Box) -> None:
    ids = [
        box.sbatch("--gres=gpu:1", "-H"),
        box.sbatch("--gpus=2", "-w", "n1", "-H"),
        box.sbatch("--array=1-3", "-H"),
    ]
    other = commands(box, Breaker(time.monotonic))
    mine, theirs = ({job.id: job for job in seen.jobs()} for seen in (client, other))
    assert mine.keys() == theirs.keys() >= {*ids[:2], f"{ids[2]}_1", f"{ids[2]}_3"}
    assert all(mine[i].request == theirs[i].request and mine[i].held == theirs[i].held for i in mine)
    assert client.nodes() == other.nodes()
    assert client.version() == other.version() == box.release
    assert client.partitions() == other.partitions()


def test_all_see_the_same_reservations(client: CommandClient, box: Box) -> None:
    assert not client.reservations(), "none is an answer"
    other = commands(box, Breaker(time.monotonic))
    with box.reserved("n[1-2]", "alice,bob", "flags=daily", start="now+1hour") as name:
        seen = client.reservations()
        assert seen is not None
        assert seen == other.reservations()
        (one,) = seen
        assert (one.name, one.nodes, one.users) == (name, ("n1", "n2"), ("alice", "bob"))
        assert "DAILY" in one.flags
        assert (one.end_s - one.start_s, abs(one.start_s - time.time() - 3600) < 60) == (3600.0, True)


def test_a_held_job_is_sent_to_the_gpus_that_were_chosen(client: CommandClient, box: Box) -> None:
    number = box.sbatch("--gpus=2", "-H", script="sleep 60")
    client.update(
        number,
        Changes(
            tres_per_node="gres/shard:g1:1,gres/shard:g3:1", tres_per_job="", req_nodes="n2", start_now=True,
            extra="lucid-gpus=1,3",
        ),
    )  # fmt: skip
    client.release(number)
    box.wait("the start", lambda: see(client, number).state == "RUNNING")
    job = see(client, number)
    assert (job.placement, job.extra) == (at("n2:1,3"), "lucid-gpus=1,3")


def test_cpus_and_memory_by_gpu_are_taken_away_and_given_back(client: CommandClient, box: Box) -> None:
    number = box.sbatch("--gres=gpu:2", "--cpus-per-gpu=3", "--mem-per-gpu=1000", "-H", script="sleep 60")
    if isinstance(client, PyslurmProcess):
        pytest.skip("pyslurm does not tell --cpus-per-gpu as Slurm writes it: it is not for pack mode")
    asked = see(client, number).request
    assert (asked.cpus_per_tres, asked.mem_per_tres) == ("gres/gpu:3", "gres/gpu:1000")
    slots = Changes(
        tres_per_node="gres/shard:g1:1,gres/shard:g3:1", req_nodes="n2", num_cpus=6, mem_node_mib=2000,
        start_now=True, first=Changes(tres_per_node="", cpus_per_tres="", mem_per_tres=""),
    )  # fmt: skip
    client.update(number, slots)
    back = Changes(
        tres_per_node=asked.tres_per_node, req_nodes="", cpus_per_tres="gres/gpu:3", mem_per_tres="gres/gpu:1000"
    )
    client.update(number, back)
    assert see(client, number).request == asked
    client.update(number, slots)
    client.release(number)
    box.wait("the start", lambda: see(client, number).state == "RUNNING")
    job = see(client, number)
    assert (job.placement, job.hosts_used) == (at("n2:1,3"), (("n2", 6, 2000),))


def test_a_pending_job_is_held_and_released(client: CommandClient, box: Box) -> None:
    number = box.sbatch("--gres=gpu:1", "--begin=now+1hour", script="sleep 2")
    client.hold(number)
    assert see(client, number).held
    client.release(number)
    assert not see(client, number).held
    box.wait_ended(number)  # the hold set its begin time: by that job_submit.lua tells who holds


def test_many_are_given_another_begin_time_whether_or_not_one_is_gone(client: CommandClient, box: Box) -> None:
    ids = [box.sbatch("--gres=gpu:1", "--begin=now+1hour") for _ in range(3)]
    begin_s = float(round(time.time()) + 1800)
    client.set_begin(ids, begin_s)
    assert {see(client, number).eligible_s for number in ids} == {begin_s}
    with pytest.raises(ActionRefused):
        client.set_begin([ids[0], "999999", *ids[1:]], begin_s + 60)
    assert {see(client, number).eligible_s for number in ids} == {begin_s + 60}


def test_a_site_factor_adds_to_the_priority_and_is_taken_back(client: CommandClient, box: Box) -> None:
    box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 600")
    one = box.sbatch("--gres=gpu:4", "-p", "vc-b")
    array = box.sbatch("--gres=gpu:4", "-p", "vc-b", "--array=1-2")
    for number, target in ((one, one), (array, f"{array}_2")):
        before = box.priority(number)
        client.update(target, Changes(site_factor=5000))
        assert 4900 <= box.priority(target) - before <= 5100
        client.update(target, Changes(site_factor=0))
        assert abs(box.priority(target) - before) <= 100


def test_a_running_job_is_requeued(client: CommandClient, box: Box) -> None:
    number = box.sbatch("--gres=gpu:1", script="sleep 60")
    box.wait("the start", lambda: box.state(number) == "RUNNING")
    client.requeue_hold(number)
    box.wait("the requeue", lambda: see(client, number).pending)
    assert (see(client, number).held, see(client, number).restarts) == (True, 1)
    over = box.sbatch("--gres=gpu:1")
    box.wait_ended(over)
    with suppress(ActionRefused):
        client.requeue_hold(over)
    assert see(client, over).ended


def test_what_slurm_declines_is_a_refusal(client: CommandClient, box: Box) -> None:
    number = box.sbatch("--gres=gpu:1", script="sleep 60")
    box.wait("the start", lambda: box.state(number) == "RUNNING")
    for target, changes in ((number, Changes(req_nodes="n2")), ("999999", Changes(site_factor=1))):
        with pytest.raises(ActionRefused):
            client.update(target, changes)


def test_what_the_doctor_asks_is_answered(client: CommandClient, box: Box) -> None:
    config = client.config()
    assert {"gpu", "shard"} <= set(config["GresTypes"].split(","))
    assert config["Prolog"] == "/etc/slurm/lucid/prolog.d/*"
    assert "lua" in config["JobSubmitPlugins"]
    assert {partition.name for partition in client.partitions()} == {"vc-a", "vc-b", "vc-c", "prof"}
    assert abs((client.clock_s() or 0.0) - time.time()) < 60
    assert client.rights() == ("lucid", "operator")


@pytest.mark.slow
def test_a_dead_slurmctld_is_no_answer_to_every_client(box: Box) -> None:
    broken = Breakage(box)
    clients = [make(box, kind) for kind in ("commands", *(() if no_pyslurm(box) else ("pyslurm",)))]
    number = box.sbatch("--gres=gpu:1", "-H")
    for client in clients:
        client.jobs()
    os.kill(broken.pids("slurmctld")[0], signal.SIGTERM)
    box.wait("its end", lambda: not broken.pids("slurmctld"))
    try:
        for client in clients:
            began_s = time.monotonic()
            with pytest.raises(ClusterUnavailable):
                client.jobs()
            print(f"{client.name}: no answer after {time.monotonic() - began_s:.1f} s")
            with pytest.raises(ClusterUnavailable):
                client.release(number)
    finally:
        broken.start_slurmctld()
    for client in clients:
        client.jobs()
        if isinstance(client, PyslurmProcess):
            client.close()


def test_shares_are_told_by_account_and_user(client: CommandClient, box: Box) -> None:
    found = client.fair_shares()
    assert {("research", "alice"), ("research", "bob"), ("teaching", "carol")} <= found.keys()
    assert all(0.0 <= factor <= 1.0 for factor in found.values())
    assert found == commands(box, Breaker(time.monotonic)).fair_shares()


def test_a_pyslurm_that_tells_too_little_is_refused(box: Box) -> None:
    if not (box.root / LIBRARY.lstrip("/") / "pyslurm").is_dir():
        pytest.skip("no pyslurm in this testbed: LUCID_TESTBED_PYSLURM (docs/testbed.md)")
    client = PyslurmProcess(box)
    try:
        if box.release < (25, 11):
            with pytest.raises(ConfigError, match=r"pyslurm 2[0-9.]+ does not tell .* use 25\.11\.2 or later"):
                client.jobs()
        else:
            assert client.jobs() == []
    finally:
        client.close()


def test_lucidd_orders_a_queue_over_pyslurm(box: Box) -> None:
    """One cycle of a lucidd inside the testbed, whose commands run without a prefix."""
    if why := no_pyslurm(box):
        pytest.skip(why)
    box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 60")
    small = box.sbatch("--gres=gpu:1", "-p", "vc-b")
    large = box.sbatch("--gpus=4", "-p", "vc-b")
    before = {number: box.job(number)["priority"]["number"] for number in (small, large)}
    PyslurmProcess(box).close()  # which puts Lucid there
    folder = box.root / "tmp/by-pyslurm"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "lucid.toml").write_text(
        '[slurm]\nclient = "pyslurm"\n[daemon]\nstate_dir = "/tmp/by-pyslurm"\n'
        'heartbeat = "/tmp/by-pyslurm/heartbeat"\n[daemon.partitions]\nvc-b = "order"\n'
    )
    done = box.run(
        "env", f"PYTHONPATH={HERE}:{LIBRARY}", "python3", "-m", "lucid.daemon", "--once", "--config",
        "/tmp/by-pyslurm/lucid.toml", user="lucid",
    )  # fmt: skip
    gained = {number: box.job(number)["priority"]["number"] - before[number] for number in (small, large)}
    assert gained[small] >= gained[large] > 100, done.stderr
