"""A mode set by hand holds until it is taken back, or until the administrator's file says something else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from daemon_site import Site
from lucid.daemon.modes import Switch, switches_of
from lucid.errors import ConfigError
from lucid.places import Mode


def restarted(site: Site, said: str, says: str) -> Site:
    """The file edited, and lucidd started again on the same store."""
    path = site.folder / "lucid.toml"
    path.write_text(path.read_text().replace(f'vc = "{said}"', f'vc = "{says}"'))
    site.daemon.stop()
    daemon = site.settings.daemon.model_copy(update={"partitions": {"vc": Mode(says)}})
    site.settings = site.settings.model_copy(update={"daemon": daemon})
    site.start("two")
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, partitions={"vc": "observe"})


def test_a_switch_outlives_a_restart_with_the_same_file(site: Site) -> None:
    site.turns(10.0)
    site.ctl("mode", "vc", "order")
    site.turns(10.0)
    assert site.daemon.modes == {"vc": Mode.ORDER}
    restarted(site, "observe", "observe").turns(10.0)
    assert site.daemon.modes == {"vc": Mode.ORDER}


def test_the_file_wins_once_it_says_something_else(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.turns(10.0)
    site.ctl("mode", "vc", "order")
    site.turns(10.0)
    restarted(site, "observe", "pack").turns(10.0)
    assert site.daemon.modes == {"vc": Mode.PACK}
    assert site.store.settings() == {}
    (told,) = [record.facts["what"] for record in caplog.records if record.message == "mode switched by hand"]
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
    site.slurm.now = time.time()
    site.turns(10.0)
    assert "from the next cycle on" in site.ctl("mode", "vc", "order")
    site.turns(10.0)
    (row,) = json.loads(site.ctl("mode", "--json"))["partitions"]
    assert (row["configured"], row["by_hand"], row["overtaken"], row["in_force"]) == (
        "observe",
        "order",
        None,
        "order",
    )
    assert row["since"].startswith("20")
    assert all(word in site.ctl("mode") for word in ("observe", "order", "by hand"))
    site.ctl("mode", "vc", "configured")
    site.turns(10.0)
    (row,) = json.loads(site.ctl("mode", "vc", "--json"))["partitions"]
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
    site.slurm.now = time.time()
    site.turns(10.0)
    site.ctl("mode", "vc", "order")
    site.turns(10.0)
    words = "vc is in mode order by hand since"
    assert words in site.ctl("status")
    assert "lucidctl mode vc configured" in site.ctl("doctor")
    assert words in site.ctl("doctor")
    path = site.folder / "lucid.toml"
    path.write_text(path.read_text().replace('vc = "observe"', 'vc = "pack"'))
    for told in (site.ctl("status"), site.ctl("doctor")):
        assert "when lucid.toml said observe; it says pack now" in told
        assert "restart lucidd" in told
    site.ctl("mode", "vc", "configured")
    assert "says pack for vc, but the lucidd that runs read observe" in site.ctl("doctor")
