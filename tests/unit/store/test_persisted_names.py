"""What a record calls a class is what Lucid 0.1 called it, whatever its module is called by now."""

from __future__ import annotations

import json

from lucid.core.decision import EndProfiling
from lucid.orchestrator.policies.shadow import Kept
from lucid.store import values as nouns
from lucid.store.values import noun_from_json, noun_to_json


def test_a_record_of_0_1_is_read_and_its_names_are_written() -> None:
    for noun, name in (
        (EndProfiling(()), "lucid.core.decision:Release"),
        (Kept(3600.0, 2), "lucid.orchestrator.policies.plain:Kept"),
    ):
        data = noun_to_json(noun)
        assert data["is"] == name
        assert noun_from_json(json.loads(json.dumps(data))) == noun


def test_every_name_that_was_kept_is_of_a_class_that_there_is() -> None:
    for now, written in nouns._WRITTEN_AS.items():
        assert nouns._class(written) is nouns._class(now)
        assert nouns._name(nouns._class(now)) == written
