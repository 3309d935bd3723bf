"""A session that does nothing is host to a job that would wait, on a real Slurm; when it wakes the guest leaves."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd, has_measured
from sampler_box import Emulated, SamplerBeside

from lucid.core.readings import GpuProcess, GpuReading
from lucid.node.host import Host
from lucid.node.jobs import JobSpec
from lucid.node.owners import Owners
from lucid.profiler.shares import HostUse

GPUS = 4
"""Of the only node of vc-b."""
SESSION = "sys/dashboard/sys/jupyter"
"""Named as Open OnDemand names the batch job of a session."""
SERVER = "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 0)); time.sleep(900)' & wait"
"""What its script is about: a server in the background, which waits for its user."""


class Sessions(Emulated):
    """Each job's process holds memory on the first GPU of its node. A session works while it is ``awake``, all other
    jobs always. As under MPS, nobody tells whose kernels run on a GPU that two jobs share."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.awake = False

    def saw(self, running: Mapping[str, Mapping[str, Any]]) -> None:
        self.names = {number: job["name"] for number, job in running.items()}

    def specs(self) -> Mapping[str, JobSpec]:
        return {number: JobSpec(number, ("vc-b/0",)) for number in self.names}

    def works(self, number: str) -> bool:
        return self.awake or self.names.get(number) != SESSION

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading]:
        util = 90.0 if any(map(self.works, self.names)) else 0.0
        shared = len(self.names) > 1
        processes = tuple(GpuProcess(int(n), 3000.0, None if shared else util) for n in self.names)
        held = 3000.0 * len(processes)
        return {uuid: GpuReading(uuid, util, util / 2, held, processes=processes) for uuid in uuids}


class Cpus(Host):
    """A job that works keeps a core busy."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions

    def use(self, job: str, number: str, pids: Sequence[int], now_s: float) -> HostUse:
        return HostUse(1.0 if self.sessions.works(job) else 0.02, 4)


class Itself(Owners):
    def job_of(self, pid: int, given: Mapping[int, str]) -> str | None:
        return str(pid)


@pytest.fixture
def lucidd(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lucidd]:
    """Its sampler is the real one; nobody but who asked is started over."""
    monkeypatch.setattr(Lucidd, "_sample", lambda self: None)
    more = "lease_s = 6\n[policy.idle]\nhost = true\nafter_s = 10\n"
    daemon = Lucidd(box, tmp_path / "state", restarts="", more=more)
    has_measured(daemon, "guest")
    daemon.start()
    yield daemon
    daemon.close()


def test_a_guest_comes_beside_an_idle_session_and_leaves_when_it_wakes(
    box: Box, lucidd: Lucidd, tmp_path: Path
) -> None:
    sessions = Sessions()
    beside = SamplerBeside(box, tmp_path, lucidd.profiles, sessions, Itself(), Cpus(sessions))
    asks = ("-p", "vc-b", f"--gres=gpu:{GPUS}")
    try:
        session = box.sbatch(*asks, "-J", SESSION, "--export=NONE", "--time=60", script=SERVER)
        box.wait("the session runs in slots", lambda: box.state(session) == "RUNNING", 60)
        assert "shard" in box.job(session)["tres_per_node"]
        stubborn = box.sbatch(*asks, "-J", "guest", script="sleep 600")
        box.wait("who may not be started over has the profiling node", lambda: box.state(stubborn) == "RUNNING", 90)
        assert box.job(stubborn)["nodes"] != box.job(session)["nodes"]
        guest = box.sbatch(*asks, "-J", "guest", "--comment=lucid:restart", script="sleep 600")
        box.wait("the guest", lambda: box.state(guest) == "RUNNING", 90)
        assert box.job(guest)["nodes"] == box.job(session)["nodes"]
        told = lucidd.ctl("explain", guest)
        assert f"beside job {session}, which has used no GPU for" in told
        time.sleep(15)
        assert [box.state(session), box.state(guest)] == ["RUNNING"] * 2, "the guest's own work wakes nobody"

        woke_s = time.monotonic()
        sessions.awake = True
        box.wait("the guest leaves", lambda: "RUNNING" not in box.job(guest)["job_state"], 30)
        gone_s = time.monotonic() - woke_s
        print(f"the guest was told to leave {gone_s:.1f} s after the session woke")
        assert gone_s < 10
        box.wait("the guest waits", lambda: box.state(guest) == "PENDING", 60)
        assert box.job(session)["restart_cnt"] == 0
        told = lucidd.ctl("explain", guest)
        assert f"job {session}, beside which it was, is at work again" in told

        for times in (1, 2):
            sessions.awake = False
            box.wait("the guest comes again", lambda: box.state(guest) == "RUNNING", 90)
            assert box.job(guest)["nodes"] == box.job(session)["nodes"]
            assert box.job(guest)["restart_cnt"] == times
            sessions.awake = True
            box.wait("the guest leaves", lambda: "RUNNING" not in box.job(guest)["job_state"], 30)
            box.wait("the guest waits", lambda: box.state(guest) == "PENDING", 60)
        sessions.awake = False
        time.sleep(45)
        assert box.state(guest) == "PENDING", "a guest three times at the most"
        box.run("scancel", session, stubborn)
        box.wait("the guest runs alone", lambda: box.state(guest) == "RUNNING", 90)
        assert box.job(guest)["restart_cnt"] == 3
    finally:
        beside.close()
    box.run("scancel", guest)
