"""Whatever users call their jobs: no command obeys it, none fails, and a person can tell which job is meant."""

from __future__ import annotations

import csv
import json
import logging
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders import a_job
from daemon_site import Site
from lucid.cli.console import Console, Table, say
from lucid.cli.main import _COMMANDS, lucidctl
from lucid.core.job import Ended
from lucid.daemon.process import JsonLines
from lucid.html.page import page_environment
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.text import csv_cell, csv_text, for_html, shown

HOSTILE = (
    "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b[31mred", "\x9b31m", "\x9d0;t\x9c", "\x1bP0;0|17/41\x1b\\", "\x07bell",
    "back\x08\x08\x08\x08", "a\rb", "line\nbreak", "two\n\nlines", "tab\tbed", "nul\x00in", "del\x7f",
    "\u202egnp.exe",
    "\u2066iso\u2069", "zero\u200bwidth", "\u200fmark", "bom\ufeff", "line\u2028sep", "para\u2029sep",
    "tag\U000e0041",
    "soft\xadhyphen", "[red]", "[/]", "[/red]", "[link=http://x]y[/link]", "[bold", ":skull:", "</script>",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "{{7*7}}", "{% raw %}", "=cmd|' /C calc'!A0", "+1+1",
    "-2-3", "@SUM(A1)", "'=1", "$x^$", "%s%n", "\\x1b", "x" * 3000, "\U0001f9d1\u200d\U0001f680 \U0001f525",
    "\ud800half",
    "\udc80low", "Zo\u00eb \u4e2d\u6587", "'; DROP TABLE notes; --", "$(reboot)", "`id`", "../../etc/passwd", "", " ",
)  # fmt: skip
NAMES = tuple(dict.fromkeys(HOSTILE))
WRITABLE = [name for name in NAMES if not re.search("[\ud800-\udfff]", name)]
WALKED = {
    "simulate", "compare", "explain", "status", "queue", "why-not", "history", "mode", "doctor", "trace", "report",
    "efficiency",
}  # fmt: skip
NO_NAMES_OF_USERS = {
    "when": "partitions of the configuration and figures, through say",
    "metrics": "VCs, partitions and job numbers, through shown; no user's name",
    "top": "cells through shown and styled; a hostile name is in test_top.py",
    "pause": "one sentence by Lucid",
    "resume": "one sentence by Lucid",
    "uninstall": "job numbers, and Slurm's words through say",
    "models": "versions and features, through Table and say",
    "tune": "settings and figures, through Table and say",
    "replay": "partitions and decisions, through say",
    "setup": "files and partitions that an administrator wrote, through say",
    "slurm": "files that an administrator wrote, through say",
    "gpu": "UUIDs and figures, through Table",
    "demo": "a synthetic month",
    "web": "an address, through say; hostile names on the pages are in test_web.py",
}


def active(text: str, but: str = "\n\t") -> list[str]:
    """What in *text* a terminal might obey, and people not see."""
    return [c for c in text if c not in but and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def run(*words: object) -> str:
    """Standard output and error, as bytes would reach a terminal."""
    done = CliRunner().invoke(lucidctl, [str(word) for word in words], env={"COLUMNS": "5000"})
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert not active(done.output), (words, [hex(ord(c)) for c in active(done.output)])
    return done.output


def recognised(output: str, names: Sequence[str]) -> None:
    flat = re.sub(r"\s+", " ", output)
    lost = [n for n in names if re.sub(r"\s+", " ", shown(n)).strip()[:1000] not in flat]
    assert not lost


def test_every_command_is_walked_or_shows_no_names() -> None:
    assert WALKED | NO_NAMES_OF_USERS.keys() == _COMMANDS.keys()
    assert not WALKED & NO_NAMES_OF_USERS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_active_is_left_of_a_name_and_what_can_be_read_stays(name: str) -> None:
    assert not active(shown(name), "")
    shown(name).encode()
    readable = [c for c in name if not active(c, "")]
    assert [c for c in shown(name) if c in readable][: len(readable)] == readable or active(name, "")
    assert shown(shown(name)) == shown(name)


def test_what_people_write_is_left_as_it_is() -> None:
    for name in ("train-bert_v2.1", "Zoë 中文", "\U0001f525", "a=b", "C:\\data", "café"):
        assert shown(name) == name


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_lines_show_it_whatever_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title=name, caption=name)
    table.add_column(name)
    table.add_column("after", footer=name)
    table.add_row(name, "end of row")
    console = Console(width=20_000)
    for shows, highlight in ((table, None), (name, None), (f"note: {name}", False)):
        console.print(shows, highlight=highlight)
    say(f"job {name} waits")
    say(name, err=True)
    said = capsys.readouterr()
    assert not active(said.out + said.err)
    (row,) = [line for line in said.out.splitlines() if "end of row" in line]
    assert shown(name).strip() in row, "on one line with the rest of its row"
    assert "\x1b" not in said.out + said.err


def test_on_a_terminal_only_richs_own_colours_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, width=500, color_system="standard")
    table = Table()
    table.add_column("name", style="red")
    for name in NAMES:
        table.add_row(name)
    console.print(table)
    said = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert not active(said)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A daemon that has seen all of them, as names, users and accounts of jobs, and as Slurm's words."""
    site = Site(tmp_path_factory.mktemp("live"), restarts=None)
    for number, name in enumerate(NAMES, start=1):
        site.submit(str(number), 4, run_s=3000.0, user=name, name=name, account=name)
    site.turns(30.0)
    lease = site.store.lease()
    assert lease is not None
    site.store.put_ended(
        [Ended(a_job(f"9{n}", gpus=1, user=name, name=name), 2000.0 + n, 60.0, name) for n, name in enumerate(NAMES)],
        lease.token,
    )  # fmt: skip
    for name in NAMES:
        action = site.store.begin_action(3000.0, "1", "start", name, lease.token)
        site.store.end_action(action, name, lease.token)
    status = site.store.view("status")
    words = "".join(NAMES)
    status |= {
        "last_error": words, "breaker_why": words, "breaker_open_s": 1.0, "no_fair_share": words,
        "aside": {str(n): name for n, name in enumerate(NAMES)},
        "plan_errors": {name: {"why": name, "since_s": 5.0, "let_go_s": 0.0, "back_s": 0.0} for name in NAMES},
    }  # fmt: skip
    site.store.put_view("status", status)
    return site


@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_daemon_has_seen(live: Site, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 5000.0)
    config = ["--config", live.folder / "lucid.toml"]
    waiting = live.store.view("snapshot")["partitions"]["vc"]["pending"][-1]["job"]["id"]
    asked = f"history --limit 1000, queue, explain 1, status, efficiency, why-not {waiting}, mode, doctor".split(", ")
    told = [run(*words.split(), *config, *(["--json"] if as_json else [])) for words in asked]
    run("metrics", *config)
    if as_json:
        history, *_ = [json.loads(text) for text in told]
        assert [row["name"] for row in history["jobs"]] == list(NAMES)
        return
    recognised(told[0], NAMES)
    recognised(told[1] + told[2], NAMES)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "own.csv"
    jobs = [
        TraceJob(a_job(f"{name.strip()}#{n}", gpus=1, user=name, name=name, submit_s=60.0 * n), 600.0)
        for n, name in enumerate(WRITABLE)
    ]
    write_trace(Trace("\x1b[2J[/]", tuple(jobs)), path)
    return path


def test_what_a_trace_holds(trace: Path, tmp_path: Path) -> None:
    run("trace", "describe", trace)
    run("simulate", trace, "--out", tmp_path / "out", "--nodes", 3)
    run("compare", trace, "--nodes", 3, "--policy", "fifo", "--policy", "muri-s", "--workers", 1)
    run("report", "--jobs", trace, "--nodes", 3, "--html", tmp_path / "report.html")
    with (tmp_path / "out/lucid/jobs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = [row[name] for row in rows for name in ("name", "user", "job_id")]
    assert not [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell]
    assert {csv_text(row["name"]) for row in rows} == {*WRITABLE}
    ids = [csv_text(row["job_id"]) for row in rows]
    for job_id in ids[::3]:
        assert shown(job_id)[:80] in run("explain", "--run", tmp_path / "out", "--", job_id)
    for job_id in ids[::12]:
        run("explain", "--run", tmp_path / "out", "--json", "--", job_id)
    for page in (tmp_path / "out/report.html", tmp_path / "report.html"):
        text = page.read_text(encoding="utf-8")
        assert not active(text)
        assert not re.search(r"<script>alert\(1\)|<img src=x", text)


@pytest.mark.parametrize("name", NAMES)
def test_spreadsheets_and_pages_and_the_journal(name: str) -> None:
    assert csv_cell(name)[:1] not in tuple("=+-@\t\r")
    assert csv_text(csv_cell(name)) == name
    page = page_environment("lucid.html").from_string("<p title='{{ name }}'>{{ name }}</p>").render(name=name)
    assert not active(page)
    assert page.count("<") == 2
    page.encode()
    assert for_html(3) == 3
    record = logging.LogRecord("lucidd", logging.INFO, "", 0, name or "event", (), None)
    record.facts = {"why": name, "which": {name}}
    line = JsonLines().format(record)
    assert re.fullmatch("[ -~]*", line), "printable ASCII"
    assert json.loads(line)["why"] == name
