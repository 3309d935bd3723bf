"""Whatever Slurm may answer: no exception but our own, and good records beside a bad one stay what they were; turns
over a slurmctld that shows hostile jobs come to their end, and innocent jobs start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile import SEED, Hostile, inputs, only_our_errors, short

from daemon_site import Site
from fake_commands import job_json, node_json
from fake_slurm import FakeSlurm, fake_node
from lucid.core.placement import parse_placement
from lucid.daemon.reporting.status import words_of_left_out
from lucid.left_out import LeftOut
from lucid.slurm.accounting import accounted_from
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.configuration import (
    clock_from,
    config_from_text,
    fair_shares_from,
    gpu_limits_from,
    partitions_from,
)
from lucid.slurm.records.fields import (
    array_tasks,
    gpu_count,
    gpu_mask,
    gpu_types,
    hosts,
    is_shards,
    memory_mib,
    parse_mark,
    says,
    shard_counts,
)
from lucid.slurm.records.from_json import jobs_from, nodes_from
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.json import number_of
from lucid.slurm.records.request import NO_DEFAULTS, defaults_from, from_mark, host_needs, whole_because
from lucid.store.sqlite import SqliteStore

ASSETS = Path(__file__).resolve().parents[1] / "assets/slurm"
SHARE = {"type": ["USER"], "parent": "ml", "name": "ann", "fairshare": {"factor": {"set": True, "number": 0.25}}}


def records(file: str, key: str) -> list[Any]:
    return [row for path in sorted(ASSETS.glob(f"*/{file}")) for row in json.loads(path.read_text())[key]]


JOBS = records("jobs.json", "jobs")
NODES = [node for node in records("nodes.json", "nodes") if isinstance(node["state"], list)]
LISTS: dict[str, tuple[str, list[Any], Any]] = {
    "jobs": ("jobs", JOBS, jobs_from),
    "nodes": ("nodes", NODES, nodes_from),
    "partitions": ("partitions", records("partitions.json", "partitions"), partitions_from),
    "accounting": ("jobs", records("sacct.json", "jobs"), accounted_from),
}
GOOD = [{**next(j for j in JOBS if not number_of(j["array_job_id"])), "job_id": n} for n in (900001, 900002)]


@pytest.mark.parametrize("what", LISTS)
def test_lists_of_records(what: str) -> None:
    key, real, read = LISTS[what]
    goods = GOOD if what == "jobs" else real[:2]
    alone = read({key: goods})
    assert alone
    for draw in inputs(what):
        bad = draw.mutated(draw.choice(real))
        given = [goods[0], bad, *goods[1:]]
        left_out = LeftOut()
        with only_our_errors(what, bad):
            made = read({key: given}, left_out)
            assert all(item in made for item in alone), f"a good record changed beside {short(bad)}"
            if what == "jobs":
                assert [job for job in made if job.number in (900001, 900002)] == alone, short(bad)
                assert len(made) > len(alone) or "array_max_tasks" in short(bad), "a job was lost without a trace"
            json.dumps(left_out.summary()).encode()


def test_shares() -> None:
    for draw in inputs("shares"):
        bad = draw.mutated(SHARE)
        with only_our_errors("shares", bad):
            assert ("ml", "bob") in fair_shares_from({"shares": {"shares": [bad, {**SHARE, "name": "bob"}]}})


def test_whole_documents() -> None:
    whole = (json.loads(path.read_text()) for path in sorted(ASSETS.glob("*/*.json")))
    documents = [{k: v[:2] if isinstance(v, list) else v for k, v in document.items()} for document in whole]
    readers = (jobs_from, nodes_from, partitions_from, accounted_from, fair_shares_from, clock_from)
    for draw in inputs("documents"):
        given = draw.mutated(draw.choice(documents), 6)
        for read in readers:
            with only_our_errors("documents", given):
                read(given)


class Said(CommandClient):
    """Commands that print what they are told to."""

    def __init__(self) -> None:
        super().__init__([], Breaker(lambda: 0.0))
        self.said = b""

    def _run(self, command: Any) -> str:
        return self.said.decode("utf-8", "replace")


def test_bytes_of_commands() -> None:
    said = Said()
    asks = [said.jobs, said.nodes, said.partitions, said.fair_shares, said.clock_s, said.config]
    asks += [said.job_defaults, said.version, said.rights]
    body = json.dumps({"jobs": [GOOD[0], {**GOOD[1], "name": "a"}], "errors": [], "meta": {}}).encode()
    for draw in inputs("bytes"):
        said.said = draw.garbled(body) if draw.random() < 0.8 else draw.raw(200)
        said._version = None
        with only_our_errors("bytes", said.said):
            draw.choice(asks)()


def test_whatever_a_user_calls_a_job_the_others_are_seen() -> None:
    """A text of a user's is any bytes, escaped by Slurm or not, but for the quote that ends it."""
    said = Said()
    alone = jobs_from({"jobs": GOOD})
    for draw in inputs("names"):
        text = draw.raw(60) if draw.random() < 0.5 else draw.text()[:3000].encode("utf-8", "surrogatepass")
        name, field = text.replace(b'"', b"").rstrip(b"\\"), draw.choice(("name", "comment", "extra", "features"))
        first, bad, last = (
            json.dumps(job).encode() for job in (GOOD[0], {**GOOD[1], "job_id": 7, field: "NAME"}, GOOD[1])
        )
        said.said = b'{"jobs": [' + b", ".join([first, bad.replace(b'"NAME"', b'"%b"' % name), last]) + b"]}"
        with only_our_errors("names", name):
            made = said.jobs()
            assert [job for job in made if job.number != 7] == alone, f"blinded by {name!r}"
            assert [job.number for job in made] == [900001, 7, 900002]
            for job in made:
                f"{job.name}{job.comment}{job.extra}".encode()


def test_the_small_languages() -> None:
    readers = [
        hosts, gpu_count, gpu_mask, gpu_types, is_shards, shard_counts, memory_mib, parse_mark, parse_placement,
        lambda t: array_tasks(t, 50), lambda t: says(t, "off"), config_from_text, lambda t: gpu_limits_from(t, t),
        lambda t: defaults_from(f"PartitionName=a JobDefaults={t}", {"JobDefaults": t}),
        lambda t: whole_because(from_mark(parse_mark(t) or {}), parse_mark(t) or {}, 1, True, None),
        lambda t: host_needs({"cpus_per_tres": t, "mem_per_tres": t}, from_mark({}), 2, NO_DEFAULTS),
    ]  # fmt: skip
    seen = set()
    for draw in inputs("texts"):
        text = draw.text()
        if draw.random() < 0.5:
            text = draw.garbled(text[:200].encode("utf-8", "replace")).decode("latin-1")
        if text in seen:
            continue
        seen.add(text)
        for read in readers:
            try:
                read(text)  # type: ignore[operator]
            except Exception as error:
                raise AssertionError(f"{read}: {error!r} of {text[:500]!r}") from error


class Beset(FakeSlurm):
    """A slurmctld that shows, beside its own, records that a user or a bad disk made up."""

    def __init__(self, machines: Sequence[SlurmNode], now: float) -> None:
        super().__init__(list(machines), now)
        self.hostile: list[Any] = []
        self.hostile_nodes: list[Any] = []
        self.left_out = LeftOut()

    def jobs(self) -> list[SlurmJob]:
        real = [job_json(job) for job in super().jobs()]
        half = len(self.hostile) // 2
        return jobs_from({"jobs": [*self.hostile[:half], *real, *self.hostile[half:]]}, self.left_out)

    def nodes(self) -> Sequence[SlurmNode]:
        return nodes_from({"nodes": [*self.hostile_nodes, *map(node_json, super().nodes())]}, self.left_out)


def base(draw: Hostile, number: int) -> dict[str, Any]:
    """A waiting job of Lucid's, of another user's, or one that ended."""
    slurm = FakeSlurm([])
    slurm.submit(str(number), "vc", draw.choice((0, 1, 1, 2)))
    state = draw.choice(("PENDING", "PENDING", "FAILED", "COMPLETED"))
    record = job_json(replace(slurm.records[str(number)], number=number, state=state))
    made: dict[str, Any] = draw.mutated({**record, "array_task_string": "", "dependency": ""}, 3)
    return made


@pytest.mark.parametrize("mode", ["pack", "observe"])
def test_the_daemon_keeps_turning(tmp_path: Path, mode: str) -> None:
    machines, rules = [fake_node(name, "vc") for name in ("n1", "n2")], {"partitions": {"vc": mode}}
    site = Site(tmp_path, None, machines, slurm=Beset, first_guess_s=60.0, **rules)
    site.settings = site.settings.changed({"slurm.nodes_every_s": 1})
    slurm = site.slurm
    store = SqliteStore(tmp_path / "lucid.db", left_out=slurm.left_out)
    store._db.execute("PRAGMA synchronous = OFF")
    daemon = site.lucidd("one", store, left_out=slurm.left_out)
    named = 0
    for innocent, draw in enumerate(inputs(f"turns in {mode}"), start=1):
        slurm.hostile = [base(draw, 5000 + n) for n in range(draw.randrange(1, 6))]
        slurm.hostile_nodes = [draw.mutated(node_json(fake_node("n9", "other")))] if draw.random() < 0.3 else []
        slurm.submit(str(innocent), "vc", 1, run_s=20.0, held=mode == "pack")
        for _ in range(40):
            wait_s = daemon.turn()
            given = f"LUCID_FUZZ_SEED={SEED}, {innocent} in {mode}: {short([slurm.hostile, slurm.hostile_nodes])}"
            assert daemon._barrier.failed == 0, f"{daemon._barrier.last_error}: {given}"
            beat = read_heartbeat(tmp_path / "run/heartbeat")
            assert abs(beat.at_s - slurm.now) < 1.0, given
            if slurm.records[str(innocent)].start_s:
                break
            slurm.advance(min(max(wait_s, 0.5), 5.0))
        assert slurm.records[str(innocent)].start_s, f"an innocent job does not start: {given}"
        named += bool(words_of_left_out(store.view("status")))
        slurm.advance(25.0)
    assert named, "what is left out is named in status"
