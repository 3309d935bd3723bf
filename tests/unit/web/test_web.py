"""The web pages."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from lucid.config.live import Anonymous, Others
from lucid.config.load import Settings, settings_from
from lucid.core.job import Ended
from lucid.daemon.reporting.public_view import PrivateData
from lucid.daemon.reporting.starts import StartsAhead
from lucid.errors import ConfigError
from lucid.slurm.records.configuration import Reservation
from lucid.web.app import build_app
from lucid.web.pages import PAGES
from lucid.web.site import Sight, viewer_of
from lucid.web.source import Source
from scenes.pages import ADDRESSES, Pages
from web_client import WebClient


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """For all who only look."""
    made = Pages(tmp_path_factory.mktemp("site"))
    yield made
    made.source.stop()


@pytest.fixture
def own_pages(tmp_path: Path) -> Pages:
    """For who changes them."""
    return Pages(tmp_path)


def said(text: str) -> str:
    """A page without the address that was asked for."""
    return text.replace("/people/ada", "").replace("of ada here", "")


def twin_of(address: str) -> str:
    return ("/cluster" if address == "/" else address) + ".json"


def answered(client: WebClient, address: str, **params: Any) -> Any:
    return client.get(address, params=params).json()


def queued(client: WebClient, **params: Any) -> list[Any]:
    rows: list[Any] = answered(client, "/queue.json", **params)["queue"]
    return rows


def cells_of(nodes: list[Any]) -> list[Any]:
    return [cell for node in nodes for row in node["slots"] for cell in row]


# -- routes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_there_and_has_a_twin_in_json(pages: Pages, address: str) -> None:
    client = pages.client("ada")
    page, twin = client.get(address), client.get(twin_of(address))
    assert (page.status_code, twin.status_code) == (200, 200), page.text
    assert page.headers["content-type"].startswith("text/html")
    assert isinstance(twin.json(), dict)


def test_the_addresses_tested_are_those_of_all_pages() -> None:
    asked = {re.sub(r"/(job|people)/[^/]+", r"/\1/{}", address) for address in ADDRESSES}
    assert asked == {re.sub(r"\{.*\}", "{}", page.path) for page in PAGES}


def test_the_queue_and_a_story_are_those_of_the_commands(pages: Pages) -> None:
    said = json.loads(pages.slurm.ctl("queue", "--json"))
    shown = pages.client("root-ish").get("/queue.json").json()
    keys = ("partition", "position", "job", "user", "gpus", "waited_s", "estimate_s", "estimate_by", "decision")
    assert len(said["queue"]) > 3
    told, seen = ([{key: row[key] for key in keys} for row in rows["queue"]] for rows in (said, shown))
    assert seen == told
    said = json.loads(pages.slurm.ctl("explain", "9", "--json"))
    shown = pages.client("ada").get("/job/9.json").json()
    assert (shown["decisions"], shown["prediction"]) == (said["decisions"], said["prediction"])
    assert said["decisions"][0]["words"][0] in pages.client("ada").get("/job/9").text.replace("&#39;", "'")


def test_filters_and_order_stand_in_the_address(pages: Pages) -> None:
    client = pages.client("root-ish")
    every = answered(client, "/queue.json")
    assert every["of"] == every["waiting"] > 3
    assert {row["user"] for row in queued(client, user="bob")} == {row["user"] for row in every["queue"]} & {"bob"}
    assert [answered(client, "/queue.json", **asked)["of"] for asked in ({"least": 5}, {"vc": "elsewhere"})] == [0, 0]
    down = [row["job"] for row in queued(client, sort="job", down=1)]
    assert down == sorted(down, key=int, reverse=True)
    assert client.get("/queue", params={"page": "x", "least": "-1", "sort": "nonsense"}).status_code == 200
    text = client.get("/queue", params={"sort": "gpus"}).text
    assert re.search(r'<input[^>]* name="user"', text)
    assert re.search(r'aria-sort="ascending"[^>]*><a href="/queue\?[^"]*sort=gpus[^"]*">GPUs', text)


def test_a_page_of_the_queue_has_so_many_rows(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["lucid.web.pages.queue"], "ROWS", 2)
    client = pages.client("root-ish")
    first, second = (answered(client, "/queue.json", page=at) for at in (1, 2))
    assert first["pages"] == -(-first["of"] // 2) >= 2
    assert len(first["queue"]) == 2
    assert not {r["job"] for r in first["queue"]} & {r["job"] for r in second["queue"]}
    assert "page=2" in client.get("/queue").text


def test_slots_pairs_and_reserved_gpus_are_shown(pages: Pages) -> None:
    data = pages.client("root-ish").get("/cluster.json").json()
    assert data["totals"]["running"] == sum(part["running"] for part in data["partitions"])
    shared = [cell for cell in cells_of(data["nodes"]) if cell["kind"] == "shared"]
    assert len(shared) == data["totals"]["packed"] > 0
    for node in data["nodes"]:
        upper, lower = node["slots"]
        assert sum(cell["gpus"] for cell in upper) == node["gpus"]
        assert sum(cell["gpus"] for cell in lower) == sum(cell["gpus"] for cell in upper if cell["rows"] == 1)
    assert all(0.0 < job["promised"] <= 1.0 for job in data["pairs"][0]["jobs"])


def test_what_is_not_there_is_not_found(pages: Pages) -> None:
    client = pages.client("ada")
    for address in ("/job/999", "/people/nobody", "/nothing/here", "/static/../app.py", "/static/app.py"):
        assert client.get(address).status_code == 404, address
    assert answered(client, "/job/999.json").keys() == {"error"}


def test_without_a_store_the_pages_say_so(tmp_path: Path) -> None:
    settings = Settings().changed({"web.anonymous": Anonymous.EVERYTHING, "daemon.state_dir": str(tmp_path)})
    source = Source(settings, tmp_path / "lucid.toml")
    source.poll()
    answer = WebClient(build_app(source)).get("/")
    assert answer.status_code == 503
    assert "there is no store" in answer.text


def test_a_store_that_is_replaced_is_opened_again(own_pages: Pages) -> None:
    before = own_pages.source.view
    assert before is not None
    own_pages.slurm.submit("50", 1, run_s=10.0, user="ada")
    own_pages.slurm.turns(5.0)
    own_pages.source._next_s = 0.0
    own_pages.source.poll()
    assert own_pages.source.view is not before
    own_pages.source.path.unlink()
    own_pages.source.poll()
    assert own_pages.client("ada").get("/").status_code == 200, "what was seen last stays"
    assert "there is no store" in own_pages.source.trouble


# -- nothing is changed, nothing of others is run --------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_whatever_is_not_get_or_head_is_refused(pages: Pages, method: str) -> None:
    for address in (*ADDRESSES, "/events", "/static/lucid.js", "/nowhere"):
        answer = pages.client("root-ish").request(method, address)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert pages.client("ada").request("HEAD", "/queue").status_code == 200


@pytest.mark.parametrize("address", [*ADDRESSES, "/static/lucid.js", "/static/lucid.css", "/nowhere", "/queue.json"])
def test_no_page_may_load_or_run_what_is_not_ours(pages: Pages, address: str) -> None:
    answer = pages.client("ada").get(address)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers["content-type"].startswith("text/html"):
        assert not re.search(r"<script(?![^>]* src=)", answer.text), "no script in the page itself"
        assert not re.search(r"<style|\sstyle=|\son\w+=", re.sub(r"&lt;.*?&gt;", "", answer.text)), "nor style"
        links = re.findall(r'(?:href|src|action)="([^"]*)"', answer.text)
        assert links
        assert all(link.startswith(("/", "#")) for link in links), "nothing from elsewhere"


@pytest.mark.parametrize("address", ADDRESSES)
def test_names_are_text(pages: Pages, address: str) -> None:
    answer = pages.client("root-ish").get(address)
    assert not re.search("<img src=x|lab<b>|\u202e", answer.text)
    if address == "/job/9":
        assert "&lt;img src=x" in answer.text
        assert "{{7*7}}" in answer.text


def test_the_pages_stand_under_a_path_of_a_proxy(pages: Pages) -> None:
    for asked in ("/lucid", ""):  # proxies strip the path, or do not
        client = pages.client("ada", root="/lucid")
        for address in ADDRESSES:
            answer = client.get(asked + address)
            assert answer.status_code == 200
            links = re.findall(r'(?:href|src|action|data-events|data-changes)="(/[^"]*)"', answer.text)
            assert links
            assert all(link.startswith("/lucid/") for link in links)
    assert client.get("/lucid").status_code == 200
    assert client.get("/lucidity").status_code == 404
    assert client.get("/job", params={"id": "9"}).headers["location"] == "/lucid/job/9"


def test_the_box_for_a_number_leads_nowhere_else(pages: Pages) -> None:
    for asked in ("//evil.example", "https://evil.example/", "../../x", "9\r\nset-cookie: a=b"):
        where = pages.client("ada").get("/job", params={"id": asked}).headers["location"]
        assert re.fullmatch(r"/job/[\w.+-]+|/queue", where), where


# -- who sees what ------------------------------------------------------------------------------------------------


def test_private_jobs_are_shown_to_their_user_and_to_administrators(tmp_path: Path) -> None:
    pages = Pages(tmp_path, private="jobs,usage")
    every = {row["job"] for row in queued(pages.client("root-ish"))}
    assert {row["user"] for row in queued(pages.client("ada"))} == {"ada"}
    bob = pages.client("bob")
    assert every > {row["job"] for row in queued(bob)}
    assert answered(bob, "/queue.json")["waiting"] == len(every), "how many wait is no secret"
    assert {bob.get(address).status_code for address in ("/job/9", "/job/9.json", "/people/ada")} == {404}
    for address in ADDRESSES:
        assert "ada" not in re.findall(r"\b(ada|lab)\b", said(bob.get(address).text)), address
    kinds = {cell["kind"] for cell in cells_of(answered(bob, "/cluster.json")["nodes"])}
    assert {"taken"} <= kinds <= {"taken", "free", "slot", "alone", "shared", "profile"}
    assert {row["job"] for row in answered(bob, "/queue/changes.json", since=0)["changes"]} <= {"13"}


def test_without_a_name_the_pages_name_nobody(pages: Pages) -> None:
    client = pages.client("")
    for address in ADDRESSES:
        page, twin = (said(client.get(form).text) for form in (address, twin_of(address)))
        assert not re.search(r"\b(ada|bob|bobs|lab|bobslab|secret)\b|&lt;img", page), address
        assert not re.search(r"\b(ada|bob|bobs|secret)\b|<img|lab<", twin), address
    assert {row["user"][:5] for row in queued(client)} == {"user "}
    assert client.get("/job/9").status_code == 200


def test_what_changed_within_one_second_is_told_newest_first(own_pages: Pages) -> None:
    """Slurm tells whole seconds, lucidd parts of them, and one turn decides many things at one time."""
    store = own_pages.slurm.store
    old = store.moves(0.0, 1)[0]
    decided = [(0.4, "41", "start"), (0.4, "42", "requeue"), (0.4, "42", "start"), (0.7, "43", "start")]
    rows = [structs.replace(old, at_s=1000.0 + part, job_id=job, verb=verb) for part, job, verb in decided]
    waits = next(iter(own_pages.source.view.waiting.values()))[1].job
    assert waits.submit_s == 1000.0
    token = store.lease().token
    store.put_decisions(rows, token)
    store.put_ended([Ended(replace(waits, id=name), 1000.0, 9.0) for name in ("44", "43")], token)
    asked = answered(own_pages.client("root-ish"), "/queue/changes.json", since=999)
    told = [(row["job"], row["words"].split()[0]) for row in asked["changes"]]
    assert [(job, word) for job, word in told if job in ("41", "42", "43", "44", waits.id)] == [
        ("43", "ended"), ("43", "starts"), ("42", "starts"), ("42", "is"), ("41", "starts"), ("44", "ended"),
        (waits.id, "submitted,"),
    ]  # fmt: skip


def test_a_site_may_ask_for_names_and_may_keep_others_jobs_to_administrators(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"anonymous": "nothing", "others": "nothing"})
    refused = pages.client("").get("/")
    assert (refused.status_code, pages.client("").get("/events").status_code) == (403, 403)
    assert "running" not in refused.text
    assert {row["user"] for row in queued(pages.client("ada"))} == {"ada"}


NOBODY, SOMEBODY = {}, {"x-remote-user": "ada"}
HERE, PROXY = ("127.0.0.1", 1), {"trusted_proxies": ("127.0.0.1",)}


@pytest.mark.parametrize(
    ("web", "client", "headers", "private", "sees"),
    [
        ({}, HERE, SOMEBODY, [], ("", Sight.NAMELESS, Sight.OWN)),
        (PROXY, HERE, SOMEBODY, [], ("ada", Sight.ALL, Sight.ALL)),
        ({"trusted_proxies": ("127.0.0.0/8",)}, HERE, SOMEBODY, ["usage"], ("ada", Sight.ALL, Sight.OWN)),
        (PROXY, HERE, SOMEBODY, None, ("ada", Sight.OWN, Sight.OWN)),
        (PROXY, HERE, SOMEBODY, ["all"], ("ada", Sight.OWN, Sight.OWN)),
        ({"trusted_proxies": ("10.0.0.1",)}, HERE, SOMEBODY, [], ("", Sight.NAMELESS, Sight.OWN)),
        ({"trusted_proxies": ("unix:nobody",)}, ("unix", 65534), SOMEBODY, [], ("ada", Sight.ALL, Sight.ALL)),
        ({}, ("unix", 65534), SOMEBODY, [], ("nobody", Sight.ALL, Sight.ALL)),
        ({}, ("unix", 0), NOBODY, ["jobs"], ("root", Sight.ALL, Sight.ALL)),
        ({}, ("unix", 4242), NOBODY, ["jobs"], ("4242", Sight.OWN, Sight.OWN)),
        ({}, None, SOMEBODY, ["jobs"], ("", Sight.OWN, Sight.OWN)),
        ({"anonymous": Anonymous.EVERYTHING}, None, NOBODY, None, ("", Sight.ALL, Sight.ALL)),
        ({**PROXY, "others": Others.NOTHING}, HERE, SOMEBODY, [], ("ada", Sight.OWN, Sight.OWN)),
        ({**PROXY, "admins": ("ada",)}, HERE, SOMEBODY, ["jobs"], ("ada", Sight.ALL, Sight.ALL)),
    ],
)
def test_who_looks(web: Any, client: Any, headers: Any, private: Any, sees: tuple[str, Sight, Sight]) -> None:
    found = viewer_of(settings_from({"web": web}, "a test").web, client, headers, private, own_uid=4711)
    assert (found.name, found.jobs, found.usage) == sees


def test_private_data_is_asked_for_once_an_hour_and_kept() -> None:
    answers: list[dict[str, str] | None] = [None, {"PrivateData": "none"}, {"PrivateData": "Jobs, usage"}]
    private = PrivateData(answers.pop)
    assert private.words is None
    known = []
    for now_s in (0.0, 10.0, 3599.0, 3600.0, 7200.0):
        private.poll(now_s)
        known.append(private.words)
    assert known == [["jobs", "usage"]] * 3 + [[], []], "a way of asking that does not tell leaves what is known"


# -- over a socket, live ---------------------------------------------------------------------------------------


def test_over_a_unix_socket_the_reader_is_its_peer(pages: Pages, tmp_path: Path) -> None:
    import uvicorn

    from lucid.web.app import PeerProtocol

    place = tmp_path / "web.sock"
    app = build_app(pages.source)
    config = uvicorn.Config(app, uds=str(place), http=PeerProtocol, ws="none", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(200):
        if place.exists() and server.started:
            break
        time.sleep(0.05)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(place))
            sock.sendall(b"GET /queue.json HTTP/1.1\r\nHost: x\r\nX-Remote-User: bob\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := sock.recv(65536):
                answer += part
    finally:
        server.should_exit = True
        thread.join(10)
    rows = json.loads(answer.partition(b"\r\n\r\n")[2])["queue"]
    assert {row["user"] for row in rows} >= {"ada"}, f"uid {os.geteuid()} runs lucidd: it sees everything"


def test_starts_are_shown_as_planned(own_pages: Pages) -> None:
    picture = own_pages.source.view
    assert picture is not None
    first, second, *_ = picture.waiting
    own_pages.source.forecasts.ahead = StartsAhead(picture.now_s - 30.0, {first: (40, 100, 400), second: None}, 5e3)
    rows = {row["job"]: row for row in queued(own_pages.client("root-ish"))}
    assert rows[first]["starts_in_s"] == [10, 70, 370], "half a minute later"
    assert rows[second]["starts_words"] == "in more than 1.4 h"
    page = own_pages.client("root-ish").get(f"/job/{first}").text
    assert "It starts within 10 min." in page
    assert "A first guess: " in page


def test_metrics_are_there_without_users(pages: Pages) -> None:
    answer = pages.client("").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "lucid_up 1.0" in answer.text
    assert not re.search(r"\b(ada|bob)\b", answer.text)


def test_nothing_is_nothing_in_metrics_and_on_the_page_that_refuses_too(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    pages = Pages(tmp_path, {"anonymous": "nothing", "metrics_token_file": str(token)})
    for sent in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}, {"authorization": "s3cret"}):
        client = pages.client("")
        client.headers |= sent
        answer = client.get("/metrics")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "lucid_" not in answer.text
    client.headers["authorization"] = "Bearer s3cret"
    assert "lucid_up 1.0" in client.get("/metrics").text
    assert client.get("/").status_code == 403, "the token is for the metrics alone"
    assert pages.client("ada").get("/metrics").status_code == 200
    assert "As lucidd saw it" not in pages.client("").get("/").text
    for spoil in (lambda: token.write_text("\n"), token.unlink):
        spoil()
        with pytest.raises(ConfigError, match="metrics_token_file"):
            pages.client("")


FOLDER = Path(__file__).parents[3] / "packaging/ondemand"


def test_a_portal_names_the_reader_in_the_header_that_pages_believe_and_takes_it_from_nobody(tmp_path: Path) -> None:
    """Apache as Open OnDemand's file sets it up, and the settings that the page beside it gives."""
    lines = yaml.safe_load((FOLDER / "ood_portal.yml").read_text())["custom_vhost_directives"]
    found = re.search(r"```toml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert found
    web = tomllib.loads(found[1])["web"]
    assert lines[0] == f'<Location "{web["root_path"]}">'
    assert lines[-1] == "</Location>"
    words = [line.split() for line in lines]
    unset = words.index(["RequestHeader", "unset", str(web["user_header"])])
    assert words[unset + 1][:3] == ["RequestHeader", "set", web["user_header"]]
    assert any(line.strip() == "Require valid-user" for line in lines)
    pages = Pages(tmp_path, web=web, private="jobs")
    address = str(pages.web.trusted_proxies[0])
    for user, sees in (("bob", True), ("carol", False)):
        answer = pages.client(user, root="/lucid", address=address).get("/lucid/job/13")
        assert (answer.status_code == 200) is sees, user


def test_where_device_numbers_have_holes_the_page_goes_by_them(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"others": "nothing"})
    kinds = ("g0", "g1", "g3", "g5")
    pages.slurm.slurm.node("n2", gpu_types=kinds, shard_types=frozenset(kinds))
    pages.slurm.store.set_setting("gpu.out.n2:3", '{"node": "n2", "index": 3, "since_s": 1000.0, "words": "<i>"}')
    pages.slurm.turns(120.0)
    pages.source.poll()
    told = pages.client("ada").get("/cluster.json").json()
    assert told["gpus_out"] == [{"node": "n2", "gpu": 3, "since_s": 1000.0, "why": "<i>"}]
    assert (told["totals"]["out"], told["totals"]["shared"]) == (0, 4), "nobody may have it, and nobody holds it"
    numbers = {one["name"]: one["numbers"] for one in told["nodes"]}
    assert (numbers["n1"], numbers["n2"]) == ([0, 1, 2, 3], [0, 1, 3, 5])
    cells = cells_of([one for one in told["nodes"] if one["name"] == "n2"])
    assert [(cell["gpu"], cell["gpus"]) for cell in cells] == [(0, 2), (2, 1), (3, 1)] * 2, "the third stands apart"
    page = pages.client("ada").get("/").text
    assert "GPU 3 of n2</b> gets no new start" in page
    assert "&lt;i&gt;" in page
    assert "vc, GPUs 0 1 3 5" in page


def test_a_window_is_told_and_drawn_over_its_nodes(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"others": "nothing"})
    slurm = pages.slurm.slurm
    start_s = slurm.now + 1800.0
    slurm.reserved = [Reservation("m", ("n2",), start_s, start_s + 3600.0, frozenset(["MAINT"]), node_list="n2")]
    pages.slurm.turns(120.0)
    pages.source.poll()
    told = pages.client("ada").get("/cluster.json").json()["windows"]
    assert [(one["why"], one["nodes"], one["from_s"]) for one in told] == [("maintenance of n2 (m)", ["n2"], start_s)]
    assert told[0]["reaching"], "those of n2 have no time limit"
    page = pages.client("ada").get("/?hours=3").text
    assert "Maintenance of n2 (m) from" in page
    assert page.count('class="g g-window"') == 1
    assert 'class="now"' in page
    assert pages.client("bob").get("/cluster.json").json()["windows"][0]["reaching"] == []
