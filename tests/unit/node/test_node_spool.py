"""The spool of a node, and MUNGE around it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lucid.errors import ActionRefused, MetricsError
from lucid.node.spool import SampleWriter, read_run, unended
from lucid.profiler.samples import GpuSample, record_size
from lucid.slurm.act.prolog_extra import free_extra
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient, credential


def write(writer: SampleWriter, count: int, gpus: tuple[str, ...] = ("GPU-a",)) -> None:
    for _ in range(count):
        writer.write(100.0 + writer.next_seq, gpus, [GpuSample(float(writer.next_seq % 100))] * len(gpus))


def numbers(spool: Path) -> list[int]:
    return [sample.seq for run in sorted(spool.glob("*@*~*")) for _, sample in read_run(run)]


def test_what_is_written_is_read_in_order_and_goes_with_the_job(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=10)
    write(writer, 25)
    assert numbers(tmp_path) == list(range(25))
    (run,) = tmp_path.iterdir()
    assert [sample.gpus[0].gpu_util for _, sample in read_run(run)] == [float(n) for n in range(25)]
    (run / ".left.tmp").write_text("of a sampler killed while it wrote")
    writer.end()
    assert list(tmp_path.iterdir()) == []
    again = SampleWriter(tmp_path, "7", "n1", 8.0)
    assert (again.next_seq, again.recovered) == (0, []), "requeued, it is not taken for its first run"


def test_a_torn_record_is_cut_off_and_its_number_used_again(tmp_path: Path) -> None:
    write(SampleWriter(tmp_path, "7", "n1", 5.0), 5)
    (segment,) = tmp_path.glob("*/*.seg")
    with segment.open("ab") as file:
        file.write(b"\0" * (record_size(1) - 3))
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    again = SampleWriter(tmp_path, "7", "n1", 99.0)
    assert again.next_seq == 5
    assert [sample.seq for _, sample in again.recovered] == [0, 1, 2, 3, 4]
    write(again, 2)
    assert numbers(tmp_path) == list(range(7))


def test_a_writer_killed_as_it_began_a_segment_counts_on(tmp_path: Path) -> None:
    write(SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=5), 11)
    last = max(tmp_path.glob("*/*.seg"))
    last.write_bytes(last.read_bytes()[: -record_size(1)])
    again = SampleWriter(tmp_path, "7", "n1", 6.0, segment_records=5)
    assert again.next_seq == 10
    write(again, 3)
    assert numbers(tmp_path) == list(range(13))


def test_gpus_may_change_within_a_job(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(writer, 2)
    write(writer, 2, ("GPU-a", "GPU-b"))
    (run,) = tmp_path.iterdir()
    found = [(sample.seq, *gpus) for gpus, sample in read_run(run)]
    assert found == [(0, "GPU-a"), (1, "GPU-a"), (2, "GPU-a", "GPU-b"), (3, "GPU-a", "GPU-b")]


def test_a_long_job_keeps_its_newest_samples(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=10, most_segments=3)
    write(writer, 55)
    assert len(list(tmp_path.glob("*/*.seg"))) == 3
    assert numbers(tmp_path) == list(range(30, 55))


def test_two_jobs_and_two_nodes_are_apart(tmp_path: Path) -> None:
    for job, node in (("7", "n1"), ("7", "n2"), ("70", "n1")):
        write(SampleWriter(tmp_path, job, node, 5.0), 2)
    assert [path.name for path in unended(tmp_path, "7", "n1")] == ["7@n1~5000"]


def test_a_damaged_head_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "7@n1~5000"
    folder.mkdir()
    for head in ("nonsense\n", json.dumps({"gpus": "GPU-a", "base_s": 5.0}) + "\n"):
        (folder / "0000000000.seg").write_text(head)
        with pytest.raises(MetricsError, match=r"0000000000\.seg: not a segment"):
            SampleWriter(tmp_path, "7", "n1", 5.0)


def test_a_full_disk_loses_the_sample_and_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(writer, 3)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[:10]))
        with pytest.raises(MetricsError, match="sample not written"):
            write(writer, 1)
    write(writer, 2)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


SEAL = "MUNGE:AwQFAAD9+RbZYggCWNzWjwGw8LULZUya/Q==:"


def client(tmp_path: Path, script: str, breaker: Breaker) -> CommandClient:
    program = tmp_path / "prefix"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return CommandClient([str(program)], breaker)


def test_a_text_is_sealed_for_root_behind_the_prefix(tmp_path: Path) -> None:
    script = f'printf "%s|" "$@" > {tmp_path}/words; echo {SEAL}'
    assert client(tmp_path, script, Breaker(time.monotonic)).seal("lucid 1 job=7") == SEAL
    assert (tmp_path / "words").read_text() == "munge|-u|root|-s|lucid 1 job=7|"
    assert free_extra(f"lucid-gpus=1,3;lucid-seal={SEAL}")


TROUBLE = {
    "echo 'munge: Error: Failed to access /run/munge' >&2; exit 6": "Failed to access",
    "exit 127": "exit status 127",
    "echo MUNGE:$(id):": "cannot seal",
    f"echo {SEAL}; echo more": "cannot seal",
}


@pytest.mark.parametrize("script", TROUBLE)
def test_trouble_with_munge_is_a_refusal_that_slurms_breaker_is_not_told_of(tmp_path: Path, script: str) -> None:
    breaker = Breaker(time.monotonic)
    sealing = client(tmp_path, script, breaker)
    for _ in range(20):
        with pytest.raises(ActionRefused, match=TROUBLE[script]):
            sealing.seal("x")
    breaker.check()


def test_munge_that_hangs_or_is_not_there_is_given_up() -> None:
    with pytest.raises(ActionRefused, match=r"does not answer within 0\.1 s"):
        credential(["sleep", "60"], 0.1)
    with pytest.raises(ActionRefused, match="cannot be run"):
        credential(["/nowhere/munge"])
