"""Where a job stands: each state by what Slurm shows and what is noted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_slurm import FakeSlurm
from lucid.config.live import DaemonSettings
from lucid.slurm.own.state import JobState, Ownership
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import JobNote

MINE = "lucid:vc=vc;held=1;v=2"
PARKED = f"{MINE};park=1300"
NOW_S = 1000.0


def shows(**record: Any) -> SlurmJob:
    slurm = FakeSlurm([], now=900.0)
    slurm.submit("1", "vc", 1, mark=MINE)
    return replace(slurm.records["1"], **record)


@pytest.mark.parametrize(
    ("record", "note", "state"),
    [
        ({}, {}, JobState.QUEUED),
        ({"admin_comment": ""}, {}, JobState.NOT_OURS),
        ({"gpus": 0}, {}, JobState.NOT_OURS),
        ({"held": False, "eligible_s": 1300.0, "admin_comment": PARKED}, {}, JobState.QUEUED),
        ({"held": False, "eligible_s": 1300.0, "admin_comment": f"{PARKED};wait=1"}, {}, JobState.PARKED),
        ({"held": False}, {"where": "n1:0"}, JobState.STARTING),
        ({}, {"where": "n1:0"}, JobState.QUEUED),  # killed before Slurm was told
        ({}, {"where": "n1:0", "claims": "7"}, JobState.EMPTYING),
        ({"state": "RUNNING", "held": False}, {"where": "n1:0"}, JobState.RUNNING),
        ({"state": "RUNNING", "held": False}, {"going_to": "n2:0"}, JobState.RESIZING),
        ({"state": "COMPLETED", "held": False}, {"going_to": "n2:0"}, JobState.ENDED),
        ({"comment": "lucid:held"}, {}, JobState.HELD_BY_USER),
        ({"held": False}, {"released": True}, JobState.LET_GO),
        ({"held": False}, {}, JobState.LET_GO),
    ],
)
def test_the_state_of_a_job(record: dict[str, Any], note: dict[str, Any], state: JobState) -> None:
    ownership = Ownership(DaemonSettings(), lambda *_: None)
    assert ownership.state(shows(**record), JobNote("1", **note) if note else None, NOW_S) is state
