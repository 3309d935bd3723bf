"""``lucidctl top``: cluster, running jobs and queue in the terminal, as they move; the screen and its keys.

What it shows comes from ``top_cells``; nothing is worked out here."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static, TabbedContent, TabPane

from lucid.cli.console import styled
from lucid.cli.jobs.queue import live_settings
from lucid.cli.site.top_cells import COLUMNS, Row, TopView, read_view, story_text
from lucid.errors import ConfigError, LucidError


def tell_top(config: Path, every_s: float, user: str) -> None:
    """Carry out ``lucidctl top``."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "top needs a terminal; for programs there are lucidctl queue --json and lucidctl status --json"
        )
    live_settings(config)  # what is wrong with them is said before the screen is taken
    if find_spec("textual") is None:
        raise ConfigError("lucidctl top needs the package textual: pip install 'lucid-scheduler[top]'")

    TopApp(config, every_s, user).run()


_HELP = """\
F1 ?       these keys
Tab 1 2 3  nodes, running jobs, queue
Enter      the story of the job under the cursor: every decision, with the values compared
/ F3       show only lines that have this text; Esc ends that
u          show only the jobs of one user
F6 <  >    sort by the next column, the one before, the one after
I          reverse the order
r F5       look again now
q F10      leave

Esc closes this."""


_SHOWN = (
    Binding("f1,question_mark", "keys", "help", key_display="F1"),
    Binding("1", "tab('Nodes')", "nodes", key_display="1"),
    Binding("2", "tab('Running')", "running", key_display="2"),
    Binding("3", "tab('Queue')", "queue", key_display="3"),
    Binding("slash,f3", "ask('text')", "search", key_display="/"),
    Binding("u", "ask('user')", "user", key_display="u"),
    Binding("f6,greater_than_sign", "sort(1)", "sort", key_display="F6"),
    Binding("q,f10", "quit", "quit", key_display="q"),
)
"""The keys in the last line."""


def _keys_line() -> str:
    """The last line, where each key can be clicked, too. textual's own footer makes a widget for each, and lays them
    all out several times until the first screen."""
    return "  ".join(
        f"[@click=app.{one.action}][bold $footer-key-foreground]{one.key_display}[/] {one.description}[/]"
        for one in _SHOWN
    )


async def _read_apart(config: Path) -> TopView:
    """The result of ``read_view`` in a thread that nothing waits for at the end. textual's own workers have to return
    before the program ends, and ``read_view`` takes as long as it plans ahead, or as its disk lets it wait: q did
    nothing for so long."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[TopView] = loop.create_future()

    def finish(seen: TopView | Exception) -> None:
        if found.cancelled():
            return
        if isinstance(seen, Exception):
            found.set_exception(seen)
        else:
            found.set_result(seen)

    def read() -> None:
        seen: TopView | Exception
        try:
            seen = read_view(config)
        except Exception as error:
            seen = error
        with suppress(RuntimeError):  # the loop is closed: the program ends
            loop.call_soon_threadsafe(finish, seen)

    threading.Thread(target=read, daemon=True).start()
    return await found


class _Words(ModalScreen[None]):
    """A text over the tables, to scroll and to close."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f10,enter", "dismiss", "close"),
    ]
    CSS = "_Words { align: center middle; } #words { width: 92%; height: 88%; border: round $accent; padding: 0 1; }"

    def __init__(self, title: str, words: str) -> None:
        super().__init__()
        self._title, self._words = title, words

    def compose(self) -> ComposeResult:
        """The widgets: one box."""
        with VerticalScroll(id="words") as box:
            box.border_title = styled(self._title).markup
            yield Static(styled(self._words))


class TopApp(App[None]):
    """The screen: three tables under a head of a few lines, read again every so many seconds."""

    TITLE = "Lucid"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; background: $panel; }
    #keys { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }
    #ask { display: none; height: 3; }
    #ask.asked { display: block; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *_SHOWN,
        Binding("tab", "next_tab", "next", show=False, priority=True),
        Binding("less_than_sign", "sort(-1)", "sort back", show=False),
        Binding("I", "turn", "reverse order", show=False),
        Binding("r,f5", "reload", "read again", show=False),
        Binding("escape", "stop_asking", "no filter", show=False),
    ]

    def __init__(self, config: Path, every_s: float, user: str = "") -> None:
        super().__init__()
        self._config, self._every_s = config, every_s
        self._user, self._text, self._asks = user, "", ""
        self._seen: TopView | None = None
        self._sorted: dict[str, int | None] = dict.fromkeys(COLUMNS)
        self._turned = False
        self._old: set[str] = set()
        """The tables that do not show the last reading yet."""

    def compose(self) -> ComposeResult:
        """The widgets: head, tables, line to type in, keys."""
        yield Static("lucidd's last plan is read …", id="head")
        with TabbedContent(initial="Nodes"):
            for title, columns in COLUMNS.items():
                with TabPane(title, id=title):
                    table: DataTable[object] = DataTable(id=f"table-{title}", cursor_type="row", zebra_stripes=True)
                    for at, name in enumerate(columns):
                        table.add_column(name, key=str(at))
                    yield table
        yield Input(id="ask")
        yield Static(_keys_line(), id="keys")

    def on_mount(self) -> None:
        """Read now, and again and again."""
        self.action_reload()
        self.set_interval(self._every_s, self.action_reload)
        self._table().focus()

    # -- what is shown -------------------------------------------------------------------------------------

    @work(exclusive=True)
    async def action_reload(self) -> None:
        """Read again what lucidd has written."""
        try:
            self._show(await _read_apart(self._config))
        except LucidError as error:
            self._say(str(error))

    def _say(self, words: str) -> None:
        self.query_one("#head", Static).update(styled(words, "bold red"))

    def _show(self, seen: TopView) -> None:
        self._seen = seen
        only = [f"only jobs of {self._user}"] if self._user else []
        only += [f"only lines with {self._text!r}"] if self._text else []
        self.query_one("#head", Static).update(styled("\n".join([*seen.head, *only])))
        self._old = {*COLUMNS}
        self._fill(self._tab())

    def on_tabbed_content_tab_activated(self) -> None:
        """Lay out the table that is now in front, and only that."""
        self._fill(self._tab())

    def _fill(self, title: str) -> None:
        if self._seen is None or title not in self._old:
            return
        self._old.remove(title)
        rows = self._seen.tables[title]
        table = self.query_one(f"#table-{title}", DataTable)
        at, key = table.scroll_y, self._under_cursor(table)
        kept = [row for row in rows if self._wanted(row)]
        column = self._sorted[title]
        if column is not None:
            kept.sort(key=lambda row: row.order[column], reverse=self._turned)
        elif self._turned:
            kept.reverse()
        for number, name in enumerate(COLUMNS[title]):
            mark = " ▾" if self._turned else " ▴"
            table.columns[table.ordered_columns[number].key].label = styled(name + mark * (number == column))
        table.clear()
        for row in kept:
            table.add_row(*map(styled, row.cells), key=row.key)
        if key is not None and any(row.key == key for row in kept):
            table.move_cursor(row=table.get_row_index(key), scroll=False)
        table.scroll_to(y=at, animate=False)

    def _wanted(self, row: Row) -> bool:
        if self._user and row.job and row.user != self._user:
            return False
        return self._text.lower() in " ".join(row.cells).lower()

    @staticmethod
    def _under_cursor(table: DataTable[object]) -> str | None:
        if not table.is_valid_row_index(table.cursor_row):
            return None
        return table.ordered_rows[table.cursor_row].key.value

    # -- keys ----------------------------------------------------------------------------------------------

    def _table(self) -> DataTable[object]:
        return self.query_one(f"#table-{self._tab()}", DataTable)

    def _tab(self) -> str:
        return self.query_one(TabbedContent).active

    def action_tab(self, title: str) -> None:
        """Show one of the tables."""
        self.query_one(TabbedContent).active = title
        self._table().focus()

    def action_next_tab(self) -> None:
        """Show the next table."""
        titles = list(COLUMNS)
        self.action_tab(titles[(titles.index(self._tab()) + 1) % len(titles)])

    def action_keys(self) -> None:
        """Show the keys."""
        self.push_screen(_Words("keys", _HELP))

    def action_ask(self, what: str) -> None:
        """Open the line to type a filter in."""
        line = self.query_one("#ask", Input)
        self._asks = what
        line.border_title = "text" if what == "text" else "user"
        line.value = self._text if what == "text" else self._user
        line.placeholder = "text to look for in every line" if what == "text" else "whose jobs; empty: everybody's"
        line.add_class("asked")
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply a filter that was typed."""
        if self._asks == "text":
            self._text = event.value.strip()
        else:
            self._user = event.value.strip()
        self._close_line()

    def action_stop_asking(self) -> None:
        """Remove the filter of text."""
        self._text = ""
        self._close_line()

    def _close_line(self) -> None:
        self.query_one("#ask", Input).remove_class("asked")
        self._table().focus()
        if self._seen is not None:
            self._show(self._seen)

    def action_sort(self, step: int) -> None:
        """Sort by the next column; after the last one, in Lucid's order again."""
        title = self._tab()
        places = [None, *range(len(COLUMNS[title]))]
        self._sorted[title] = places[(places.index(self._sorted[title]) + step) % len(places)]
        if self._seen is not None:
            self._show(self._seen)

    def action_turn(self) -> None:
        """Reverse the order of lines."""
        self._turned = not self._turned
        if self._seen is not None:
            self._show(self._seen)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the job's story on Enter."""
        rows = () if self._seen is None else self._seen.tables[self._tab()]
        row = next((row for row in rows if row.key == event.row_key.value), None)
        if row is None:
            return
        if not row.job:
            self.push_screen(_Words(row.cells[1], row.cells[-1].replace("  ", "\n")))
            return
        words = story_text(self._config, row.job, max(self.size.width * 92 // 100 - 6, 40))
        self.push_screen(_Words(f"job {row.job}", words))
