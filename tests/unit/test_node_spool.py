"""Samples on disk: none lost, none doubled, whatever is killed; and bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lucid.adapters.gpu.spool import SampleWriter, read_spool, release
from lucid.errors import MetricsError
from lucid.profiler.samples import GpuSample, record_size


def write(writer: SampleWriter, count: int, gpus: tuple[str, ...] = ("GPU-a",)) -> None:
    for _ in range(count):
        writer.write(100.0 + writer.next_seq, gpus, [GpuSample(float(writer.next_seq % 100))] * len(gpus))


def numbers(spool: Path, cursors: dict[str, int]) -> list[int]:
    batch = read_spool(spool, cursors)
    cursors.update(batch.cursors)
    release(spool, batch)
    return [sample.seq for job in batch.jobs for sample in job.samples]


def test_what_is_written_is_read_once_in_order(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=10)
    cursors: dict[str, int] = {}
    write(writer, 25)
    assert numbers(tmp_path, cursors) == list(range(25))
    assert numbers(tmp_path, cursors) == []
    write(writer, 7)
    assert numbers(tmp_path, cursors) == list(range(25, 32))
    writer.end()
    assert numbers(tmp_path, cursors) == []
    assert list(tmp_path.iterdir()) == []


def test_a_torn_record_is_cut_off_and_its_number_used_again(tmp_path: Path) -> None:
    write(SampleWriter(tmp_path, "7", "n1", 5.0), 5)
    (segment,) = tmp_path.glob("*/*.seg")
    with segment.open("ab") as file:
        file.write(b"\0" * (record_size(1) - 3))
    assert [s.seq for job in read_spool(tmp_path, {}).jobs for s in job.samples] == [0, 1, 2, 3, 4]
    again = SampleWriter(tmp_path, "7", "n1", 99.0)
    assert again.next_seq == 5
    assert [sample.seq for _, sample in again.recovered] == [0, 1, 2, 3, 4]
    write(again, 2)
    assert numbers(tmp_path, {}) == list(range(7))


def test_a_writer_killed_while_all_was_taken_in_counts_on(tmp_path: Path) -> None:
    cursors: dict[str, int] = {}
    write(SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=5), 12)
    assert numbers(tmp_path, cursors) == list(range(12))
    write(SampleWriter(tmp_path, "7", "n1", 6.0, segment_records=5), 3)
    assert numbers(tmp_path, cursors) == [12, 13, 14]


def test_a_requeued_job_begins_at_nought_and_is_not_taken_for_its_first_run(tmp_path: Path) -> None:
    cursors: dict[str, int] = {}
    first = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(first, 4)
    first.end()
    assert numbers(tmp_path, cursors) == [0, 1, 2, 3]
    write(SampleWriter(tmp_path, "7", "n1", 8.0), 2)
    assert numbers(tmp_path, cursors) == [0, 1]


def test_a_reader_killed_before_it_stored_its_cursors_reads_the_same_again(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(writer, 6)
    writer.end()
    assert read_spool(tmp_path, {}) == read_spool(tmp_path, {})
    batch = read_spool(tmp_path, {})
    release(tmp_path, batch)
    release(tmp_path, batch)
    assert read_spool(tmp_path, batch.cursors).jobs == ()


def test_gpus_may_change_within_a_job(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(writer, 2)
    write(writer, 2, ("GPU-a", "GPU-b"))
    found = read_spool(tmp_path, {}).jobs
    assert [(job.gpus, [s.seq for s in job.samples]) for job in found] == [
        (("GPU-a",), [0, 1]),
        (("GPU-a", "GPU-b"), [2, 3]),
    ]


def test_what_nobody_takes_in_is_given_up_oldest_first_and_said(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0, segment_records=10, most_segments=3)
    write(writer, 55)
    assert len(list(tmp_path.glob("*/*.seg"))) == 3
    assert writer.dropped == 3
    found = read_spool(tmp_path, {}).jobs
    assert [job.missing for job in found] == [30, 0, 0]
    assert [s.seq for job in found for s in job.samples] == list(range(30, 55))


def test_after_a_long_absence_it_is_taken_in_by_parts(tmp_path: Path) -> None:
    for job in ("7", "8"):
        write(SampleWriter(tmp_path, job, "n1", 5.0, segment_records=10), 25)
    cursors: dict[str, int] = {}
    parts = []
    while batch := read_spool(tmp_path, cursors, most=15):
        cursors.update(batch.cursors)
        release(tmp_path, batch)
        if not batch.jobs:
            break
        parts.append([(job.job, sample.seq) for job in batch.jobs for sample in job.samples])
    assert [len(part) for part in parts] == [20, 15, 15]
    assert sorted(item for part in parts for item in part) == [(job, n) for job in ("7", "8") for n in range(25)]


def test_two_jobs_and_two_nodes_are_apart(tmp_path: Path) -> None:
    for job, node in (("7", "n1"), ("7", "n2"), ("70", "n1")):
        write(SampleWriter(tmp_path, job, node, 5.0), 2)
    assert sorted((j.job, j.node, len(j.samples)) for j in read_spool(tmp_path, {}).jobs) == [
        ("7", "n1", 2),
        ("7", "n2", 2),
        ("70", "n1", 2),
    ]


def test_a_damaged_head_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "7@n1~5000"
    folder.mkdir()
    (folder / "0000000000.seg").write_text("nonsense\n")
    write(SampleWriter(tmp_path, "8", "n1", 5.0), 2)
    (bad,) = read_spool(tmp_path, {}).bad
    assert "0000000000.seg: not a segment" in bad
    assert numbers(tmp_path, {}) == [0, 1], "of the others all are read"
    with pytest.raises(MetricsError, match=r"0000000000\.seg: not a segment"):
        SampleWriter(tmp_path, "7", "n1", 5.0)
    (folder / "0000000000.seg").write_text(json.dumps({"gpus": ["GPU-a"], "base_s": 5.0}) + "\n")
    assert [job.job for job in read_spool(tmp_path, {}).jobs] == ["8"]
    (tmp_path / "notes.txt").write_text("not ours")
    assert list(read_spool(tmp_path, {}).cursors) == ["7@n1~5000", "8@n1~5000"]


def test_a_full_disk_loses_the_sample_and_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 5.0)
    write(writer, 3)
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    with pytest.raises(MetricsError, match="sample not written"):
        write(writer, 1)
    monkeypatch.setattr(os, "write", real)
    write(writer, 2)
    assert numbers(tmp_path, {}) == [0, 1, 2, 3, 4]
