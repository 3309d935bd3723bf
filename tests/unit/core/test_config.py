"""Settings: what is wrong, where, and what would have been right."""

from __future__ import annotations

from pathlib import Path

import pytest

from lucid.config.load import load_settings, settings_from
from lucid.config.policy import PolicySettings, with_defaults
from lucid.errors import ConfigError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "lucid.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_what_is_written_counts(tmp_path: Path) -> None:
    found = load_settings(written(tmp_path, "[policy.packing]\ngss = 1\n[overheads]\nrequeue_s = 5\n"))
    assert (found.policy.packing.gss, found.overheads.requeue_s) == (1, 5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[policy.packing]\ngsss = 1", ["'policy.packing.gsss'", "did you mean 'gss'?", "least_pair_speed"]),
        ("[polcy]\nx = 1", ["'polcy'", "did you mean 'policy'?", "known here: policy, overheads"]),
        ("[policy]\nzzzz = 1", ["'policy.zzzz' (known here: profiling, packing"]),
        ("[policy.packing]\ngss = 'many'", ["policy.packing.gss = 'many'", "whole number at least 0 and at most 4"]),
        ("[policy.packing]\ngss = 9", ["policy.packing.gss = 9", "at most 4"]),
        ('[policy.packing]\ngss = "1"', ["line 2: policy.packing.gss = '1': write a whole number"]),
        ("[policy.lending]\nmode = 'any'", ['line 2: policy.lending.mode = \'any\': write "off" or "quota" or']),
        ("[daemon]\npartitions = { a = 'no' }", ["line 2: daemon.partitions.a = 'no': write \"observe\" or"]),
        ("[slurm]\ntimeout_s = inf", ["line 2: slurm.timeout_s = inf: write a number more than 0"]),
        ("daemon = 3", ["line 1: daemon = 3: write a table"]),
        ("[policy.profiling]\nt_prof_s = 0", ["policy.profiling.t_prof_s = 0", "more than 0"]),
        ("policy = 3", ["policy = 3"]),
        ("[policy.packing]\ndynamic = true", ["line 2: 'policy.packing.dynamic' is gone: ", "packing.when_calm"]),
        ("[policy.idle]\nhost = true", ["line 1: 'policy.idle' is gone: taken out"]),
        ('[slurm]\nrest_url = "x"', ["line 2: 'slurm.rest_url' is gone: taken out", "slurm.prefix"]),
        ("[tuner]\nevery_h = 24", ["line 1: 'tuner' is gone: taken out", "lucidctl tune search"]),
        ("[models]\nmonotone = {}", ["line 2: 'models.monotone' is gone: no site set it"]),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(caught.value).startswith(f"{path}: ")
    for word in words:
        assert word in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'a'.*; .*'b'"):
        settings_from({"a": 1, "b": 2}, "here")


def test_a_file_that_is_not_there_or_not_toml_or_gives_a_key_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file.*--config"):
        load_settings(tmp_path / "none.toml")
    for data in (b"[policy", b"\xff\xfe"):
        with pytest.raises(ConfigError, match="not valid TOML"):
            load_settings(written(tmp_path, data))
    path = written(tmp_path, '[daemon]\nstate_dir = "/a"\nstate_dir = "/b"\n')
    with pytest.raises(ConfigError, match=rf"{path}: not valid TOML: .*line 3"):
        load_settings(path)


def test_defaults_of_a_trace_give_way_to_what_was_set() -> None:
    defaults = {"tiresias.threshold_gpu_s": 5.0, "tiresias.placement": "emptiest", "optimus.interval_s": 60.0}
    own = settings_from({"policy": {"tiresias": {"threshold_gpu_s": 18000.0}}}, "test")
    for given, said, threshold_s in ((PolicySettings(), frozenset[str](), 5.0), (own.policy, own.given, 18000.0)):
        made = with_defaults(given, defaults, said)
        assert (made.tiresias.threshold_gpu_s, made.tiresias.placement) == (threshold_s, "emptiest")
        assert made.optimus.interval_s == 60.0


@pytest.mark.parametrize("key", ["state_dir", "heartbeat", "profiles_dir"])
def test_a_path_that_hangs_on_who_starts_what_where_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"lucid.toml: daemon.{key} = 'here/x'.* begins with /"):
        settings_from({"daemon": {key: "here/x"}}, "lucid.toml")
