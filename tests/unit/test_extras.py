"""What a plain installation lacks: nothing of it is loaded without need, and who needs it is told the extra."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from builders import FixedPredictor
from lucid.config.policy import PolicySettings
from lucid.errors import ConfigError
from lucid.orchestrator import registry as built_in
from lucid.orchestrator.registry import BUILT_IN, adding_policy, make_policy

PLAIN = """
import sys
EXTRAS = "scipy rustworkx threadpoolctl matplotlib pandas sklearn interpret rapidfuzz optuna tomlkit".split()

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def plain(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run as where only what all need is installed."""
    return subprocess.run(
        [sys.executable, "-c", PLAIN + code, *words], capture_output=True, text=True, check=False, timeout=120
    )


CODE = """
import lucid.daemon.process, lucid.daemon.learning.models, lucid.daemon.policies, lucid.tuner.tune
import lucid.setup.doctor_state
from lucid.cli.main import lucidctl, main
trace, *policies = sys.argv[1:]
lucidctl(["trace", "synth", "month-small", "--jobs", "60", "--out", trace], standalone_mode=False)
sys.argv[1:] = ["simulate", trace, *(f"--policy={name}" for name in policies)]
main()
"""


def test_lucidd_and_a_replay_need_no_extra(tmp_path: Path) -> None:
    done = plain(CODE, str(tmp_path / "month.csv"), "lucid", "backfill")
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_command_that_needs_an_extra_names_it(tmp_path: Path) -> None:
    done = plain(CODE, str(tmp_path / "month.csv"), "muri-l")
    assert "of the extra 'peers'; pip install 'lucid-scheduler[peers]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_by_solvers_says_so_when_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_in, "find_spec", lambda _: None)
    solves = name.startswith(("muri", "elastic", "pollux", "optimus"))
    told = "needs scipy, rustworkx, threadpoolctl, of the extra 'peers'"
    with pytest.raises(ConfigError, match=told) if solves else nullcontext():
        make_policy(name, PolicySettings(), FixedPredictor({}))


@settings(max_examples=15)
@given(st.sampled_from([*BUILT_IN]), st.text("-abcmes0", max_size=4), st.text("-abcmes0", max_size=4))
@example("sia", "", "mese")
@example("pollux", "", "-lite")
def test_what_a_third_partys_policy_needs_does_not_hang_on_its_name(name: str, before: str, after: str) -> None:
    called = f"{before}{name}{after}"
    assume(called not in BUILT_IN)
    with pytest.MonkeyPatch.context() as patch, adding_policy(called, BUILT_IN["fifo"]):
        patch.setattr(built_in, "find_spec", lambda _: None)
        assert make_policy(called, PolicySettings(), FixedPredictor({})).name == "fifo"
