"""Settings read anew, and the switches that administrators turn."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from daemon_site import Site
from lucid.config.live import DaemonSettings
from lucid.config.load import Settings
from lucid.core.ports import Capability
from lucid.daemon.modes import Switch, switches_of
from lucid.daemon.policies import LivePolicy, live_policy
from lucid.daemon.process import JournalHandler, Reload, log_handler, main
from lucid.errors import ConfigError
from lucid.places import Mode


def restarted(site: Site, said: str, says: str) -> Site:
    """The file edited, and lucidd started again on the same store."""
    path = site.folder / "lucid.toml"
    path.write_text(path.read_text().replace(f'vc = "{said}"', f'vc = "{says}"'))
    site.daemon.stop()
    site.settings = site.settings.changed({"daemon.partitions": {"vc": Mode(says)}})
    site.start("two")
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, partitions={"vc": "observe"})


def switched(site: Site) -> Site:
    """By hand to another mode, a moment ago."""
    site.slurm.now = time.time()
    site.turns(10.0)
    assert "from the next cycle on" in site.ctl("mode", "vc", "order")
    site.turns(10.0)
    return site


def listed(site: Site, *words: str) -> Any:
    (row,) = json.loads(site.ctl("mode", *words, "--json"))["partitions"]
    return row


def test_a_switch_outlives_a_restart_and_the_file_wins_later(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    switched(site)
    restarted(site, "observe", "observe").turns(10.0)
    assert site.daemon.modes == {"vc": Mode.ORDER}, "the file says the same"
    restarted(site, "observe", "pack").turns(10.0)
    assert site.daemon.modes == {"vc": Mode.PACK}
    assert site.store.settings() == {}
    *_, told = [record.facts["what"] for record in caplog.records if record.message == "mode switched by hand"]
    assert "said observe when it was switched to order by hand, and says pack now" in told


def test_a_switch_of_a_partition_that_the_file_no_longer_names_goes(site: Site) -> None:
    site.store.set_setting("mode.gone", "pack was=order since=1732182345")
    site.turns(10.0)
    assert site.store.settings() == {}


def test_a_switch_of_an_earlier_lucid_stays_and_goes_by_the_file_from_then_on(site: Site) -> None:
    site.store.set_setting("mode.vc", "order")
    site.turns(10.0)
    assert site.daemon.modes == {"vc": Mode.ORDER}
    assert switches_of(site.store.settings()) == {"vc": Switch("order", "observe", 1000.0)}
    restarted(site, "observe", "pack").turns(10.0)
    assert site.daemon.modes == {"vc": Mode.PACK}


def test_mode_lists_what_the_file_says_what_was_set_and_what_holds(site: Site) -> None:
    row = listed(switched(site))
    assert row.pop("since").startswith("20")
    told = {"configured": "observe", "by_hand": "order", "overtaken": None, "in_force": "order"}
    assert row.items() >= told.items()
    assert all(word in site.ctl("mode") for word in ("observe", "order", "by hand"))
    site.ctl("mode", "vc", "configured")
    site.turns(10.0)
    row = listed(site, "vc")
    assert (row["by_hand"], row["in_force"]) == (None, "observe")
    with pytest.raises(ConfigError, match=r"no partition 'cv' .*known: vc"):
        site.ctl("mode", "cv")


def test_a_switch_of_no_partition_can_be_taken_back(site: Site) -> None:
    site.store.set_setting("mode.gone", "pack")
    site.ctl("mode", "gone", "configured")
    assert site.store.settings() == {}
    with pytest.raises(ConfigError, match="no partition 'gone'"):
        site.ctl("mode", "gone", "pack")


def test_status_and_doctor_name_switches_and_a_file_that_was_edited_meanwhile(site: Site) -> None:
    switched(site)
    for told in (site.ctl("status"), site.ctl("doctor")):
        assert "vc is in mode order by hand since" in told
    assert "lucidctl mode vc configured" in told
    path = site.folder / "lucid.toml"
    path.write_text(path.read_text().replace('vc = "observe"', 'vc = "pack"'))
    for told in (site.ctl("status"), site.ctl("doctor")):
        assert "when lucid.toml said observe; it says pack now" in told
        assert "restart lucidd" in told
    site.ctl("mode", "vc", "configured")
    assert "says pack for vc, but the lucidd that runs read observe" in site.ctl("doctor")


SOUND = '[daemon]\nstate_dir = "/tmp/x"\n[daemon.partitions]\nvc = "observe"\n'


UNSOUND = ("[daemon]\nlease = 3\n", "[daemon", '[daemon.partitions]\nvc = "observe"\n[daemon]\npolicy = "x"\n', None)


@pytest.mark.parametrize("text", UNSOUND)
def test_settings_that_are_not_sound_change_nothing(text: Any, tmp_path: Path, caplog: Any) -> None:
    config, stop = tmp_path / "lucid.toml", threading.Event()
    if text is not None:
        config.write_text(text)
    reload = Reload(config)
    reload.read(stop)
    assert (stop.is_set(), reload.due) == (False, False)
    assert "the old ones hold" in caplog.text
    assert str(config) in caplog.records[0].facts["why"]
    config.write_text(SOUND)
    reload.read(stop)
    assert (stop.is_set(), reload.due) == (True, True)
    reload.end(stop)
    assert not reload.due, "after SIGTERM it does not start again"


def test_lucidd_checks_settings_where_there_is_no_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "lucid.toml"
    config.write_text(SOUND)
    assert main(["--check", "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: sound\n"
    config.write_text(SOUND.replace("observe", "watch"))
    assert main(["--check", "--config", str(config)]) == 2
    assert f"{config}: line 4: daemon.partitions.vc" in capsys.readouterr().err


def test_journald_is_told_the_job_and_how_bad_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    record = logging.makeLogRecord({"msg": "done", "levelno": logging.ERROR, "levelname": "ERROR"})
    record.facts = {"job": "81\n2", "partition": "vc", "why": "x\ny"}
    handler = JournalHandler(log_handler(), str(path))
    handler.emit(record)
    assert json.loads(capsys.readouterr().err)["event"] == "done", "nobody listens: stderr has it"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(os.fspath(path))
        handler.emit(record)
        fields = dict(line.split("=", 1) for line in journald.recv(65536).decode().splitlines())
    assert json.loads(fields.pop("MESSAGE"))["why"] == "x\ny"
    where = {"LUCID_JOB": "81\\n2", "LUCID_PARTITION": "vc"}
    assert fields == {"PRIORITY": "3", "SYSLOG_IDENTIFIER": "lucidd", **where}


def test_a_view_keeps_the_settings_of_the_policy_and_passes_over_those_that_have_gone() -> None:
    daemon = DaemonSettings(partitions={"vc": Mode.PACK})
    live = live_policy(Settings(daemon=daemon), frozenset({Capability.SHARE}))
    written = json.loads(json.dumps(live.to_dict()))
    assert LivePolicy.from_dict(written) == live
    written["settings"] |= {"idle": {"host": True}}
    written["settings"]["packing"]["sweep_most"] = 4
    assert LivePolicy.from_dict(written) == live
    written["settings"]["packing"]["gss"] = "many"
    with pytest.raises(ConfigError, match=r"policy of the last plan: settings of another version .*\$\.packing\.gss"):
        LivePolicy.from_dict(written)
