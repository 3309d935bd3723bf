"""Reasons: data that goes out as JSON and comes back the same."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields

import pytest

from lucid.core.reason import REASONS, Reason, reason_from_dict, reason_to_dict
from lucid.core.reasons.queue import BehindHead, Borrows, FreeGpus, Victim
from lucid.core.reasons.sharing import GpuMemory
from lucid.explain.reasons import reason_text

EXAMPLES: dict[str, object] = {
    "str": "x",
    "float": 1.5,
    "int": 2,
    "bool": True,
    "float | None": None,
    "tuple[Shown, ...]": ("a", "b"),
    "tuple[Victim, ...]": (Victim("j", "scav", 2, 7200.0),),
}


def example(kind: type[Reason]) -> Reason:
    return kind(**{f.name: EXAMPLES.get(str(f.type), "x") for f in fields(kind) if f.default is MISSING})


@pytest.mark.parametrize("kind", REASONS.values(), ids=lambda kind: kind.__name__)
def test_every_reason_survives_json(kind: type[Reason]) -> None:
    one = example(kind)
    data = json.loads(json.dumps(reason_to_dict(one)))
    assert data["kind"] == kind.__name__
    assert data["holds"] == bool(one)
    again = reason_from_dict(data)
    assert type(again) is type(one)
    assert again == one


def test_the_registry_holds_the_classes_themselves() -> None:
    assert REASONS["FreeGpus"] is FreeGpus
    assert FreeGpus.kind == "FreeGpus"


def test_a_large_job_that_borrows_is_read_as_b7b0384e_stored_it() -> None:
    stored = {"kind": "LargeBorrows", "job_gpus": 16, "above": 8, "waited_s": 9.0, "lenders": ["b"], "gpus": 4}
    assert reason_text(reason_from_dict(stored)) == "borrows 4 GPUs of VC b until it ends"
    stored = {"kind": "Borrows", "estimate_s": 600.0, "longest_s": None, "lenders": ["b"], "gpus": 4, "holds": True}
    assert reason_from_dict(stored) == Borrows(600.0, ("b",), 4)


def test_an_unknown_kind_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        reason_from_dict({"kind": "Whim"})


def test_reasons_compare_by_their_values() -> None:
    assert BehindHead("a") == BehindHead("a") != BehindHead("b")


@pytest.mark.parametrize(("other", "fits"), [(9999.0, True), (10000.0, False)])
def test_the_truth_of_a_reason_is_its_comparison(other: float, fits: bool) -> None:
    assert bool(GpuMemory("p", 10000.0, other, 20000)) == fits
