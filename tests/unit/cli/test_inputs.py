"""What is typed or stored wrongly is told as that: numbers of jobs, mistyped names, times by another clock."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from daemon_site import Site
from lucid.cli.main import _GONE, lucidctl
from lucid.cli.options import job_number
from lucid.errors import ConfigError
from lucid.explain.words import ago
from lucid.slurm.view.failed_pairs import failed_pairs_in

AHEAD_S = 57_000.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Of four jobs for all GPUs of a node, the job 4 waits."""
    made = Site(tmp_path_factory.mktemp("site"))
    for number in range(1, 5):
        made.submit(str(number), 4, mark="lucid:vc=vc;share=0", run_s=5000.0)
    made.turns(400.0, every_s=10.0)
    (made.folder / "profiles").mkdir()
    return made


def typed(*words: str, site: Site | None = None) -> Result:
    config = [] if site is None else ["--config", str(site.folder / "lucid.toml")]
    return CliRunner().invoke(lucidctl, [*words, *config])


def commands(command: click.Command = lucidctl, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield before, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, *before, name)


EVERY = list(commands())
OF_A_JOB = [
    (*words, *(["--job"] if isinstance(one, click.Option) else []))
    for words, command in EVERY
    for one in command.params
    if one.name == "job_id"
]


# -- numbers of jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*OF_A_JOB, ("efficiency", "--time-limits", "--job")], ids=" ".join)
@pytest.mark.parametrize("word", ["abc", "49469_", "49469.batch", "１"])
def test_what_is_no_job_number_is_told_as_that(words: tuple[str, ...], word: str, site: Site) -> None:
    done = typed(*words, word, site=site)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.exit_code == 2
    assert str(done.exception) == f"{word} is no job number; 49469, 49469_3 and 49469+1 are"


def test_the_commands_that_take_a_job_are_these() -> None:
    assert set(OF_A_JOB) == {("explain",), ("why-not",), ("efficiency", "--job")}
    assert [job_number(word) for word in ("49469", "49469_3", "49469+1")] == ["49469", "49469_3", "49469+1"]


def test_a_part_of_a_heterogeneous_job_is_asked_of_slurm(site: Site) -> None:
    done = typed("explain", "49469+1", site=site)
    assert isinstance(done.exception, ConfigError)
    assert "nothing was decided about job 49469+1" in str(done.exception)


# -- did you mean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "group"), [(w, c) for w, c in EVERY if isinstance(c, click.Group)])
def test_a_mistyped_command_is_told_which_one_it_may_mean(words: tuple[str, ...], group: click.Group) -> None:
    for name in group.list_commands(click.Context(group)):
        mistyped = f"{name[:-1]}{name[-1] * 2}x"
        done = typed(*words, mistyped)
        assert done.exit_code == 2
        assert f"No such command {mistyped!r}; did you mean '{name}'?" in done.output


def test_a_mistyped_option_is_told_which_one_it_may_mean() -> None:
    for words, command in EVERY:
        for option in command.params:
            if isinstance(option, click.Option) and option.opts[0].startswith("--"):
                done = typed(*words, f"{option.opts[0]}xq")
                assert done.exit_code == 2
                assert re.search("[Dd]id you mean ", done.output), (words, option.opts[0], done.output)


@pytest.mark.parametrize(
    "words",
    [
        ("mode", "vcc"),
        ("mode", "vcc", "order"),
        ("when", "--gpus", "1", "--partition", "vcc"),
        ("why-not", "4", "--vc", "vcc"),
    ],
)
def test_a_mistyped_partition_is_told_which_one_it_may_mean(
    words: tuple[str, ...], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: site.slurm.now)
    done = typed(*words, site=site)
    assert isinstance(done.exception, ConfigError)
    assert "; did you mean 'vc'?" in str(done.exception)


def test_a_word_on_the_mode_lets_pairs_be_made_again(site: Site) -> None:
    told = {"node": "n1", "since_s": 1.0, "job": "7", "reason": "Prolog error", "partitions": ["vc"]}
    site.store.set_setting("pairs.off.n1", json.dumps(told))
    assert "pairs on n1 again" in typed("mode", "vc", "configured", site=site).output
    assert not failed_pairs_in(site.store.settings())


def test_one_place_says_did_you_mean() -> None:
    package = Path(__file__).parents[3] / "lucid"
    found = [path.name for path in package.rglob("*.py") if "get_close_matches" in path.read_text(encoding="utf-8")]
    assert found == ["errors.py"]


# -- clocks -------------------------------------------------------------------------------------------------


def test_an_age_is_never_negative() -> None:
    assert ago(-AHEAD_S) == "15.8 h from now: the clock that wrote it and this one differ"
    assert [ago(age_s) for age_s in (-2.0, 0.4, 120.0)] == ["0 s ago", "0 s ago", "2 min ago"]


@pytest.mark.parametrize(
    ("words", "tells"),
    [
        (("status",), True),
        (("when", "--gpus", "1"), True),
        (("why-not", "4"), True),
        (("queue",), False),
        (("explain", "4"), False),
        (("history",), False),
        (("efficiency",), False),
        (("gpu", "--once"), False),
        (("gpu", "health"), False),
        (("mode",), False),
    ],
)
def test_nothing_is_told_to_be_older_than_the_future(
    words: tuple[str, ...], tells: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store and the heartbeat are written by a host whose clock is 15.8 h ahead of this one's."""
    monkeypatch.setattr(time, "time", lambda: site.slurm.now - AHEAD_S)
    done = typed(*words, site=site)
    assert done.exception is None
    assert not re.search(r"(?<![\w.–-])-\d[\d.]* (s|min|h|d)\b", done.output), done.output
    assert ("15.8 h from now" in " ".join(done.output.split())) is tells


@pytest.mark.parametrize(("command", "instead"), _GONE.items())
def test_a_command_that_was_taken_out_says_what_took_its_place(command: str, instead: str) -> None:
    said = CliRunner().invoke(lucidctl, [command, "--json"])
    assert said.exit_code == 2
    assert f"{command} was taken out; {instead}" in " ".join(said.output.split())
