"""What lucid-release let go while no lucidd decided is held again by the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daemon_site import Site
from lucid.slurm.act.repair import Released
from lucid.store.port import JobNote

MARK = "lucid:vc=vc;held=1;v=2"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def fill(site: Site, held: bool = False) -> list[int]:
    """No GPU of the VC is free; seven jobs wait, all let go by lucid-release, unless it is still to come (*held*).
    Their numbers."""
    for n in range(3):
        site.slurm.submit(f"big{n}", ("vc", "vc", "prof")[n], 4, held=False, mark="none", run_s=1e6)
    for n in range(7):
        site.submit(f"w{n}", 4, held=held, mark=MARK)
    numbers = [site.slurm.records[f"w{n}"].number for n in range(7)]
    if not held:
        released(site, numbers)
    return numbers


def released(site: Site, numbers: list[int]) -> None:
    """What lucid-release leaves."""
    (site.folder / "released").write_text("".join(f"{number} 0 900\n" for number in numbers))


def test_what_lucid_release_let_go_is_held_again(site: Site) -> None:
    fill(site)
    site.turns(10.0)
    for n in range(7):
        assert site.slurm.records[f"w{n}"].held
    assert sum(what == "hold" for _, what in site.slurm.writes) == 7, "once each"
    assert not (site.folder / "released").exists()
    site.slurm.records["w0"] = replace(site.slurm.records["w0"], held=False)
    site.turns(10.0)
    assert not site.slurm.records["w0"].held, "its user released it afterwards: that is not undone"


@pytest.mark.parametrize(
    "how", ["user released", "requeued since", "comment off", "user holds", "dependency", "observe", "gave up"]
)
def test_what_is_not_lucids_to_take_up_stays_as_it_is(site: Site, how: str) -> None:
    fill(site)
    record = site.slurm.records["w0"]
    if how == "user released":
        released(site, [site.slurm.records[f"w{n}"].number for n in range(1, 7)])
    elif how == "requeued since":
        record = replace(record, restarts=1)
    elif how == "comment off":
        record = replace(record, comment="lucid:off")
    elif how == "user holds":
        record = replace(record, comment="lucid:held")
    elif how == "dependency":
        record = replace(record, dependent=True, dependency="afterok:1(unfulfilled)")
    elif how == "observe":
        site.ctl("pause")
    else:
        lease = site.store.take_lease("one", site.slurm.now, 15.0)
        assert lease is not None
        site.store.put_notes([JobNote("w0", home="vc", released=True, given_up="Requested node configuration")], 1)
        site.start()
    site.slurm.records["w0"] = record
    site.turns(10.0)
    assert not site.slurm.records["w0"].held
    assert site.slurm.records["w1"].held is (how != "observe")


def test_a_list_that_is_none_is_passed_over(site: Site) -> None:
    fill(site)
    (site.folder / "released").write_bytes(b"\xff\xfe nonsense\n99999999999999999999 0 1\n1 1\n-1 0 1\n")
    site.turns(10.0)
    assert not any(record.held for record in site.slurm.records.values())
    (site.folder / "released").unlink(missing_ok=True)
    (site.folder / "released").mkdir()
    site.turns(10.0)
    assert not any(record.held for record in site.slurm.records.values())


def test_a_list_is_kept_while_lucid_release_may_still_be_at_it(site: Site) -> None:
    """It runs on another host, and writes the list before it lets go: what a look shows is older than the list."""
    numbers = fill(site, held=True)
    released(site, numbers[:4])
    site.daemon.turn()
    released(site, numbers)
    site.daemon.turn()
    assert (site.folder / "released").exists(), "it has changed since the look before"
    for n in range(7):
        site.slurm.records[f"w{n}"] = replace(site.slurm.records[f"w{n}"], held=False)
    site.turns(10.0)
    assert all(site.slurm.records[f"w{n}"].held for n in range(7))
    site.turns(10.0)
    assert not (site.folder / "released").exists()


def test_a_list_that_grows_while_it_is_done_with_is_kept(tmp_path: Path) -> None:
    (tmp_path / "released").write_text("7 0 900\n")
    listed = Released(tmp_path)
    assert listed.look()
    with (tmp_path / "released").open("a") as file:
        file.write("8 0 900\n")
    listed.done()
    assert listed.look()
    listed.done()
    assert not (tmp_path / "released").exists()
    assert not listed.look()
