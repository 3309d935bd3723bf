"""The settings of a policy as commands have them that plan again: those of lucidd, without their library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import lucid
from lucid.config.live import DaemonSettings
from lucid.config.load import Settings
from lucid.config.policy import PolicySettings
from lucid.config.section import Section
from lucid.core.ports import Capability
from lucid.daemon.policies import LivePolicy, live_policy
from lucid.daemon.reporting.settings import _TABLES


def test_they_have_the_values_of_the_settings_that_lucidd_checked() -> None:
    daemon = DaemonSettings(partitions={"vc": "pack"})
    live = live_policy(Settings(daemon=daemon), frozenset({Capability.SHARE}))
    plain = LivePolicy.from_dict(live.to_dict())
    assert not isinstance(plain.settings, BaseModel)
    assert _alike(plain.settings, live.settings)
    changed = plain.settings.model_copy(update={"fairness": plain.settings.fairness.model_copy(update={"x": 1})})
    assert vars(changed.fairness).keys() - vars(plain.settings.fairness).keys() == {"x"}
    assert changed.packing is plain.settings.packing


def test_they_lack_nothing_that_sections_of_policies_have_or_that_who_plans_asks_of_one() -> None:
    """Else it is there until lucidd has written a plan, and not afterwards."""
    for section in _sections(PolicySettings):
        own = {name for name in dir(section) if not name.startswith("_")}
        assert own - {*dir(Section)} - {*section.model_fields} == set(), section
    asked = {
        word
        for room in ("orchestrator", "binder", "profiler", "systems")
        for path in (Path(lucid.__file__).parent / room).rglob("*.py")
        for word in re.findall(r"\.(model_\w+)\(", path.read_text(encoding="utf-8"))
    }
    assert asked == {"model_copy"}


def test_they_are_frozen() -> None:
    plain = LivePolicy.from_dict(live_policy(Settings(), frozenset()).to_dict()).settings
    with pytest.raises(AttributeError, match="frozen: gss"):
        plain.packing.gss = 4  # type: ignore[misc]


def _sections(kind: type[BaseModel]) -> list[type[BaseModel]]:
    own = [item.annotation for item in kind.model_fields.values()]
    below = [one for one in own if isinstance(one, type) and issubclass(one, BaseModel)]
    return [kind, *(deeper for one in below for deeper in _sections(one))]


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
