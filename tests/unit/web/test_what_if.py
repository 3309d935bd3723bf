"""The form on a job's page: it runs ``lucidctl why-not``, bounded, and shows what its reader may see."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lucid.core.reason import reason_to_dict
from lucid.core.reasons.sharing import SameUser
from lucid.errors import ConfigError
from lucid.web.starts import WhatIf
from scenes.pages import Pages

CONFIG = Path("lucid.toml")
Asked = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    made = Pages(tmp_path_factory.mktemp("site"), private="jobs,usage")
    yield made
    made.source.stop()


def waiting_of(pages: Pages, user: str) -> str:
    assert pages.source.picture is not None
    return next(job for job, (_, entry) in pages.source.picture.waiting.items() if entry.job.user == user)


def test_the_form_says_what_the_command_says(pages: Pages) -> None:
    job = waiting_of(pages, "ada")
    asked = {"ask": "1", "vc": "vc"}
    found = pages.client("root-ish").get(f"/job/{job}.json", asked).json()["why_not"]["answer"]
    said = json.loads(pages.slurm.ctl("why-not", job, "--vc", "vc", "--json"))
    assert found == said
    assert list(found["if"]) == ["in VC vc"]


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> Asked:
    """``lucidctl`` is not run: it says ``answer``. With what it was asked."""
    asked: Asked = []

    def ask(_: WhatIf, *words: Any) -> dict[str, Any]:
        asked.append(words)
        return answer

    monkeypatch.setattr(WhatIf, "ask", ask)
    return asked


def naming(user: str) -> dict[str, Any]:
    """A decision as lucidctl tells it to lucidd's user: its reason names a user, and so do its words."""
    reason = reason_to_dict(SameUser(user, 2))
    row = {"at_s": 1.0, "partition": "vc", "verb": "hold", "placement": "", "beside": None, "reasons": [reason],
           "mode": "pack", "words": f"waits: {user}"}  # fmt: skip
    return {"job": "9", "as_it_is": row, "starts_in_s": [1, 2, 3], "if": {"with 1 GPU": row}, "name": "bobs"}


def test_names_in_others_jobs_are_hidden_in_the_answer_as_on_the_page(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, naming("bob"))
    job = waiting_of(pages, "ada")
    for address in (f"/job/{job}", f"/job/{job}.json"):
        text = pages.client("ada").get(address, {"ask": "1"}).text
        assert "with 1 GPU" in text
        assert "bob" not in text
    assert "bob" in pages.client("root-ish").get(f"/job/{job}.json", {"ask": "1"}).text
    assert pages.client("bob").get(f"/job/{job}", {"ask": "1"}).status_code == 404


@pytest.mark.parametrize("vc", ["nowhere", "--json", "vc\0", "\ud800"])
def test_nothing_runs_for_a_vc_that_is_none(pages: Pages, monkeypatch: pytest.MonkeyPatch, vc: str) -> None:
    asked = answering(monkeypatch, {"error": "asked"})
    params = {"ask": "1", "vc": vc.encode("utf-8", "surrogateescape" if vc != "\ud800" else "surrogatepass")}
    found = pages.client("ada").get(f"/job/{waiting_of(pages, 'ada')}.json", params)
    assert (found.json()["why_not"]["answer"], asked) == ({"error": "There is no such VC."}, [])


def test_nothing_runs_for_whom_the_job_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, {"error": "asked"})
    pages = Pages(tmp_path)
    found = pages.client("").get(f"/job/{waiting_of(pages, 'ada')}.json", {"ask": "1"}).json()["why_not"]["answer"]
    assert "may see the job's names" in found["error"]
    assert pages.client("").get(f"/job/{waiting_of(pages, 'ada')}.json").json()["why_not"]["answer"] is None
    pages.source.stop()
    assert asked == []


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def test_the_arguments_are_a_list() -> None:
    code = "import json, sys; print(json.dumps({'argv': sys.argv[1:]}))"
    found = WhatIf(script(code)).ask(Path("a b;c"), "9_3", 2, True, "$(x)")
    assert found["argv"] == ["why-not", "9_3", "--config=a b;c", "--json", "--gpus=2", "--share", "--vc=$(x)"]
    with pytest.raises(ConfigError, match="no job number"):
        WhatIf(script(code)).ask(CONFIG, "--help", None, False, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(60)", "more than 0.5 s"),
        ("raise SystemExit('lucidctl: job 9 does not wait')", "job 9 does not wait"),
        ("raise KeyError('bob')", "The log of lucid-web says more"),
        ("print('no JSON')", "The log of lucid-web says more"),
    ],
)
def test_a_command_that_does_not_answer_is_told(code: str, words: str) -> None:
    (told,) = WhatIf(script(code), most_s=0.5).ask(CONFIG, "9", None, False, None).values()
    assert words in told
    assert "bob" not in told


def test_so_many_are_asked_at_once_and_no_more() -> None:
    what_if = WhatIf(script("import time; time.sleep(60)"), at_once=2, most_s=0.4)
    found: list[str] = []
    asks = [
        threading.Thread(target=lambda: found.append(what_if.ask(CONFIG, "9", None, False, None)["error"]))
        for _ in range(2)
    ]
    for thread in asks:
        thread.start()
    time.sleep(0.1)
    assert "try again" in what_if.ask(CONFIG, "9", None, False, None)["error"]
    for thread in asks:
        thread.join()
    assert all("more than 0.4 s" in words for words in found)
    assert "more than" in what_if.ask(CONFIG, "9", None, False, None)["error"], "there is room again"
