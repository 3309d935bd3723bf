"""The pages in a real browser, over a few jobs and the demonstration: no errors, filters, zoom, a story, axe, widths.

Pictures of every page go to out/web, for people to look at.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from lucid.web.app import build_app
from scenes.pages import Pages

sync_api = pytest.importorskip("playwright.sync_api")
axe_api = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = Path("/usr/bin/chromium")
OUT = Path(__file__).resolve().parents[2] / "out" / "web"
PAGES = {"cluster": "/", "queue": "/queue", "changes": "/queue/changes", "people": "/people", "health": "/health"}
LOOKS = {"desktop": (1280, 900, "light"), "phone": (390, 844, "light"), "dark": (1280, 900, "dark")}
OFF_SCREEN = """[...document.querySelectorAll("th, td")].filter(cell => cell.checkVisibility() &&
    cell.getBoundingClientRect().right > innerWidth + 1).map(cell => cell.innerText)"""
pytestmark = [
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"no browser: {CHROMIUM} is not installed (apt install chromium)"
    ),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Pages over a few jobs, served by a thread: what a click does shows there as well."""
    pages = Pages(tmp_path_factory.mktemp("site"), {"anonymous": "everything"})
    app = build_app(pages.source, "/lucid")
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/lucid"
        server.should_exit = server.force_exit = True
        thread.join(30)
    pages.source.stop()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "lucid.web", "--demo", "--port", str(port), "--root-path", "/lucid"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}/lucid"
    until = time.monotonic() + 180.0
    while True:
        try:
            with urllib.request.urlopen(f"{address}/queue.json") as answer:
                assert answer.status == 200
            break
        except (urllib.error.URLError, ConnectionError):
            assert child.poll() is None, child.stderr and child.stderr.read()
            assert time.monotonic() < until, "the demonstration is not ready"
            time.sleep(0.3)
    yield address
    child.terminate()
    child.wait(30)
    assert child.stderr is not None
    said = child.stderr.read()
    child.stderr.close()
    assert "Traceback" not in said, said


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page, with what the browser complained about."""

    def __init__(self, browser: Any, look: str) -> None:
        width, height, scheme = LOOKS[look]
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda told: self.complaints.append(f"{told.type}: {told.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("requestfailed", lambda asked: self._failed(asked))
        self.asked: list[str] = []
        self.page.on("request", lambda asked: self.asked.append(asked.url))

    def _failed(self, asked: Any) -> None:
        if "/events" not in asked.url and "ERR_ABORTED" not in (asked.failure or ""):  # both end with their page
            self.complaints.append(f"failed: {asked.url} {asked.failure}")


@pytest.fixture
def desktop(chromium: Any) -> Iterator[Tab]:
    made = Tab(chromium, "desktop")
    yield made
    made.context.close()


def settled(tab: Tab, address: str) -> None:
    tab.page.goto(address)
    tab.page.wait_for_selector("main h1", state="attached")


def first_job(tab: Tab, site: str) -> str:
    settled(tab, f"{site}/queue")
    return str(tab.page.locator("table.queue a.job").first.inner_text())


def a_sharing_job(tab: Tab, site: str) -> str:
    settled(tab, f"{site}/")
    return str(tab.page.locator("td.k-shared b").first.inner_text())


@pytest.mark.parametrize(
    ("look", "where"), [("phone", "small"), *(pytest.param(look, "site", marks=pytest.mark.slow) for look in LOOKS)]
)
def test_every_page_loads_clean_fits_and_is_accessible(
    chromium: Any, look: str, where: str, request: pytest.FixtureRequest
) -> None:
    tab, site = Tab(chromium, look), str(request.getfixturevalue(where))
    pages = dict(PAGES)
    pages["job"] = f"/job/{first_job(tab, site)}"
    pages["sharing"] = f"/job/{a_sharing_job(tab, site)}"
    settled(tab, f"{site}/people")
    pages["person"] = tab.page.locator("tbody th a").first.get_attribute("href").removeprefix("/lucid")
    axe = axe_api.Axe()
    for name, address in pages.items():
        settled(tab, f"{site}{address}")
        if where == "site":
            tab.page.wait_for_timeout(150)
            tab.page.screenshot(path=OUT / f"{look}-{name}.png", full_page=True)
        width = tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= LOOKS[look][0], f"{name} scrolls sideways: {width}"
        assert tab.page.evaluate(OFF_SCREEN) == [], f"{name}: columns off the screen"
        found = [
            (broken["id"], broken["impact"], [node["target"] for node in broken["nodes"]][:3])
            for broken in axe.run(tab.page).response["violations"]
            if broken["impact"] in ("serious", "critical")
        ]
        assert found == [], f"{name}: {found}"
    assert tab.complaints == []
    assert {re.sub(r"^(http://[^/]+).*", r"\1", url) for url in tab.asked} == {site.removesuffix("/lucid")}
    tab.context.close()


def test_the_chart_zooms_by_buttons_and_by_keys(desktop: Tab, small: str) -> None:
    settled(desktop, f"{small}/")
    page, bars = desktop.page, ".gantt-bars"
    whole = page.get_attribute(bars, "viewBox")
    page.click("button[data-zoom=in]")
    near = page.get_attribute(bars, "viewBox")
    assert whole is not None
    assert near is not None
    assert float(near.split()[2]) == pytest.approx(float(whole.split()[2]) / 2, rel=0.01)
    page.focus(".gantt-plot")
    page.keyboard.press("ArrowLeft")
    moved = page.get_attribute(bars, "viewBox")
    assert moved is not None
    assert float(moved.split()[0]) < float(near.split()[0])
    page.keyboard.press("0")
    assert page.get_attribute(bars, "viewBox").split()[:2] == ["0", "0"]
    assert page.locator(".gantt-bars .g").count() > 3


def test_a_job_tells_its_story_and_what_if(desktop: Tab, small: str) -> None:
    job = first_job(desktop, small)
    page = desktop.page
    page.click(f"a.job >> text={job}")
    page.wait_for_url(f"**/job/{job}")
    story = page.locator("ol.story").inner_text()
    assert "submitted" in story
    assert "waits" in story
    assert page.locator("ol.story ul.reasons li").count() > 0
    page.fill("input[name=gpus]", "1")
    page.check("input[name=share]")
    page.click("text=Plan again")
    page.wait_for_selector("dl.ifs dt", timeout=90_000)
    asked = page.locator("dl.ifs dt").all_inner_texts()
    assert "with 1 GPU" in asked
    assert "willing to share" in asked


@pytest.mark.slow
def test_news_come_by_themselves(desktop: Tab, site: str) -> None:
    settled(desktop, f"{site}/")
    before = desktop.page.locator(".asof").inner_text()
    desktop.page.wait_for_function(
        "before => document.querySelector('.asof').innerText !== before", arg=before, timeout=60_000
    )
    assert desktop.complaints == []


def test_keys_lead_to_pages_and_to_a_job(desktop: Tab, small: str) -> None:
    settled(desktop, f"{small}/")
    page = desktop.page
    page.keyboard.press("2")
    page.wait_for_url("**/queue")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#keys").is_hidden()
    page.keyboard.press("/")
    page.keyboard.type("999")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job/999")
    assert "Not here" in page.locator("h1").inner_text()
