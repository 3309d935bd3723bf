"""``lucidctl top``: what it shows and what its keys do, in a terminal of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from daemon_site import Site
from lucid.cli.main import lucidctl
from lucid.cli.site.top import TopApp
from lucid.cli.site.top_cells import COLUMNS, TopView, read_view
from lucid.daemon.reporting.replan import last_plan
from lucid.errors import ConfigError
from lucid.explain.queue_rows import queue_rows

Steps = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def busy_site(folder: Path) -> Site:
    """Two nodes of four GPUs: a pair, jobs alone, and jobs of two users that wait."""
    site = Site(folder)
    for name in ("1", "2"):
        site.submit(name, 2, run_s=9000.0, user="ada")
    site.turns(200.0, every_s=5.0)
    for name in ("3", "4", "5", "6"):
        site.submit(name, 4, run_s=9000.0, user="bob", name="[red]x[/]\x1b[31m")
    site.submit("8", 4, user="eve")
    site.submit("7", 4, user="ada")
    site.turns(200.0, every_s=5.0)
    site.submit("9", 3, user="ada")
    site.turns(200.0, every_s=5.0)
    return site


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """For all who only look."""
    return busy_site(tmp_path_factory.mktemp("site"))


def in_terminal(site: Site, steps: Steps, user: str = "", config: Path | None = None) -> None:
    async def run() -> None:
        app = TopApp(config or site.folder / "lucid.toml", 3600.0, user)
        async with app.run_test(size=(120, 40)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())


def lines(app: TopApp, title: str) -> list[str]:
    app._fill(title)  # as if it came to the front
    table = app.query_one(f"#table-{title}", DataTable)
    return [" | ".join(map(str, table.get_row(row.key))) for row in table.ordered_rows]


def head(app: TopApp) -> str:
    return str(app.query_one("#head", Static).content)


def test_the_tables_say_what_lucidds_plan_says(busy: Site) -> None:
    last = last_plan(busy.store)
    waiting = [row.entry.job.id for row in queue_rows(last, last.starts(busy.settings, busy.folder / "lucid.toml"))]
    pair = next(e for p in last.snapshot.partitions.values() for e in p.running if e.partner)
    assert waiting

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert [line.split(" | ")[2] for line in lines(app, "Queue")] == waiting
        assert all("GPUs" in line or "not decided" in line for line in lines(app, "Queue"))
        (node,) = [line for line in lines(app, "Nodes") if line.startswith(f"vc | {pair.placement[0].node} ")]
        assert f"{pair.job.id}+{pair.partner}" in node or f"{pair.partner}+{pair.job.id}" in node
        assert f"{len(waiting)} wait" in head(app)

    in_terminal(busy, steps)


def test_q_ends_it_while_it_still_reads(busy: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, let_go = threading.Event(), threading.Event()

    def slow(config: Path) -> TopView:
        reads.set()
        let_go.wait(60.0)
        raise ConfigError("told to nobody")

    async def run() -> None:
        app = TopApp(busy.folder / "lucid.toml", 3600.0)
        async with app.run_test() as pilot:
            assert reads.wait(60.0)
            await pilot.press("q")

    monkeypatch.setattr("lucid.cli.site.top.read_view", slow)
    ended = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    ended.start()
    ended.join(30.0)
    has_ended = not ended.is_alive()
    let_go.set()
    assert has_ended


def test_filters_sorting_and_the_story(busy: Site) -> None:
    story = busy.ctl("explain", "8").splitlines()[0]

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        in_order = lines(app, "Queue")
        await pilot.press("u", *"ada", "enter")
        assert [line.split(" | ")[3] for line in lines(app, "Queue")] == ["ada"]
        assert "only jobs of ada" in head(app)
        await pilot.press("u")
        app.query_one("#ask", Input).value = ""
        await pilot.press("enter", "slash", *"bob", "enter")
        assert {line.split(" | ")[3] for line in lines(app, "Queue")} == {"bob"}
        await pilot.press("escape")
        assert lines(app, "Queue") == in_order
        await pilot.press("f6", "f6", "f6", "I")  # by the job's number, the highest first
        jobs = [line.split(" | ")[2] for line in lines(app, "Queue")]
        assert jobs == sorted(jobs, reverse=True)
        assert len(jobs) > 1
        await pilot.press("I", "less_than_sign", "less_than_sign", "less_than_sign")
        assert lines(app, "Queue") == in_order
        await pilot.press("slash", *"8", "enter", "enter")
        await pilot.pause()
        words = "".join(str(box.content) for box in app.screen.query(Static))
        assert story in words
        await pilot.press("escape", "f1")
        assert "Enter" in "".join(str(box.content) for box in app.screen.query(Static))

    in_terminal(busy, steps)


def test_the_cursor_stays_on_its_job_when_the_plan_moves_on(tmp_path: Path) -> None:
    busy = busy_site(tmp_path)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "down")
        table = app.query_one("#table-Queue", DataTable)
        job = table.ordered_rows[table.cursor_row].key.value
        busy.submit("10", 3, user="eve")
        busy.turns(200.0, every_s=5.0)
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert {"10"} < {row.key.value for row in table.ordered_rows}, "one more waits"
        assert table.ordered_rows[table.cursor_row].key.value == job

    in_terminal(busy, steps)


def test_no_plan_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "has not finished a cycle yet" in head(app)

    in_terminal(site, steps)


def test_each_row_has_a_value_to_sort_by_for_each_column(busy: Site) -> None:
    seen = read_view(busy.folder / "lucid.toml")
    for title, columns in COLUMNS.items():
        assert seen.tables[title], title
        for row in seen.tables[title]:
            assert len(row.cells) == len(row.order) == len(columns)
            assert not any("\x1b" in cell for cell in row.cells)


def test_without_a_terminal_it_says_what_programs_can_read(busy: Site) -> None:
    done = CliRunner().invoke(lucidctl, ["top", "--config", str(busy.folder / "lucid.toml")])
    assert isinstance(done.exception, ConfigError)
    assert "needs a terminal" in str(done.exception)
    assert "\x1b" not in done.output
