"""Twenty ends, each with its cause; what accounting prints, garbled."""

from __future__ import annotations

import pytest

from lucid.adapters.slurm.clients.ended_job import ending_from
from lucid.efficiency.ending import Cause, Ending, why_ended

GIB = 1024.0
ENDS = {
    "oom state": (Ending("OUT_OF_MEMORY", signal=125, mem_mib=8 * GIB), Cause.HOST_MEMORY, "--mem=12G"),
    "oom step": (Ending("FAILED", 137, step_states=["OUT_OF_MEMORY"]), Cause.HOST_MEMORY, "--mem"),
    "killed at its limit": (
        Ending("FAILED", signal=9, mem_mib=8 * GIB, peak_mib=7.9 * GIB),
        Cause.HOST_MEMORY,
        "--mem=12G",
    ),
    "failed at its limit": (Ending("FAILED", 1, mem_mib=GIB, peak_mib=1.2 * GIB), Cause.HOST_MEMORY, "--mem=2G"),
    "killed": (Ending("FAILED", signal=9, mem_mib=8 * GIB, peak_mib=1 * GIB), Cause.SIGNAL, "from outside"),
    "killed in a shell": (Ending("FAILED", 137), Cause.SIGNAL, "from outside"),
    "time": (Ending("TIMEOUT", limit_s=3600.0), Cause.TIME_LIMIT, "--time=1:30:00"),
    "days": (Ending("TIMEOUT", limit_s=86400.0), Cause.TIME_LIMIT, "--time=1-12:00:00"),
    "deadline": (Ending("DEADLINE"), Cause.TIME_LIMIT, "later deadline"),
    "node": (Ending("NODE_FAIL", nodes="n1"), Cause.NODE, "--requeue"),
    "boot": (Ending("BOOT_FAIL"), Cause.NODE, "Submit it again"),
    "preempted": (Ending("PREEMPTED"), Cause.PREEMPTED, "--requeue"),
    "cancelled": (Ending("CANCELLED", by="user 1000"), Cause.CANCELLED, "Nothing"),
    "gpu memory": (
        Ending("FAILED", 1, gpu_mem_mib=23.9 * GIB, of_gpu_mib=24 * GIB),
        Cause.GPU_MEMORY,
        "smaller batch",
    ),
    "room on the gpu": (Ending("FAILED", 1, gpu_mem_mib=12 * GIB, of_gpu_mib=24 * GIB), Cause.EXIT_CODE, "output"),
    "fault": (Ending("FAILED", signal=11), Cause.SIGNAL, "fault"),
    "fault in a shell": (Ending("FAILED", 139), Cause.SIGNAL, "fault"),
    "shared memory": (Ending("FAILED", signal=7), Cause.SIGNAL, "/dev/shm"),
    "abort": (Ending("FAILED", 134), Cause.SIGNAL, "last lines"),
    "exit code": (Ending("FAILED", 3), Cause.EXIT_CODE, "output"),
    "no word": (Ending("FAILED"), Cause.UNKNOWN, "sacct"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_is_named_and_what_would_help(name: str) -> None:
    end, cause, advice = ENDS[name]
    why = why_ended(end)
    assert why is not None
    assert why.cause is cause
    assert advice in why.advice
    assert why.seen.endswith(".")


def test_a_good_end_needs_no_cause() -> None:
    assert why_ended(Ending("COMPLETED")) is None


SACCT = """\
7|OUT_OF_MEMORY|0:125||billing=4,cpu=4,gres/gpu=1,mem=16G,node=2|2|01:00:00|02:00:00|n[1-2]
7.batch|OUT_OF_MEMORY|0:125|8123456K|cpu=2,mem=8G|1|01:00:00||n1
7.0|COMPLETED|0:0|100M|cpu=2|2|00:10:00||n[1-2]
"""


def test_what_accounting_prints() -> None:
    end = ending_from(SACCT, "7")
    assert end is not None
    assert (end.state, end.signal, end.mem_mib, end.limit_s, end.ran_s) == (
        "OUT_OF_MEMORY",
        125,
        8192.0,
        7200.0,
        3600.0,
    )
    assert end.peak_mib == pytest.approx(7933.1, abs=1)
    assert ending_from(SACCT.replace("7|OUT_OF_MEMORY", "7|RUNNING"), "7") is None
    assert ending_from(SACCT, "8") is None
    for number in ("\u00b2", "9" * 5000, "0"):
        odd = ending_from(SACCT.replace("node=2|2|", f"node=2|{number}|"), "7")
        assert odd is not None
        assert odd.mem_mib == 16384.0, "as on one node"
    by = ending_from("7|CANCELLED by 1000|0:15||||00:01:00|UNLIMITED|n1", "7")
    assert by is not None
    assert (by.by, by.limit_s, by.mem_mib) == ("user 1000", None, 0.0)


@pytest.mark.parametrize("at", range(0, len(SACCT), 3))
def test_output_that_is_cut_or_garbled_is_no_error(at: int) -> None:
    for text in (SACCT[:at], SACCT[at:], SACCT[:at] + "\0²|" + SACCT[at + 2 :]):
        end = ending_from(text, "7")
        assert end is None or why_ended(end) is not None
