"""One serialiser for nouns whose class is known: equal after the way through JSON, older and newer data read."""

from __future__ import annotations

import json

import pytest

from builders import LIGHT
from lucid.core.as_json import from_json, to_json
from lucid.core.job import Elastic, Ended, Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.core.prediction import DurationTerms, Prediction, Split, StageTimes, Term
from lucid.core.snapshot import Partition, Snapshot
from lucid.store.view import snapshot_from_dict, snapshot_to_dict

ELASTIC = Job("9", "vc", 2, 5.0, elastic=Elastic(64, 32))
RUNNING = Running(ELASTIC, 3.0, (NodeGpus("n1", 3), NodeGpus("n2", 1)), stage=Stage.PROFILE, profile=LIGHT)
PREDICTION = Prediction(
    60.0, "x", 1, "y", epochs=3.0, epoch_s=(2.0, 1.0), stages=StageTimes((0.1, 0.2), 0.3),
    duration_terms=DurationTerms(0.5, (Term("a", "b", 4.0),), 4.4, 10.0, 20.0, None),
    share_splits=(Split("gpu_util", 20.0, True, 50.0),),
)  # fmt: skip


@pytest.mark.parametrize(
    "noun",
    [ELASTIC, RUNNING, PREDICTION, Pending(ELASTIC, 2.0, profile=LIGHT), Ended(ELASTIC, 9.0, 4.0, "FAILED", LIGHT)],
    ids=lambda noun: type(noun).__name__,
)
def test_a_noun_comes_back_equal(noun: object) -> None:
    assert from_json(type(noun), json.loads(json.dumps(to_json(noun)))) == noun


def test_a_picture_gives_elastic_jobs_back_whole() -> None:
    part = Partition("vc", (Node("n1", 4),), (Pending(ELASTIC, 5.0),), (RUNNING,))
    seen = snapshot_from_dict(json.loads(json.dumps(snapshot_to_dict(Snapshot(9.0, {"vc": part})))))
    again = seen.partitions["vc"]
    assert (again.nodes, again.pending, again.running) == (part.nodes, part.pending, part.running)


def test_what_is_not_there_has_its_default_and_what_is_not_known_is_passed_over() -> None:
    least = {"gpu_util": 1.0, "mem_util": 2.0, "gpu_mem_mib": 3.0, "of_later_versions": 4}
    assert from_json(JobProfile, least) == JobProfile(1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "data", [5, [], {"id": "1"}, {"id": "1", "vc": "v", "gpus": 1, "submit_s": 0.0, "elastic": 3}]
)
def test_another_shape_is_refused(data: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_json(Job, data)
