"""A restart lets nothing go; a stop lets all go, and the next start takes up what waits still. On real daemons, with
lucid-release run as systemd's ExecStopPost and timer would."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from box import Box
from breakage import RUNS, ran_once
from daemon_box import Lucidd
from test_fail_open import release


def systemctl(folder: Path, jobs: str) -> str:
    """A PATH on which systemctl says these jobs are queued, as ``list-jobs`` prints them."""
    folder.mkdir(exist_ok=True)
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\ncase \"$*\" in *list-jobs*lucidd.service) echo '{jobs}' ;; *) exit 1 ;; esac\n")
    program.chmod(0o755)
    return f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"


def stop(lucidd: Lucidd) -> None:
    """Politely, as systemctl stop does."""
    assert lucidd.process is not None
    lucidd.process.terminate()
    lucidd.process.wait(60)
    lucidd.process = None


def queue(box: Box, lucidd: Lucidd) -> list[str]:
    """Twelve jobs that wait behind blockers of vc-b, held by Lucid."""
    blocker = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script="sleep 900", user="bob")
    box.wait("the node taken", lambda: box.state(blocker) == "RUNNING", 30)
    profiled = box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 900", user="root")
    box.wait("the profiling node taken", lambda: box.state(profiled) == "RUNNING", 30)
    ids = [box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", f"q{n}", script=RUNS.format(1)) for n in range(12)]
    assert all(box.job(number)["waits"] for number in ids)
    return [blocker, profiled, *ids]


def held(box: Box, ids: list[str]) -> list[str]:
    jobs = box.jobs()
    return [number for number in ids if jobs[number]["waits"]]


def test_a_restart_keeps_the_queue_and_a_stop_is_taken_back(box: Box, lucidd: Lucidd, tmp_path: Path) -> None:
    blocker, profiled, *ids = queue(box, lucidd)
    state = str(lucidd.folder)
    stop(lucidd)
    path = systemctl(tmp_path / "bin", "812 lucidd.service restart running")
    said = release(box, "--stopped", SERVICE_RESULT="success", PATH=path, LUCID_STATE=state)
    assert (said.returncode, "restarted" in said.stdout) == (0, True)
    assert held(box, ids) == ids
    lucidd.start()
    time.sleep(3)
    assert held(box, ids) == ids

    stop(lucidd)
    path = systemctl(tmp_path / "bin", "812 lucidd.service stop running")
    assert release(box, "--stopped", SERVICE_RESULT="success", PATH=path, LUCID_STATE=state).returncode == 0
    assert held(box, ids) == []
    listed = {line.split()[0] for line in (lucidd.folder / "released").read_text().splitlines()}
    assert listed == set(ids)
    mine, off = ids[0], ids[1]
    box.run("scontrol", "update", f"JobId={off}", "Comment=lucid:off", user="alice")
    box.scontrol("hold", mine)
    box.scontrol("release", mine)

    lucidd.start()
    box.wait("what waits is held again, that too", lambda: held(box, ids) == ids, 30)
    box.wait("the list is done with", lambda: not (lucidd.folder / "released").exists(), 20)
    box.run("scancel", blocker, profiled)
    box.wait_ended(*ids, limit_s=200)
    ran_once(box, *ids)
    again = [number for number in ids if number != off]
    starts = {number: box.job(number)["start_time"]["number"] for number in again}
    assert sorted(again, key=lambda number: (starts[number], int(number))) == again, "in order"


def test_a_reload_takes_sound_settings_and_refuses_others_as_a_whole(box: Box, lucidd: Lucidd) -> None:
    config, process = lucidd.folder / "lucid.toml", lucidd.process
    assert process is not None

    def told(event: str) -> int:
        return lucidd.log().count(f'"event": "{event}"')

    blocker, profiled, *ids = queue(box, lucidd)
    box.wait("lucidd to hold them", lambda: held(box, ids) == ids, 30)
    sound = config.read_text()
    config.write_text(sound.replace("vc-a", "vc-a=", 1))
    process.send_signal(signal.SIGHUP)
    box.wait("the refusal", lambda: told("settings not read anew: the old ones hold"), 30)
    assert (told("started"), told("stopped")) == (1, 0)
    config.write_text(sound.replace('vc-a = "pack"', 'vc-a = "observe"'))
    for _ in range(3):  # in a row, as an impatient administrator does
        process.send_signal(signal.SIGHUP)
    box.wait("lucidd anew", lambda: told("started") == 2, 60)
    box.wait("the new mode", lambda: lucidd.json("status")["modes"].get("vc-a") == "observe", 60)
    assert process.poll() is None, "the same process"
    assert held(box, ids) == ids, "nobody was let go"
    assert "vc-b" in lucidd.json("status")["modes"]
    stop(lucidd)
    assert process.returncode == 0
    box.run("scancel", blocker, profiled, *ids)
