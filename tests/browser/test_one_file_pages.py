"""Pages that are one file, in a real browser: no error, no sideways scrolling on a phone, light and dark; the list of
jobs finds, sorts and tells; the nodes zoom."""

from __future__ import annotations

import random
import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lucid.core.decision import DecisionRow
from lucid.core.job import Job
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.packing.share_score import Node, ShareTree
from lucid.models.page import additive_page, tree_page
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run, Series
from lucid.simulator.metrics import run_metrics
from lucid.simulator.record import DecisionLog
from lucid.simulator.report.page import write_report
from lucid.tuner.evidence import Change, Evidence, UserEffect
from lucid.tuner.page import write_page
from lucid.tuner.proposal import Proposal
from lucid.tuner.search import Trial

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

SCROLLED = "document.scrollingElement.scrollWidth"
PAGES = ("report", "proposal", "model", "tree")
LONG = "a-name-that-is-longer-than-any-phone-is-wide-and-has-no-place-to-break-it"


class Log(DecisionLog):
    """Decisions made up: a profiling run, then a start of the job's own."""

    def __init__(self, starts: dict[str, list[DecisionRow]]) -> None:
        super().__init__()
        self._entries.update(starts)


def made_up(policy: str, slower: float, jobs: int = 120) -> tuple[Run, Log]:
    chance, outcomes, rows = random.Random(1), [], {}
    for i in range(jobs):
        submit_s, queue_s = 900.0 * i, slower * (600.0 + 60.0 * (i % 7))
        job = Job(f"j{i}", LONG if i == 7 else "beta", 1 + i % 2, submit_s, i, f"user{i % 5}")
        start_s, long_s = submit_s + queue_s, chance.uniform(600, 40_000)
        node = f"node-{i % 9}"
        outcomes.append(JobOutcome(job, long_s, start_s, start_s + long_s, queue_s, 60.0 * (policy == "lucid")))
        rows[job.id] = [
            DecisionRow(submit_s, job.id, PROFILING, "start", (), f"{node}:0"),
            DecisionRow(submit_s + 60, job.id, PROFILING, "release", ()),
            DecisionRow(start_s, job.id, "beta", "start", (), f"{node}:{i % 4}", f"j{i - 1}" if i % 3 == 2 else None),
        ]
    busy, shared, waiting = (array("l", [i % below for i in range(288)]) for below in (30, 10, 7))
    gpus = {"busy_gpus": busy, "shared_gpus": shared, "pending_gpus": waiting}
    series = Series(**gpus, pending_jobs={"beta": busy}, busy_gpu_s=50 * 86400.0)
    return Run(policy, "history", outcomes, series, 36, 1000, 1.5, 1.5), Log(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all the pages."""
    folder = tmp_path_factory.mktemp("pages")
    made = {policy: made_up(policy, slower) for policy, slower in (("fifo", 9.0), ("lucid", 1.0))}
    runs, logs = [run for run, _ in made.values()], {name: log for name, (_, log) in made.items()}
    write_report(
        folder / "report.html", LONG, runs, {run.policy: run_metrics(run) for run in runs}, ["A note."], (), logs,
        lambda run, o: f"job {o.job.id} under {run.policy}\nday 0 00:00:01  starts\n               - it was first",
    )  # fmt: skip
    evidence = Evidence(
        9, 100, (Change("avg JCT", 3600.0, 3000.0, -0.2, -0.1),), (UserEffect(LONG, 3, 60.0, 90.0),),
        tuple((day, 3600.0, 3000.0 + 200 * day) for day in range(9)), True, "the average JCT falls",
    )  # fmt: skip
    key = "policy.packing.gss"
    proposal = Proposal(LONG, {key: 1}, {key: 2}, 2, 1, 86400.0, -0.1, evidence)
    write_page(folder / "proposal.html", proposal, [Trial({key: 2}, 3600.0), Trial({key: 1}, 3000.0)])
    chance = np.random.default_rng(1)
    gpus = Axis("gpus", "continuous", cuts=tuple(float(i) for i in range(1, 40)))
    axes = (gpus, Axis("user", "categorical", categories={LONG: 1, "bob": 2}))
    terms = tuple(
        Term(" & ".join(a.feature for a in some), some, chance.normal(size=shape), chance.integers(1, 9, shape) * 1.0)
        for some in ((axes[0],), (axes[1],), axes)
        for shape in [tuple(a.size for a in some)]
    )
    additive_page(AdditiveModel(1.0, "identity", terms), folder / "model.html", LONG, "s", {"source": LONG * 3})
    tree = ShareTree((Node(0, (1, 1, 1), "gmem_util", 30.0, 1, 2), Node(0, (1, 1, 0)), Node(2, (0, 0, 1))))
    tree_page(tree, folder / "tree.html", LONG, {"rows": 3})
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page; the browser has nothing to complain of it."""
    said: list[str] = []
    pages: list[Any] = []

    def opens(name: str, width: int, scheme: str = "light", fragment: str = "") -> Any:
        page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        page.on(
            "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((folder / f"{name}.html").as_uri() + fragment)
        if name == "report":
            page.wait_for_selector("#jobs-table tbody tr")
        pages.append(page)
        return page

    yield opens
    assert said == []
    for page in pages:
        page.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone_and_a_desk_is_dark_where_the_reader_is_and_says_values(opened: Any, name: str) -> None:
    """One page is looked at under all conditions: to open it takes longer than all the rest."""
    page = opened(name, 390)
    assert page.evaluate(SCROLLED) <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate(SCROLLED) <= 1280
    (light, ink), (dark, ink_in_the_dark) = looks(page)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    assert ink != ink_in_the_dark
    if name in ("proposal", "model", "tree"):
        mark = page.locator("svg rect[data-tip], svg circle[data-tip]").first
        mark.hover()
        assert page.locator("#tip").inner_text() == mark.get_attribute("data-tip")


COLOURS = """() => {
    const of = (element) => getComputedStyle(element);
    const drawn = document.querySelector("svg text");
    return [of(document.body).backgroundColor, drawn ? of(drawn).fill : of(document.querySelector("td")).color];
}"""


def looks(page: Any) -> list[tuple[str, str]]:
    """Colours of the ground and of the ink, light and dark."""
    seen = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen.append(page.evaluate(COLOURS))
    return seen


def ids(page: Any) -> list[str]:
    return page.locator("#jobs-table tbody th").all_inner_texts()


def test_jobs_are_found_sorted_and_told(opened: Any) -> None:
    page = opened("report", 1280)
    assert len(ids(page)) == 25
    page.get_by_role("button", name="submitted").click()
    assert ids(page)[:3] == ["j0", "j1", "j2"]
    page.get_by_role("button", name="submitted").click()
    assert ids(page)[:2] == ["j119", "j118"]
    page.get_by_role("button", name="Show more").click()
    assert len(ids(page)) == 120
    page.fill("#jobs-find", "user3 gpus>1")
    assert set(ids(page)) == {f"j{i}" for i in range(120) if i % 5 == 3 and i % 2 == 1}
    page.locator("#jobs-table tbody a").first.click()
    page.wait_for_selector("#story h4")
    assert page.url.endswith("#job=j113")
    told = page.locator("#story").inner_text()
    assert "job j113 under lucid" in told
    assert "job j113 under fifo" in told
    assert "it was first" in told


def test_an_address_with_a_job_opens_its_story(opened: Any) -> None:
    page = opened("report", 390, "dark", "#job=j5")
    page.wait_for_selector("#story h4")
    assert "job j5 under lucid" in page.locator("#story").inner_text()
    assert page.evaluate(SCROLLED) <= 390


def test_nodes_are_drawn_for_both_policies_zoom_together_and_name_jobs(opened: Any) -> None:
    page = opened("report", 1280)
    pictures = "[...document.querySelectorAll('#timelines canvas')].map((c) => c.toDataURL())"
    assert page.locator("#timelines h4").all_inner_texts() == ["fifo", "lucid"]
    whole = page.evaluate(pictures)
    page.get_by_role("button", name="Zoom in").click()
    near = page.evaluate(pictures)
    assert all(one != other for one, other in zip(near, whole, strict=True))
    page.get_by_role("button", name="All", exact=True).click()
    assert page.evaluate(pictures) == whole
    canvas = page.locator("#timelines canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    found = False
    for x in range(130, int(box["width"]), 12):
        page.mouse.move(box["x"] + x, box["y"] + 4)
        found = found or "on node-0" in page.locator("#tip").inner_text()
    assert found, "a job of node-0 is named under the pointer"
    page.mouse.move(box["x"] + 300, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 4)
    page.mouse.up()
    assert page.evaluate(pictures) != whole
    canvas.press("0")
    assert page.evaluate(pictures) == whole
