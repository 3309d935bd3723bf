"""Whatever breaks on a real Slurm, no job is lost, runs twice or stays held; and harm done on purpose is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import cli
from testbed.settings import layout_from

pytestmark = pytest.mark.slow
CAMPAIGN = Path(__file__).resolve().parents[2] / "tools/campaign"


@pytest.fixture(autouse=True)
def nothing_left_broken() -> None:
    """The campaign has a testbed of its own, and takes it away."""


def run(out: Path, *words: str) -> tuple[int, dict[str, Any], Path]:
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')}-c"
    layout = layout_from({**os.environ, "LUCID_TESTBED_NAME": name})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--json", "--name", name, "--out", str(out), *words],
        capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout), layout.home


FAULTS = (
    "lucidd-kill", "lucidd-gone", "clock-ahead", "clock-behind", "disk-full", "store-deleted", "store-damaged",
    "slurmctld-kill", "slurmdbd-kill", "node-lost", "host-lost", "hostile-jobs",
)  # fmt: skip


def test_each_of_these_faults_loses_nothing(tmp_path: Path) -> None:
    """By this seed all come within five minutes, and nothing else is broken while the host that acts is lost."""
    code, result, home = run(tmp_path, "--seed", "483", "--minutes", "6", "--faults", ",".join(FAULTS))
    found = [f for f in result["findings"] if not f["excuse"]]
    assert (code, found) == (0, []), found
    assert result["jobs"]["submitted"] >= 10
    assert not result["trouble"]
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    begun = {line["name"]: line for line in lines if line["what"] == "fault begins"}
    ended = {line["name"]: line for line in lines if line["what"] == "fault ends"}
    assert begun.keys() == ended.keys() == {*FAULTS}
    assert ended["host-lost"]["acting"] != begun["host-lost"]["on"], "the other host acts meanwhile"
    assert not home.exists(), "nothing of its testbed is left"


def test_harm_done_on_purpose_is_found_each_kind_of_it(tmp_path: Path) -> None:
    code, result, _ = run(
        tmp_path, "--seed", "8", "--minutes", "0.8", "--faults", "none", "--sabotage", "--quiet-s", "45"
    )
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    harmed = {line["key"]: line["kind"] for line in lines if line["what"] == "sabotage"}
    assert set(harmed.values()) == {"lost", "doubled", "stuck", "killed"}
    assert {f["key"]: f["kind"] for f in result["findings"] if not f["excuse"]} == harmed
    assert code == 1
