"""The OpenAPI description of lucid-web: its paths are the routes that there are, and the answers keep to it.

``LUCID_RECORD_SCHEMAS=1 python -m pytest tests/unit/web/test_openapi.py`` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from json_schemas import FOLDER, Recorder, closed
from lucid.live.learning.model_upkeep import UPKEEP
from lucid.web import openapi
from lucid.web.openapi import openapi_of, schemas, twin_of
from lucid.web.pages import PAGES
from scenes.pages import ADDRESSES, Pages

SHOWN = FOLDER / "openapi.json"
RECORDED = Path(openapi.__file__).with_name("schemas.json")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """By route, the JSON of every page, as an administrator and as a user sees it, before and after some turns."""
    found: dict[str, list[object]] = {}
    pages = Pages(tmp_path_factory.mktemp("site"))
    drift = {"error_ratio": None, "jobs": 3, "psi": {}}
    try:
        for seconds in (0.0, 2500.0, 3000.0):
            pages.slurm.store.put_view(UPKEEP, [{"kind": "duration", "drift": drift}, {"kind": "pairs"}])
            pages.slurm.turns(seconds, every_s=20.0)
            pages.source.look()
            pages.source.account()
            for user in ("ada", "root-ish", ""):
                for address in ADDRESSES:
                    answer = pages.client(user).get(("/cluster" if address == "/" else address) + ".json")
                    route = re.sub(r"/(job|people)/[^/.]+", lambda m: f"/{m[1]}/", address)
                    route = {"/job/": "/job/{job_id}", "/people/": "/people/{user}"}.get(route, route)
                    if answer.status_code == 200:
                        key = next(twin_of(page) for page in PAGES if page.path == route)
                        found.setdefault(key, []).append(answer.json())
    finally:
        pages.source.stop()
    return found


def test_answers_keep_to_their_schemas(answers: dict[str, list[object]]) -> None:
    assert answers.keys() == {twin_of(page) for page in PAGES}
    if os.environ.get("LUCID_RECORD_SCHEMAS") == "1":
        recorder = Recorder()
        for route, documents in answers.items():
            for document in documents:
                recorder.take(route, document)
        made = {route: recorder.schema(route) for route in sorted(answers)}
        RECORDED.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        schemas.cache_clear()
        SHOWN.write_text(json.dumps(openapi_of("0"), indent=1) + "\n", encoding="utf-8")
        return
    for route, documents in answers.items():
        check = Draft202012Validator(closed(schemas()[route]))
        for document in documents:
            troubles = [f"{list(e.absolute_path)}: {e.message[:200]}" for e in check.iter_errors(document)]
            assert not troubles, (route, troubles[:3])


def test_the_paths_are_the_routes_and_the_page_in_docs_is_the_same(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    try:
        client = pages.client("root-ish")
        served = client.get("/openapi.json").json()
        assert served == openapi_of(version("lucid-scheduler"))
        for path, item in served["paths"].items():
            if path == "/events":
                continue  # it never ends
            asked = path.replace("{job_id}", "1").replace("{user}", "ada")
            answer = client.get(asked)
            assert answer.status_code == 200, path
            (kind,) = item["get"]["responses"]["200"]["content"]
            assert answer.headers["content-type"].startswith(kind), path
    finally:
        pages.source.stop()
    shown = json.loads(SHOWN.read_text(encoding="utf-8"))
    assert shown == openapi_of("0"), "LUCID_RECORD_SCHEMAS=1 python -m pytest tests/unit/web/test_openapi.py"
    twins = {re.sub(r"\{(\w+):\w+\}", r"{\1}", twin_of(page)) for page in PAGES}
    assert set(served["paths"]) == twins | {page.path for page in PAGES} | {"/events", "/metrics", "/openapi.json"}


@pytest.mark.parametrize("path", ["/cluster.json", "/queue.json"])
def test_an_answer_without_a_member_is_noticed(answers: dict[str, list[object]], path: str) -> None:
    (document, *_) = answers[path]
    assert isinstance(document, dict)
    check = Draft202012Validator(closed(schemas()[path]))
    for key in [key for key in document if key in schemas()[path]["required"]]:
        assert not check.is_valid({k: v for k, v in document.items() if k != key})
    assert not check.is_valid({**document, "new": 1})
