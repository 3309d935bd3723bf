"""docs/settings.md is what docs/site/settings_page.py prints; and lucidd takes no settings of simulations."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path

import pytest
from pydantic import BaseModel

from docs.site.settings_page import field_texts, settings_example, settings_reference
from lucid.cli.site.doctor import diagnose
from lucid.config.load import Settings, load_settings, settings_from, simulation_keys
from lucid.config.policy import LIVE_DEFAULTS, with_defaults
from lucid.config.section import is_fixed, of_simulations
from lucid.daemon.process import main
from lucid.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def fields(section: type[BaseModel], table: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += fields(inner, f"{table}{name}.")
        else:
            found.append((f"{table}{name}", field_texts(section).get(name, "")))
    return found


def fixed(section: type[BaseModel], table: str = "") -> list[str]:
    found = [f"{table}{name}" for name in section.model_fields if is_fixed(section, name)]
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += fixed(field.annotation, f"{table}{name}.")
    return found


FIXED = fixed(Settings)
SET_BY_FILE = {name for name, _about in fields(Settings)}.difference(FIXED)


def test_nobody_has_to_know_more_than_110_settings() -> None:
    assert len(SET_BY_FILE) <= 110


def test_what_is_fixed_is_refused_by_line_and_name_in_a_file_and_taken_from_a_study(tmp_path: Path) -> None:
    path = tmp_path / "lucid.toml"
    for name in FIXED:
        table, _, key = name.rpartition(".")
        value = attrgetter(name)(Settings())
        path.write_text(f"[{table}]\n{key} = {json.dumps(1 if value is None else value)}\n")
        with pytest.raises(ConfigError, match=re.escape(f"{path}: line 2: {name!r} is gone: no site set it")):
            load_settings(path)
    study = settings_from({"policy": {"reservation": {"most_share": 0.7}}}, "a study")
    assert study.policy.reservation.most_share == 0.7


def test_the_page_is_up_to_date() -> None:
    page = settings_reference().rstrip() + "\n"
    assert PAGE.read_text(encoding="utf-8") == page, "python docs/site/settings_page.py > docs/settings.md"


def test_the_example_names_every_key_that_lucidd_reads_with_its_meaning_and_changes_nothing(tmp_path: Path) -> None:
    text = settings_example()
    path = tmp_path / "lucid.toml"
    path.write_text(text)
    assert load_settings(path, live=True) == Settings()
    # with every # in front of a key taken away: all the keys of lucidd, each at its default there
    path.write_text(re.sub(r"^#(\w+ = \S)", r"\1", text, flags=re.MULTILINE))
    given, plain = load_settings(path, live=True), Settings()
    plain = plain.model_copy(update={"policy": with_defaults(plain.policy, LIVE_DEFAULTS)})
    shown, table = set(), ""
    for line in text.splitlines():
        if found := re.match(r"\[(.+)\]$|#(\w+) =", line):
            table = found[1] or table
            shown |= {f"{table}.{found[2]}"} if found[2] else set()
    wanted = {name for name in SET_BY_FILE if not of_simulation(name)}
    assert shown == wanted
    assert [name for name in sorted(wanted) if attrgetter(name)(given) != attrgetter(name)(plain)] == []
    words = " ".join(line.removeprefix("# ") for line in text.splitlines())
    said = {name: " ".join(about.replace("``", "`").split()) for name, about in fields(Settings)}
    assert [name for name in sorted(wanted) if said[name] not in words] == []


def of_simulation(name: str) -> bool:
    """Of simulations, or in a table that is."""
    section, path = Settings, name.split(".")
    for part in path:
        if of_simulations(section, part) is not None:
            return True
        section = section.model_fields[part].annotation
    return False


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, about in fields(Settings) if not about] == []


REFUSED = [
    ("[policy.pollux]\np = 1", "line 3: policy.pollux.p"),
    ("[policy.tiresias]\nthreshold_gpu_s = 1", "line 3: policy.tiresias.threshold_gpu_s"),
    ("[policy.optimus]\ninterval_s = 1", "line 3: policy.optimus.interval_s"),
    ("[overheads]\nrescale_s = 3", "line 3: overheads.rescale_s"),
    ("[policy.packing]\ngss = 1\nsame_user_only = true", "line 4: policy.packing.same_user_only"),
    ("[policy.fairness]\nshares = { a = 5 }", "line 3: policy.fairness.shares"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_lucidd_refuses_settings_of_simulations_and_simulate_takes_them(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lucid.toml"
    path.write_text(f'daemon.partitions.vc = "observe"\n{text}\n')
    load_settings(path)
    assert main(["--config", str(path), "--once"]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert words in said
    assert "lucidctl simulate --config" in said


def test_lucidd_takes_the_settings_of_the_policy_that_it_runs() -> None:
    data = {"daemon": {"policy": "muri-s"}, "policy": {"muri": {"unpack": False}, "pollux": {"p": 1.0}}}
    assert simulation_keys(settings_from(data, "here")) == ["policy.pollux.p"]
    assert simulation_keys(settings_from({"policy": {"packing": {"gss": 1}}}, "here")) == []
    fair = {"daemon": {"policy": "optimus-drf"}, "policy": {"optimus": {"interval_s": 60.0}}}
    assert simulation_keys(settings_from(fair, "here")) == [], "a policy's variants take its settings"


def test_doctor_tells_of_them(tmp_path: Path) -> None:
    data = {
        "daemon": {"partitions": {"vc": "observe"}, "state_dir": str(tmp_path), "heartbeat": str(tmp_path / "beat")},
        "slurm": {"prefix": ["false"]},
        "overheads": {"requeue_s": 3},
    }
    assert any("overheads.requeue_s" in f.what and f.level == "bad" for f in diagnose(settings_from(data, "here")))
