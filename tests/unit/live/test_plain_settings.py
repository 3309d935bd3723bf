"""The settings of a policy as commands have them that plan again: those of lucidd, without their library."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from lucid.config import DaemonSettings, PolicySettings, Settings
from lucid.core.ports import Capability
from lucid.live.plans.plain_settings import _TABLES
from lucid.live.policies import LivePolicy, live_policy


def test_they_have_the_values_of_the_settings_that_lucidd_checked() -> None:
    daemon = DaemonSettings(partitions={"vc": "pack"})
    live = live_policy(Settings(daemon=daemon), frozenset({Capability.SHARE}))
    plain = LivePolicy.from_dict(live.to_dict())
    assert not isinstance(plain.settings, BaseModel)
    assert _alike(plain.settings, live.settings)
    changed = plain.settings.model_copy(update={"fairness": plain.settings.fairness.model_copy(update={"x": 1})})
    assert vars(changed.fairness).keys() - vars(plain.settings.fairness).keys() == {"x"}
    assert changed.packing is plain.settings.packing


@pytest.mark.parametrize("change", [{"code": "of another version"}, {"own": {"vc": "of-another-package"}}])
def test_what_other_code_wrote_or_reads_is_checked_here(change: dict[str, Any]) -> None:
    data = live_policy(Settings(), frozenset()).to_dict()
    assert isinstance(LivePolicy.from_dict({**data, **change}).settings, PolicySettings)


def _alike(plain: Any, section: BaseModel) -> bool:
    """A section is one, and a table a table; what JSON has no word for is a list or a word."""
    assert vars(plain).keys() == type(section).model_fields.keys()
    for name, value in section:
        if isinstance(value, BaseModel):
            assert _alike(getattr(plain, name), value)
        else:
            assert isinstance(value, dict) == (name in _TABLES), name
            assert getattr(plain, name) == value, name
    return True
