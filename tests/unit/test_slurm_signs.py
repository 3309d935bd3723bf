"""The words of Lucid's tag: that a lucidd lives, and what lucid-release let go while none did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_daemon import Site

from lucid.adapters.slurm_signs import with_word
from lucid.adapters.slurm_text import parse_mark

MARK = "lucid:vc=vc;held=1;v=2"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def beats(site: Site) -> dict[str, float]:
    """By job."""
    found = {i: (parse_mark(r.admin_comment) or {}).get("beat") for i, r in site.slurm.records.items() if r.pending}
    return {i: float(at) for i, at in found.items() if at is not None}


def test_a_word_is_added_replaced_and_taken_out() -> None:
    assert with_word(MARK, "beat", "5") == MARK + ";beat=5"
    assert with_word(MARK + ";beat=5;let=1", "beat", "6") == MARK + ";let=1;beat=6"
    assert with_word(MARK + ";beat=5;let=1", "let", None) == MARK + ";beat=5"
    assert with_word("lucid:beat=5", "beat", None) == "lucid:"


def test_one_waiting_job_bears_the_beat_and_another_when_that_one_starts(site: Site) -> None:
    site.submit("run", 4, run_s=400.0)
    site.submit("run2", 4, run_s=400.0)
    for name in ("w1_1", "w2", "w3"):
        site.submit(name, 4, mark=MARK)
    for _ in range(300):
        site.slurm.advance(site.daemon.turn())
        waiting = [r for r in site.slurm.records.values() if r.pending and r.held]
        if waiting:
            newest = max(beats(site).values(), default=0.0)
            assert site.slurm.now - newest <= 70.0, "whoever asks Slurm sees that a lucidd lives"
        else:
            break
    written = [job for job, what in site.slurm.writes if what == "update"]
    assert written.count("w2") < 300


def test_nothing_is_written_where_nothing_is_held(site: Site) -> None:
    site.submit("free", 4, held=False, mark="none", run_s=50.0)
    site.turns(300.0)
    assert site.slurm.writes == []


def fill(site: Site) -> None:
    """No GPU of the VC is free; seven jobs wait, all let go by lucid-release."""
    for n in range(3):
        site.slurm.submit(f"big{n}", ("vc", "vc", "prof")[n], 4, held=False, mark="none", run_s=1e6)
    for n in range(7):
        site.submit(f"w{n}", 4, held=False, mark=f"{MARK};let=900")


def test_what_lucid_release_let_go_is_held_again(site: Site) -> None:
    fill(site)
    site.turns(10.0)
    for n in range(7):
        record = site.slurm.records[f"w{n}"]
        assert record.held
        assert "let" not in (parse_mark(record.admin_comment) or {})
        assert (parse_mark(record.admin_comment) or {})["vc"] == "vc"
    assert sum(what == "hold" for _, what in site.slurm.writes) == 7, "once each"


@pytest.mark.parametrize("how", ["user released", "comment off", "user holds", "dependency", "observe", "gave up"])
def test_what_is_not_lucids_to_take_up_stays_as_it_is(site: Site, how: str) -> None:
    fill(site)
    record = site.slurm.records["w0"]
    if how == "user released":
        record = replace(record, admin_comment=MARK)
    elif how == "comment off":
        record = replace(record, comment="lucid:off")
    elif how == "user holds":
        record = replace(record, comment="lucid:held")
    elif how == "dependency":
        record = replace(record, dependent=True)
    elif how == "observe":
        site.ctl("pause")
    else:
        from lucid.adapters.store import JobNote

        lease = site.store.take_lease("one", site.slurm.now, 15.0)
        assert lease is not None
        site.store.put_note(JobNote("w0", home="vc", released=True, given_up="Requested node configuration"), 1)
        site.start()
    site.slurm.records["w0"] = record
    site.turns(10.0)
    assert not site.slurm.records["w0"].held
    assert site.slurm.records["w1"].held is (how != "observe")


def test_killed_between_holding_it_again_and_saying_so(site: Site) -> None:
    fill(site)
    site.slurm.records["w0"] = replace(site.slurm.records["w0"], held=True, reason="JobHeldUser")
    site.turns(10.0)
    assert site.slurm.records["w0"].held
    assert "let" not in site.slurm.records["w0"].admin_comment
    site.slurm.records["w0"] = replace(site.slurm.records["w0"], held=False)
    site.turns(10.0)
    assert not site.slurm.records["w0"].held, "its user released it: that is not undone"
