"""Jobs near their time limit, and how a job ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kept import HERE, same_as
from lucid.accounting.endings import Ending, why_ended
from lucid.cli.main import lucidctl
from lucid.config.load import profiles_folder, settings_from
from lucid.core.gpu import CardHealth, GpuFault, NodeHealth
from lucid.core.job import Ended, Job
from lucid.explain.waste import plain_ending, with_readings
from lucid.node.reports import write_health, write_summary
from lucid.profiler.summary import Spell, Summary
from lucid.slurm.accounting import ending_from
from lucid.store.sqlite import SqliteStore
from scenes.limits import crowded, replayed

GIB, XID_45 = 1024.0, "GPU 3 of n1: Xid 45"
ENDS = {
    "oom state": Ending("OUT_OF_MEMORY", signal=125, mem_mib=8 * GIB),
    "oom step": Ending("FAILED", 137, step_states=["OUT_OF_MEMORY"]),
    "killed at its limit": Ending("FAILED", signal=9, mem_mib=8 * GIB, peak_mib=7.9 * GIB),
    "failed at its limit": Ending("FAILED", 1, mem_mib=GIB, peak_mib=1.2 * GIB),
    "killed": Ending("FAILED", signal=9, mem_mib=8 * GIB, peak_mib=1 * GIB),
    "killed in a shell": Ending("FAILED", 137), "time": Ending("TIMEOUT", limit_s=3600.0),
    "days": Ending("TIMEOUT", limit_s=86400.0), "deadline": Ending("DEADLINE"),
    "node": Ending("NODE_FAIL", nodes="n1"), "boot": Ending("BOOT_FAIL"), "preempted": Ending("PREEMPTED"),
    "cancelled": Ending("CANCELLED", by="user 1000"),
    "gpu memory": Ending("FAILED", 1, gpu_mem_mib=23.9 * GIB, of_gpu_mib=24 * GIB),
    "bad gpu": Ending("FAILED", 1, gpu_fault="GPU 3 of n1: Xid 79", whose="gpu", gpu_out=True),
    "program's xid": Ending("FAILED", signal=6, gpu_fault="GPU 3 of n1: Xid 31", whose="application"),
    "unclear xid": Ending("FAILED", 1, gpu_fault="GPU 3 of n1: Xid 74", whose="unclear"),
    "memory before an xid": Ending("OUT_OF_MEMORY", gpu_fault=XID_45, whose="application", mem_mib=8 * GIB),
    "idle at the end": Ending("FAILED", 3, last_util=0.0),
    "room on the gpu": Ending("FAILED", 1, gpu_mem_mib=12 * GIB, of_gpu_mib=24 * GIB),
    "fault": Ending("FAILED", signal=11), "fault in a shell": Ending("FAILED", 139),
    "shared memory": Ending("FAILED", signal=7), "abort": Ending("FAILED", 134), "exit code": Ending("FAILED", 3),
    "no word": Ending("FAILED"),
}  # fmt: skip
"""What is seen, why, and what would help stand in tests/golden/words/endings.txt."""


def test_the_cause_is_named_and_what_would_help() -> None:
    whys = {name: why_ended(end) for name, end in ENDS.items()}
    assert all(whys.values())
    words = "".join(f"{name}: {why.cause}: {why.seen} {why.advice}\n" for name, why in whys.items() if why)
    same_as(HERE / "words/endings.txt", words)
    assert why_ended(Ending("COMPLETED")) is None


def test_what_samplers_saw_is_told(tmp_path: Path) -> None:
    settings = settings_from({"daemon": {"state_dir": str(tmp_path), "gpu_mem_mib": 24576}}, "a test")
    folder = profiles_folder(settings)
    folder.mkdir()
    ended = Ended(Job("7_1", "vc", 1, 0.0), end_s=1000.0, ran_s=400.0, state="FAILED")

    def told() -> Ending:
        return with_readings(plain_ending(ended), ended, settings)

    assert (told().gpu_fault, told().last_util) == ("", None)
    summary = Summary("7_1", "n1", ("GPU-a",), 600.0, 1000.0, 400, recent=Spell(60.0, gpu_util=3.0, mem_mib=24000.0))
    write_summary(folder, summary)
    assert (told().last_util, told().gpu_mem_mib) == (3.0, 24000.0)
    faults = GpuFault("xid", "fallen off the bus", 990.0, 990.0, 990.0, code=79)
    cards = CardHealth(3, "GPU-a", faults=(faults,)), CardHealth(0, "GPU-b", faults=(replace(faults, last_s=995.0),))
    write_health(folder / "health", NodeHealth("n1", 1001.0, cards=cards))
    assert told().gpu_fault == "GPU 3 of n1: Xid 79, fallen off the bus", "that of its own card"
    assert why_ended(told()) is not None
    for at_s in (599.0, 1061.0):  # before it ran, and long after
        old = replace(faults, since_s=at_s, began_s=at_s, last_s=at_s)
        write_health(folder / "health", NodeHealth("n1", 1001.0, cards=(CardHealth(3, "GPU-a", faults=(old,)),)))
        assert told().gpu_fault == ""
    write_summary(folder, replace(summary, end_s=500.0))
    assert told().last_util is None, "of a run before"
    (folder / "7_1.json").write_text("{")
    assert told().last_util is None


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
        assert getattr(odd, "mem_mib", None) == 16384.0, "as on one node"
    by = ending_from("7|CANCELLED by 1000|0:15||||00:01:00|UNLIMITED|n1", "7")
    assert by == Ending("CANCELLED", 0, 15, by="user 1000", ran_s=60.0, nodes="n1")


@pytest.mark.parametrize("at", range(0, len(SACCT), 3))
def test_output_that_is_cut_or_garbled_is_no_error(at: int) -> None:
    for text in (SACCT[:at], SACCT[at:], SACCT[:at] + "\0²|" + SACCT[at + 2 :]):
        end = ending_from(text, "7")
        assert end is None or why_ended(end) is not None


DAEMON = '[daemon]\nstate_dir = "{0}"\nheartbeat = "{0}/heartbeat"\npartitions = {{ vc = "pack" }}\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of a lucidd after two days: its records, and the jobs that ended."""
    folder = tmp_path_factory.mktemp("site")
    outcomes = replayed("backfill", crowded(3), folder / "plans")
    store = SqliteStore(folder / "lucid.db")
    lease = store.take_lease("test", 0.0, 1e9)
    assert lease is not None
    ended = [Ended(one.job, one.end_s, one.end_s - one.start_s) for one in outcomes.values()]
    store.put_ended(sorted(ended, key=lambda one: one.end_s), lease.token)
    store.put_view("status", {"at_s": max(one.end_s for one in ended), "modes": {"vc": "pack"}})
    store.close()
    config = folder / "lucid.toml"
    config.write_text(DAEMON.format(folder))
    return folder


def ask(site: Path, *words: str, status: int = 0) -> str:
    made = CliRunner().invoke(lucidctl, [*words, "--config", str(site / "lucid.toml")])
    said = made.output + (str(made.exception) if status else "")
    assert made.exit_code == status, said
    return said


def test_the_table_the_json_and_explain_say_the_same(site: Path) -> None:
    told = json.loads(ask(site, "efficiency", "--time-limits", "--json"))["time_limits"]
    assert sum(row["earlier"] for row in told["rows"]) == len(told["jobs"]) > 20
    assert {row["user"] for row in told["rows"]} == {"u0", "u1", "u2", "u3"}
    first = told["jobs"][0]
    assert first["earlier_s"] == pytest.approx(first["started_s"] - first["would_have_started_s"])
    words = ask(site, "efficiency", "--time-limits")
    assert f"{len(told['jobs'])} would have started earlier" in words
    longest = max(told["jobs"], key=lambda one: one["earlier_s"])
    (line,) = [line for line in words.splitlines() if line.startswith(f"job {longest['job']} ")]
    assert "it would have started" in line
    story = json.loads(ask(site, "explain", longest["job"], "--json"))
    assert story["ended"]["time_limit"] == longest
    assert line.split(": ", 1)[1] in ask(site, "explain", longest["job"])
    rest = {str(n) for n in range(120)} - {one["job"] for one in told["jobs"]}
    assert json.loads(ask(site, "explain", min(rest), "--json"))["ended"]["time_limit"] is None


def test_one_user_and_a_limit_of_ones_own_and_why_there_is_no_answer(site: Path, tmp_path: Path) -> None:
    words = ("efficiency", "--time-limits", "--user", "u0", "--time", "1:00:00", "--json")
    told = json.loads(ask(site, *words))["time_limits"]
    assert {(row["user"], row["limit_s"]) for row in told["rows"]} == {("u0", 3600.0)}
    assert "no time limit" in ask(site, "efficiency", "--time-limits", "--time", "soon", status=1)
    ask(site, "efficiency", "--time", "1:00", status=2)  # without --time-limits
    os.link(site / "lucid.db", tmp_path / "lucid.db")
    (tmp_path / "lucid.toml").write_text(DAEMON.format(tmp_path))
    assert "daemon.record_mib" in ask(tmp_path, "efficiency", "--time-limits", status=1)
