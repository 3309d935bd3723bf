"""A job whose GPUs do nothing, on a real Slurm: MailProg tells its user, and it is cancelled where its VC says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

from lucid.adapters.gpu.profile_files import write_summary
from lucid.adapters.store.sqlite import SqliteStore
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch

H = 3600.0


@pytest.fixture
def outbox(box: Box) -> Iterator[Path]:
    """What Slurm's MailProg was called with."""
    conf, out = box.root / "etc/slurm/slurm.conf", box.root / "tmp/outbox"
    before = conf.read_text()
    program = box.root / "tmp/mailprog"
    program.write_text('#!/bin/sh\n{ printf "%s|" "$@"; cat; } >>/tmp/outbox\n')
    program.chmod(0o755)
    out.touch()
    out.chmod(0o666)
    conf.write_text(
        "\n".join(line for line in before.splitlines() if "MailProg" not in line) + "\nMailProg=/tmp/mailprog\n"
    )
    box.run("scontrol", "reconfigure")
    yield out
    conf.write_text(before)
    box.run("scontrol", "reconfigure")
    for path in (program, out):
        path.unlink()


@pytest.fixture
def lucidd(box: Box, outbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lucidd]:
    monkeypatch.setattr(Lucidd, "_sample", lambda self: None)
    more = '[idle]\ntell = "mail"\ncancel = ["vc-a"]\n'
    daemon = Lucidd(box, tmp_path / "state", more=more)
    daemon.start()
    yield daemon
    daemon.close()


def test_the_user_of_an_idle_job_is_told_by_mailprog_and_the_job_ends_after_two_messages(
    box: Box, lucidd: Lucidd, outbox: Path
) -> None:
    """The readings stand in for hours that no test waits: the job is said to have done nothing for three."""
    numbers = {name: box.sbatch("-p", name, "--gres=gpu:1", "-J", f"in-{name}", user="alice", script="sleep 600")
               for name in ("vc-a", "vc-b")}  # fmt: skip
    works = box.sbatch("-p", "vc-a", "--gres=gpu:1", "-J", "works", user="bob", script="sleep 600")
    box.wait("all run", lambda: all(box.state(n) == "RUNNING" for n in (*numbers.values(), works)), 60)

    def read() -> None:
        now_s = time.time()
        for number in (*numbers.values(), works):
            idle = () if number == works else (IdleStretch(now_s - 3 * H, now_s),)
            use = GpuUse("n1/0", now_s - 5 * H, now_s, 5 * H, 2 * H, idle)
            write_summary(lucidd.profiles, Summary(number, "n", (), now_s - 5 * H, now_s, 30, use=(use,)))

    def told() -> set[str]:
        read()
        return {number for number in numbers.values() if f"Job {number} does nothing" in outbox.read_text()}

    box.wait("both users are told", lambda: told() == set(numbers.values()), 150)
    text = outbox.read_text()
    assert f"-s|Job {numbers['vc-a']} does nothing on its GPUs|alice|Your job {numbers['vc-a']}" in text
    assert f"Job {works} " not in text
    print(text, lucidd.ctl("idle"), lucidd.ctl("explain", numbers["vc-a"]))
    assert "a message was sent to alice" in lucidd.ctl("explain", numbers["vc-a"])
    assert {row["job"] for row in lucidd.json("idle")["jobs"]} == set(numbers.values())
    assert lucidd.json("idle", "--dry-run")["total"]["jobs_told"] == 2
    # as after the hours of the second message
    lucidd.kill()
    store = SqliteStore(lucidd.folder / "lucid.db")
    steps = [["tell", time.time() - 2.5 * H], ["tell_again", time.time() - 1.5 * H]]
    store.put_view("idle", {n: [box.job(n)["start_time"]["number"], steps] for n in numbers.values()})
    store.close()
    lucidd.start()

    def ended() -> bool:
        read()
        return box.state(numbers["vc-a"]) == "CANCELLED"

    box.wait("it is cancelled", ended, 150)
    time.sleep(2)
    assert box.state(numbers["vc-b"]) == box.state(works) == "RUNNING", "vc-b does not cancel, and the other works"
    assert "was told twice" in lucidd.ctl("explain", numbers["vc-a"])
    assert outbox.read_text() == text, "nobody was told a second time of the same"
    box.run("scancel", numbers["vc-b"], works)
