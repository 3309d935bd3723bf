"""A GPU that is not well is left out by lucidd, by Lucid and by Slurm, until it is well or a person returns it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daemon_site import Site
from lucid.config.live import GpuHealthSettings
from lucid.config.load import profiles_folder
from lucid.core.gpu import CardHealth, GpuFault, GpuOut, NodeHealth
from lucid.core.placement import NodeGpus
from lucid.errors import ClusterUnavailable
from lucid.node.reports import HealthFolder, health_folder, write_health
from lucid.orchestrator.capacity.gpus_out import judge
from lucid.setup.doctor_state import check_state
from lucid.slurm.act.placeholders import NAME
from lucid.slurm.records.job import SlurmJob

RULES = GpuHealthSettings()
XID = GpuFault("xid", "fallen off the bus", 100.0, 100.0, 100.0, 79, needs="reboot")
HOT = GpuFault("thermal", "the hardware slows it down because of heat", 100.0, 100.0, 100.0, lasts=True)
GPUS = {f"n{i}": range(8) for i in range(10)}


def told(*faults: GpuFault, node: str = "n1", index: int = 2, **rest: object) -> dict[str, NodeHealth]:
    made = NodeHealth(node, 100.0, "boot-1", 50.0, cards=(CardHealth(index, "GPU-a", faults=faults),))
    return {node: replace(made, **rest)}  # type: ignore[arg-type]


def test_an_xid_counts_until_the_node_has_booted_and_was_well_for_a_while_unless_an_application_has_it() -> None:
    assert not judge({}, {}, told(replace(XID, bad=False)), GPUS, 101.0, RULES).outs
    outs = judge({}, {}, told(XID), GPUS, 101.0, RULES).outs
    assert outs["n1:2"].words == "Xid 79, fallen off the bus"
    assert judge(outs, {}, told(XID), GPUS, 1e6, RULES).outs == outs, "the same boot"
    booted = told(XID, boot="boot-2", since_s=2000.0)
    assert judge(outs, {}, booted, GPUS, 2500.0, RULES).outs == outs, "not for long enough"
    found = judge(outs, {}, booted, GPUS, 2700.0, RULES)
    assert (found.outs, [why for _, why in found.returned]) == ({}, ["it is well again"])


def test_heat_counts_while_it_lasts_and_what_comes_again_and_again_waits_for_a_person() -> None:
    outs = judge({}, {}, told(HOT), GPUS, 101.0, RULES).outs
    assert judge(outs, {}, told(replace(HOT, last_s=900.0)), GPUS, 9e5, RULES).outs == outs
    over = replace(HOT, lasts=False, last_s=900.0)
    assert judge(outs, {}, told(over), GPUS, 1400.0, RULES).outs == outs
    assert not judge(outs, {}, told(over), GPUS, 1600.0, RULES).outs
    assert judge(outs, {}, told(replace(over, times=3)), GPUS, 1e6, RULES).outs == outs


def test_a_persons_return_forgives_what_was_and_not_what_comes() -> None:
    assert not judge({}, {"n1:2": 150.0}, told(XID, HOT), GPUS, 200.0, RULES).outs
    again = replace(XID, began_s=160.0, last_s=160.0, times=2)
    assert [*judge({}, {"n1:2": 150.0}, told(again), GPUS, 200.0, RULES).outs] == ["n1:2"]


@pytest.mark.parametrize(
    ("by", "silent_s", "returned"),
    [("", None, ["another card stands in its place"]), ("root", None, []), ("", 90.0, [])],
    ids=["another card is well", "only a person returns what a person took out", "the driver is silent"],
)
def test_another_card_in_the_place_of_one_that_is_out(by: str, silent_s: float | None, returned: list[str]) -> None:
    outs = {"n1:2": GpuOut("n1", 2, 100.0, "x", by=by, uuid="GPU-old")}
    found = judge(outs, {}, told(silent_s=silent_s), GPUS, 1e6, RULES)
    assert ([why for _, why in found.returned], found.outs) == (returned, {} if returned else outs)


def test_a_broken_sampler_takes_out_a_bounded_share() -> None:
    """Of 80 GPUs four at the most, of the 8 of a node four."""
    cards = tuple(CardHealth(i, f"GPU-{i}", faults=(XID,)) for i in range(8))
    health = {node: NodeHealth(node, 100.0, "b", 50.0, cards=cards) for node in ("n1", "n2")}
    found = judge({}, {}, health, GPUS, 101.0, RULES)
    assert (len(found.outs), len(found.beyond)) == (4, 12)
    found = judge({}, {}, health, GPUS, 101.0, RULES.changed({"most_share": 1.0}))
    assert sorted(out.node for out in found.new) == ["n1"] * 4 + ["n2"] * 4
    person = {f"n9:{i}": GpuOut("n9", i, 1.0, "x", by="root") for i in range(8)}
    assert len(judge(person, {}, health, GPUS, 101.0, RULES).new) == 4, "persons' are not counted"


class Sick(Site):
    """A site whose samplers tell of their GPUs."""

    def tell(self, *faults: GpuFault, node: str = "n1", index: int = 2) -> None:
        folder = health_folder(profiles_folder(self.settings))
        folder.parent.mkdir(exist_ok=True)
        now_s = self.slurm.now
        faults = tuple(replace(fault, since_s=now_s, began_s=now_s, last_s=now_s) for fault in faults)
        cards = (CardHealth(index, "GPU-a", faults=faults),)
        write_health(folder, NodeHealth(node, now_s, "boot", 1.0, cards=cards))
        self.daemon.parts.health = HealthFolder(folder)
        if self.daemon._cycles is not None:
            self.daemon._cycles.gpu_health._folder = self.daemon.parts.health

    def loses_one(self) -> None:
        """GPU 2 of n1 is out from now on."""
        self.turns(5)
        self.tell(XID)
        self.turns(10)
        assert self.held() == ["n1:2"]

    def placeholders(self) -> list[SlurmJob]:
        return [one for one in self.slurm.records.values() if one.name.startswith(NAME)]

    def held(self) -> list[str]:
        return [one.name.removeprefix(NAME) for one in self.placeholders() if one.running]

    def answer(self, *words: str) -> Any:
        """Of a command, with --json."""
        return json.loads(self.ctl(*words, "--json"))

    def used(self) -> set[tuple[str, int]]:
        running = [r for r in self.slurm.records.values() if r.running and not r.name.startswith(NAME)]
        return {(part.node, gpu) for r in running for part in r.placement for gpu in part.gpus}


@pytest.fixture
def site(tmp_path: Path) -> Sick:
    return Sick(tmp_path, profiling_partition="", gpu_health={"most_share": 0.5})


def test_the_gpu_and_no_other_is_left_out_and_a_person_returns_it(site: Sick) -> None:
    site.loses_one()
    for i in range(10):
        site.submit(str(i), time_limit_s=600.0)
    site.turns(10)
    assert len(site.used()) == 7
    assert ("n1", 2) not in site.used()
    assert "GPU 2 of n1 is out since" in site.ctl("explain", "9")
    assert "n1:2" in site.ctl("gpu", "health")
    assert "GPU 2 of n1 is out: Xid 79, fallen off the bus" in site.ctl("status")
    assert site.answer("status")["gpu_health"]["out"][0]["index"] == 2
    assert site.answer("gpu", "health")["out"][0]["code"] == 79
    assert "n1:2 is back" in site.ctl("gpu", "return", "n1:2")
    site.turns(10)
    assert (site.held(), len(site.used())) == ([], 8)
    assert site.ctl("gpu", "health").startswith("no GPU is out")


def test_who_runs_there_goes_on_and_nobody_joins(site: Sick) -> None:
    site.submit("1", 4, time_limit_s=600.0)
    site.turns(5)
    (part,) = site.slurm.records["1"].placement
    site.tell(XID, node=part.node)
    site.turns(20)
    (placeholder,) = site.placeholders()
    assert (site.slurm.records["1"].state, placeholder.state) == ("RUNNING", "PENDING")
    assert placeholder.dependency == "afterany:1"
    assert site.answer("status")["on_gpus_out"][0]["job"] == "1"
    (entry,) = site.daemon.cluster.observe().partitions["vc"].running  # type: ignore[union-attr]
    assert entry.alone
    site.slurm.run_s["1"] = 0.0
    site.turns(5)
    assert site.held() == [f"{part.node}:2"]


@pytest.mark.parametrize(("fault", "mark", "stays"), [(XID, ";restart=1", 0), (XID, "", 1), (HOT, ";restart=1", 1)])
def test_only_who_may_be_started_over_leaves_a_gpu_that_failed(site: Sick, fault: Any, mark: str, stays: int) -> None:
    site.submit("1", time_limit_s=6000.0, mark="lucid:vc=vc" + mark)
    site.turns(5)
    (part,) = site.slurm.records["1"].placement
    site.tell(fault, node=part.node, index=part.gpus[0])
    site.turns(60)
    record = site.slurm.records["1"]
    assert (record.running, record.restarts == 0, record.placement == (part,)) == (True, stays, stays)
    gone, goes_on = f"GPU {part.gpus[0]} of {part.node} is out", "it runs on a GPU that is not well, and goes on"
    assert (goes_on if stays else gone) in site.ctl("explain", "1")


def test_the_placeholder_is_renewed_while_lucidd_lives_and_ends_without_it(site: Sick) -> None:
    site.loses_one()
    site.turns(3000, every_s=20.0)
    assert site.held() == ["n1:2"]
    site.slurm.advance(901.0)
    assert site.held() == []
    writes = site.slurm.held
    again = site.start("two")
    site.slurm.advance(60.0)
    again.turn()
    assert site.slurm.held == writes, "no heartbeat of this lucidd has told yet whose jobs may name a GPU"
    site.turns(40)
    assert site.held() == ["n1:2"], "it knows what was out"


HOLES = ("g0", "g1", "g3", "g5")
"""Addresses of /dev/nvidia0, 1, 3 and 5: what samplers and people call GPU 3 is the third of Slurm's."""


def test_where_device_numbers_have_holes_the_gpu_of_that_file_is_out_and_no_other(site: Sick) -> None:
    site.slurm.node("n1", gpu_types=HOLES, shard_types=frozenset(HOLES))
    site.submit("0", 4, time_limit_s=6000.0, mark="lucid:vc=vc;restart=1")
    site.turns(5)
    (part,) = site.slurm.records["0"].placement
    site.tell(XID, index=3 if part.node == "n1" else 2, node=part.node)
    site.turns(30)
    assert site.slurm.records["0"].restarts == 1, "it left the GPU that failed"
    site.slurm.run_s["0"] = 0.0
    site.tell(XID, index=3)
    site.turns(30)
    assert "n1:3" in site.held()
    assert [one.placement for one in site.placeholders() if one.name == NAME + "n1:3"] == [(NodeGpus("n1", 1 << 2),)]
    for i in range(1, 12):
        site.submit(str(i), time_limit_s=600.0)
    site.turns(30)
    assert [gpu for node, gpu in sorted(site.used()) if node == "n1"] == [0, 1, 3]
    assert "GPU 3 of n1 is out since" in site.ctl("explain", "11")
    site.ctl("gpu", "out", "n1:2", "--reason", "no such GPU")
    site.turns(10)
    none = "not kept off n1:2: Slurm knows no GPU of this number on its node (it has 0, 1, 3, 5)"
    assert none in site.ctl("gpu", "health")
    assert [gpu for node, gpu in sorted(site.used()) if node == "n1"] == [0, 1, 3]


def test_numbers_that_do_not_fit_those_of_the_sampler_are_told(site: Sick) -> None:
    site.turns(5)
    site.tell()
    folder = health_folder(profiles_folder(site.settings))
    cards = {"n1": (0, 1, 3, 5), "n2": range(8)}  # of n2 the site keeps four from Slurm
    for node, seen in cards.items():
        told = tuple(CardHealth(number, f"GPU-{number}") for number in seen)
        write_health(folder, NodeHealth(node, site.slurm.now, "boot", 1.0, cards=told))
    site.turns(20)
    odd = [{"node": "n1", "slurm": [0, 1, 2, 3], "sampler": [0, 1, 3, 5]}]
    assert site.answer("gpu", "health")["odd_numbers"] == odd
    assert site.answer("status")["gpu_health"]["odd_numbers"] == odd
    says = "n1: by their types Slurm's GPUs are those with the device numbers 0, 1, 2, 3, and its sampler sees 0, 1"
    assert says in site.ctl("gpu", "health")
    (bad,) = [one for one in check_state(site.settings, site.slurm.now) if says in one.what]
    assert bad.level == "bad"


@pytest.mark.parametrize("how", ["mode", "drained", "off"])
def test_slurm_has_the_gpu_where_lucid_may_not_act(site: Sick, how: str) -> None:
    site.loses_one()
    if how == "mode":
        site.ctl("mode", "vc", "observe")
    elif how == "drained":
        site.slurm.node("n1", states=frozenset({"IDLE", "DRAIN"}))
    else:
        site.daemon._cycles.gpu_health._rules = GpuHealthSettings(leave_out=False)  # type: ignore[union-attr]
    site.turns(60)
    assert site.held() == []
    assert "n1:2" in site.ctl("gpu", "health"), "told all the same"


def test_a_sampler_and_a_driver_that_say_nothing_are_named_and_what_is_beyond_the_bound(site: Sick) -> None:
    site.turns(5)
    site.daemon._cycles.gpu_health._rules = GpuHealthSettings(most_share=0.1)  # type: ignore[union-attr]
    for index, node in enumerate(("n1", "n2")):
        site.tell(XID, node=node, index=index)
    folder = health_folder(profiles_folder(site.settings))
    write_health(folder, NodeHealth("n9", 1.0, silent_s=500.0))
    os.utime(folder / "n9.json", (1.0, 1.0))
    site.turns(10)
    told = site.answer("gpu", "health")
    assert (len(told["out"]), len(told["beyond"]), told["sampler_silent"]) == (1, 1, ["n9"])
    assert len(site.answer("status")["gpu_health"]["beyond"]) == 1
    assert told["driver_silent"] == [{"node": "n9", "since_s": 500.0}]
    text = site.ctl("gpu", "health")
    assert "and is not taken out: too many are" in text
    assert "n9: the driver has not answered since" in text


def test_where_slurm_refuses_it_lucid_leaves_the_gpu_out_itself_and_says_so(site: Sick) -> None:
    site.slurm.refuses_held = "no such account"
    site.turns(5)
    site.tell(XID)
    site.turns(10)
    for i in range(10):
        site.submit(str(i), time_limit_s=600.0)
    site.turns(10)
    assert ("n1", 2) not in site.used()
    assert "Slurm's own jobs are not kept off n1:2: no such account" in site.ctl("gpu", "health")
    site.slurm.refuses_held, site.slurm.now = (
        "",
        site.slurm.now - 600.0,
    )  # the clock was ahead: nothing waits for that
    site.turns(10)
    assert site.held() == ["n1:2"]


def test_where_nobody_can_tell_who_lucidd_is_turns_go_on_and_it_is_told(site: Sick) -> None:
    def who() -> tuple[int, str]:
        raise ClusterUnavailable("id: exit status 126")

    site.slurm.who = who
    site.submit("1", name=NAME + "n2:0", time_limit_s=600.0)
    site.turns(5)
    site.tell(XID)
    site.turns(20)
    assert site.slurm.records["1"].running
    unknown = "not kept off n1:2: who lucidd is on the cluster is not known: id: exit status 126"
    assert unknown in site.ctl("gpu", "health")
    assert site.store.view("status")["last_error"] == ""


def test_a_job_of_that_name_of_somebody_else_is_theirs(site: Sick) -> None:
    site.submit("1", name=NAME + "n1:0", time_limit_s=600.0)
    site.turns(10)
    assert site.slurm.records["1"].running
    assert len(site.daemon.cluster.observe().partitions["vc"].running) == 1  # type: ignore[union-attr]


def test_what_cannot_be_read_keeps_nobody_from_starting(site: Sick) -> None:
    folder = health_folder(profiles_folder(site.settings))
    folder.mkdir(parents=True)
    (folder / "n1.json").write_text("{")
    site.store.set_setting("gpu.out.n1:1", "{")
    site.daemon.parts.health = HealthFolder(folder)
    site.submit("1", time_limit_s=600.0)
    site.turns(10)
    assert site.slurm.records["1"].running
    assert [one["file"] for one in site.answer("gpu", "health")["unread"]] == ["n1.json"]
    assert site.answer("status")["gpu_health"]["unread"]
    site.tell(replace(XID, bad=False))
    site.slurm.refuses_held = "no"
    site.ctl("gpu", "out", "n1:1", "--reason", "x")
    site.turns(10)
    told = site.answer("gpu", "health")
    assert told["not_kept"] == [{"gpu": "n1:1", "why": "no"}]
    assert site.answer("status")["gpu_health"]["not_kept"]
    assert [fault["bad"] for fault in told["faults"]] == [False]
    assert site.ctl("gpu", "health", "--all").count("Xid 79") == 1
    assert isinstance(site.slurm.records["1"].placement[0], NodeGpus)
