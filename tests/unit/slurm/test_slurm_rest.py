"""The client for slurmrestd, over answers that real ones gave (tests/assets/slurm/record.py)."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.clients.factory import make_client
from lucid.adapters.slurm.clients.port import Breaker, Changes
from lucid.adapters.slurm.clients.rest import RestClient
from lucid.adapters.slurm.clients.rest_connection import REQUEUES, VERSIONS
from lucid.adapters.slurm.clients.rest_token import Token
from lucid.adapters.slurm.records.from_json import jobs_from, nodes_from
from lucid.config import SlurmSettings
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable, ConfigError

ASSETS = Path(__file__).parents[2] / "assets/slurm"
UNIX = "unix:/run/slurmrestd/slurmrestd.sock"
RELEASES = ("24.11", "26.05")


def recorded(release: str, interface: str, name: str) -> Any:
    return json.loads((ASSETS / f"{release}-{interface}" / f"{name}.json").read_text())


class Recorded:
    """A slurmrestd that answers as the recorded one of this release did; what it was asked stands in ``asked``."""

    def __init__(self, release: str, only: tuple[str, ...] = ()) -> None:
        self.release = release
        self.interfaces = {path.name.partition("-")[2] for path in ASSETS.glob(f"{release}-*")}
        self.interfaces &= set(only) or self.interfaces
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.always: Callable[[], httpx.Response] | None = None
        self.partitions: Any = None
        self.written: dict[str, str] = {}
        """By path below the interface: which recorded answer a write gets, "written" unless named."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        _, room, interface, *rest = request.url.path.split("/")
        path = "/".join(rest)
        self.headers.append(request.headers)
        self.asked.append(
            (request.method, request.url.path, json.loads(request.content) if request.content else None)
        )
        if self.always is not None:
            return self.always()
        if room != "slurm" or interface not in self.interfaces:
            return self.say(recorded(self.release, max(self.interfaces), "answers")["no such version"])
        if path in ("jobs/", "nodes/"):
            return httpx.Response(200, json=recorded(self.release, interface, path[:-1]))
        if path == "partitions/" and self.partitions:
            return httpx.Response(500, json=self.partitions)
        name = "ping" if path == "ping/" else self.written.get(path, "written")
        return self.say(recorded(self.release, interface, "answers")[name])

    @staticmethod
    def say(answer: Any) -> httpx.Response:
        says = answer["says"]
        return httpx.Response(answer["status"], **({"text": says} if isinstance(says, str) else {"json": says}))

    def client(self, **more: Any) -> RestClient:
        return RestClient(more.pop("url", UNIX), Breaker(lambda: 0.0), transport=httpx.MockTransport(self), **more)

    def answers(self, name: str, interface: str = "") -> None:
        """Whatever is asked gets this recorded answer, once the interface has been found."""
        answer = recorded(self.release, interface or max(self.interfaces), "answers")[name]
        self.always = lambda: self.say(answer)


@pytest.fixture(params=RELEASES)
def rest(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)


def test_the_newest_version_that_both_know_is_spoken(rest: Recorded) -> None:
    client = rest.client()
    assert client.server.interface == {"24.11": "v0.0.42", "26.05": "v0.0.44"}[rest.release]
    assert client.version() == tuple(map(int, rest.release.split(".")))
    client.jobs()
    tried = [path for _, path, _ in rest.asked if path.endswith("/ping/")]
    assert len(tried) == len(set(tried)), "asked once"


@pytest.mark.parametrize(("release", "interface"), [(r, v) for r in RELEASES for v in (*VERSIONS, REQUEUES)])
def test_through_every_version_the_same_is_read_as_by_the_commands(release: str, interface: str) -> None:
    if interface == REQUEUES or not (ASSETS / f"{release}-{interface}").is_dir():
        assert (interface == REQUEUES) or (release, interface) in {
            ("24.11", "v0.0.43"), ("24.11", "v0.0.44"), ("26.05", "v0.0.40"), ("26.05", "v0.0.41"),
        }  # fmt: skip
        return
    client = Recorded(release, only=(interface,)).client()
    commands = json.loads((ASSETS / release / "jobs.json").read_text())
    assert [job.id for job in client.jobs()] == [job.id for job in jobs_from(commands)]
    assert client.nodes() == nodes_from(json.loads((ASSETS / release / "nodes.json").read_text()))


def test_a_slurmrestd_with_none_of_the_versions_is_told_apart(rest: Recorded) -> None:
    rest.answers("no such version")
    with pytest.raises(ClusterError, match=r"none of v0\.0\.44, .*23\.11 to 26\.05") as caught:
        rest.client().jobs()
    assert not isinstance(caught.value, ClusterUnavailable)


def test_a_slurmrestd_that_was_upgraded_is_asked_anew(rest: Recorded) -> None:
    client = rest.client()
    before = client.server.interface
    rest.interfaces -= {before}
    with pytest.raises(ClusterUnavailable, match="slurmrestd has no"):
        client.jobs()
    assert client.jobs()
    assert client.server.interface != before


def writes(rest: Recorded) -> list[tuple[str, Any]]:
    return [(path.split("/", 3)[3], body) for method, path, body in rest.asked if method == "POST"]


def test_only_fields_that_change_are_written(rest: Recorded) -> None:
    client = rest.client()
    client.update(
        "3", Changes(tres_per_node="gres/shard:g1:1", tres_per_job="", req_nodes="n1,n2", extra="lucid-gpus=1")
    )
    client.update("4", Changes(site_factor=0))
    client.update("4", Changes(req_nodes=""))
    client.update("4", Changes())
    client.release("4")
    client.hold("4")
    path, body = writes(rest)[-1]
    begin = body.pop("begin_time")
    assert (path, body) == ("job/4", {"hold": True})
    assert abs(begin["number"] - time.time()) < 3600, "by which job_submit.lua tells Lucid's holds from a user's"
    assert writes(rest)[:-1] == [
        ("job/3", {"tres_per_node": "gres/shard:g1:1", "tres_per_job": "", "required_nodes": ["n1", "n2"],
                   "extra": "lucid-gpus=1"}),
        ("job/4", {"site_factor": 2**31}),
        ("job/4", {"required_nodes": [""]}),
        ("job/4", {"hold": False}),
    ]  # fmt: skip


def test_a_start_time_is_written_as_a_time(rest: Recorded) -> None:
    rest.client().update("3", Changes(start_now=True))
    ((_, body),) = writes(rest)
    assert body["begin_time"]["set"]
    assert body["begin_time"]["number"] > 1.7e9
    rest.client().update("3", Changes(start_at_s=1.9e9))
    assert writes(rest)[-1][1]["begin_time"] == {"set": True, "infinite": False, "number": 1_900_000_000}


def test_an_array_is_ordered_as_a_whole_and_once_between_two_looks(rest: Recorded) -> None:
    client = rest.client()
    for task in ("8_1", "8_2", "9_1"):
        client.update(task, Changes(site_factor=300))
    assert writes(rest) == [("job/8", {"site_factor": 300 + 2**31}), ("job/9", {"site_factor": 300 + 2**31})]
    client.jobs()
    client.update("8_3", Changes(site_factor=300))
    assert len(writes(rest)) == 3


@pytest.mark.parametrize("act", ["update", "hold", "release"])
def test_one_task_is_refused_and_never_takes_the_array_along(rest: Recorded, act: str) -> None:
    client = rest.client()
    with pytest.raises(ActionRefused, match="rest_commands"):
        client.update("8_1", Changes(req_nodes="n1")) if act == "update" else getattr(client, act)("8_1")
    assert writes(rest) == []


def test_what_slurmrestd_cannot_do_goes_through_the_commands_where_they_are_given(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = tmp_path / "scontrol.py"
    program.write_text(f"import sys\nopen({str(said)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n")
    rest = Recorded("24.11")
    client = rest.client(commands=CommandClient([sys.executable, str(program)], Breaker(lambda: 0.0)))
    client.release("8_1")
    client.requeue_hold("7")
    client.release("7")
    assert said.read_text().splitlines() == ["scontrol release 8_1", "scontrol requeuehold Incomplete 7"]
    assert writes(rest) == [("job/7", {"hold": False})]


def test_26_05_requeues_and_24_11_does_not() -> None:
    new, old = Recorded("26.05"), Recorded("24.11")
    new.written["jobs/requeue"] = "written"
    new.client().requeue_hold("7")
    assert new.asked[-1] == (
        "POST",
        f"/slurm/{REQUEUES}/jobs/requeue",
        {"jobs": ["7"], "flags": ["Hold", "Incomplete"]},
    )
    with pytest.raises(ActionRefused, match="cannot requeue"):
        old.client().requeue_hold("7")
    assert writes(old) == []
    new.written["jobs/requeue"] = "requeue"
    with pytest.raises(ActionRefused, match="presently disabled"):
        new.client().requeue_hold("7")


def test_a_requeue_that_failed_inside_a_success_is_a_refusal() -> None:
    # As 26.05.5 answered with status 200 for a waiting task of an array.
    said = {"status": [[{"job_id": 3, "error": "Job is pending execution", "error_code": 2024}]], "errors": []}
    rest = Recorded("26.05")
    client = rest.client()
    assert client.server.interface
    rest.always = lambda: httpx.Response(200, json=said)
    with pytest.raises(ActionRefused, match="pending execution"):
        client.requeue_hold("3_1")


@pytest.mark.parametrize("job_id", ["", "1;2", "../nodes", "1 2", "-1", "1_", "１"])
def test_what_is_no_job_id_never_reaches_slurmrestd(rest: Recorded, job_id: str) -> None:
    client = rest.client()
    for act in (client.hold, client.release, client.requeue_hold, lambda i: client.update(i, Changes(site_factor=1))):
        with pytest.raises(ActionRefused, match="not a Slurm job id"):
            act(job_id)
    assert rest.asked == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no such job", "Invalid job id"),
        ("runs already", "no longer pending"),
        ("one task", "instead of array task"),
        ("unknown field", "unknown field"),
    ],
)
def test_a_refusal_has_slurms_words(rest: Recorded, name: str, words: str) -> None:
    for interface in sorted(rest.interfaces - {REQUEUES}):
        other = Recorded(rest.release, only=(interface,))
        other.written["job/7"] = name
        with pytest.raises(ActionRefused, match=words):
            other.client().update("7", Changes(req_nodes="n1"))


DOWN = [
    # As 24.11.5 answered a read and a write while slurmctld was dead.
    (502, 1800, "Unable to contact slurm controller (connect failure)"),
    (500, 1000, "Unexpected message received"),
    (500, 5004, "Socket timed out on send/recv operation"),
]


@pytest.mark.parametrize(("status", "number", "words"), DOWN)
def test_a_dead_slurmctld_is_told_from_a_refusal(rest: Recorded, status: int, number: int, words: str) -> None:
    client = rest.client()
    assert client.server.interface
    body = {"errors": [{"error_number": number, "error": words}], "jobs": []}
    rest.always = lambda: httpx.Response(status, json=body)
    for ask in (client.jobs, client.nodes, lambda: client.release("7")):
        with pytest.raises(ClusterUnavailable):
            ask()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(200, text="<html>hello"), ClusterError),
        (httpx.Response(502, text="bad gateway"), ClusterUnavailable),
        (httpx.Response(200, json={"errors": []}), ClusterError),
        (httpx.Response(200, json=[]), ClusterError),
    ],
)
def test_what_is_no_answer_is_an_error(rest: Recorded, answer: httpx.Response, error: type[Exception]) -> None:
    client = rest.client()
    assert client.server.interface
    rest.always = lambda: answer
    with pytest.raises(error):
        client.jobs()


def raising(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ReadTimeout("slow"), "no answer within"),
        (httpx.ConnectError("[Errno 2] No such file"), "does slurmrestd run"),
        (httpx.RemoteProtocolError("server went away"), "went away"),
    ],
)
def test_trouble_on_the_way_counts_against_the_breaker(error: Exception, words: str) -> None:
    breaker = Breaker(lambda: 0.0, errors=2)
    client = RestClient(UNIX, breaker, transport=httpx.MockTransport(raising(error)))
    for _ in range(2):
        with pytest.raises(ClusterUnavailable, match=words):
            client.jobs()
    with pytest.raises(ClusterUnavailable, match="Slurm is not asked"):
        client.jobs()
    assert breaker.calls.failed == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx leaves it to the collector
def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match=f"{tmp_path}/none.sock.*does slurmrestd run"):
        RestClient(f"unix:{tmp_path}/none.sock", Breaker(lambda: 0.0)).jobs()


# -- tokens ------------------------------------------------------------------------------------------------------


def token_file(tmp_path: Path, text: str = "", **claims: Any) -> Path:
    made = ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256"}', json.dumps(claims).encode(), b"signature")
    )
    path = tmp_path / "token"
    path.write_text(text or f"SLURM_JWT={made}\n")
    return path


def test_the_token_goes_with_every_request_and_is_read_anew(rest: Recorded, tmp_path: Path) -> None:
    path = token_file(tmp_path, sun="lucid", exp=9e9)
    client = rest.client(url="http://head:6820", token_file=str(path))
    client.jobs()
    assert rest.headers[-1]["X-SLURM-USER-NAME"] == "lucid"
    assert rest.headers[-1]["X-SLURM-USER-TOKEN"] == path.read_text().strip().removeprefix("SLURM_JWT=")
    token_file(tmp_path, sun="other", exp=9e9)
    client.jobs()
    assert rest.headers[-1]["X-SLURM-USER-NAME"] == "other"


@pytest.mark.parametrize("answer", ["no token", "token expired"])
@pytest.mark.parametrize(
    ("text", "exp", "words"),
    [("", 1.0, "expired [0-9]+ s ago; renew it: scontrol token"), ("", 9e9, "not signed with this cluster's key"),
     ("abc", 0.0, "does not hold a Slurm token")],
)  # fmt: skip
def test_a_token_that_is_not_taken_is_explained(
    rest: Recorded, tmp_path: Path, answer: str, text: str, exp: float, words: str
) -> None:
    path = token_file(tmp_path, text, exp=exp)
    client = rest.client(url="http://head:6820", token_file=str(path))
    assert client.server.interface
    rest.answers(answer)
    for ask in (client.jobs, lambda: client.release("7")):
        with pytest.raises(ClusterUnavailable, match=words):
            ask()


OLDER_WORDS = {
    "23.11": ("openapi_get_db_conn() failed to open slurmdb connection", 7000, "Unable to connect to database"),
    "24.05": ("Unable to query jobs", -1, "Unspecified error"),
}
"""What slurmrestd of these answered where a token had expired: description, number and error."""


@pytest.mark.parametrize("release", OLDER_WORDS)
@pytest.mark.parametrize("exp", [1.0, 9e9])
def test_an_expired_token_is_told_where_slurmrestd_says_something_else(
    rest: Recorded, tmp_path: Path, release: str, exp: float
) -> None:
    client = rest.client(url="http://head:6820", token_file=str(token_file(tmp_path, exp=exp)))
    assert client.server.interface
    description, number, words = OLDER_WORDS[release]
    error = {"description": description, "error_number": number, "error": words}
    rest.always = lambda: httpx.Response(500, json={"errors": [error]})
    with pytest.raises(ClusterUnavailable, match="expired [0-9]+ s ago; renew it" if exp == 1.0 else f"{words}$"):
        client.release("7")


def test_a_socket_that_wants_a_token_says_which_setting(rest: Recorded) -> None:
    client = rest.client()
    rest.answers("no token")
    with pytest.raises(ClusterUnavailable, match="rest_token_file"):
        client.jobs()


@pytest.mark.parametrize("text", ["\n", "two words", "zwei\nZeilen"])
def test_a_file_without_a_token_is_never_sent(rest: Recorded, tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ClusterUnavailable, match="holds no token"):
        rest.client(url="http://head:6820", token_file=str(path)).jobs()
    with pytest.raises(ClusterUnavailable, match="cannot be read"):
        rest.client(url="http://head:6820", token_file=str(tmp_path / "gone")).jobs()
    assert rest.asked == []


def test_a_token_tells_how_long_it_lasts(tmp_path: Path) -> None:
    assert Token(token_file(tmp_path, exp=500)).left_s(100.0) == 400.0
    assert Token(token_file(tmp_path, sun="x")).left_s(100.0) is None
    token = Token(token_file(tmp_path, text="a.!!.c"))
    assert (token.claims(), token.left_s(0.0)) == ({}, None)


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "head:6820", "unix:relative", "ftp://x", "http://user:pass word@h", "unix:/a b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="rest_url"):
        RestClient(url, Breaker(lambda: 0.0))


def test_http_needs_a_token_file() -> None:
    with pytest.raises(ConfigError, match="rest_token_file"):
        RestClient("https://head:6820", Breaker(lambda: 0.0))


def test_the_settings_name_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    breaker = Breaker(lambda: 0.0)
    assert make_client(SlurmSettings(), breaker).name == "commands"
    settings = SlurmSettings(client="rest", rest_url=UNIX)
    assert make_client(settings, breaker).name == "slurmrestd"
    monkeypatch.setitem(sys.modules, "lucid.adapters.slurm.clients.rest", None)
    with pytest.raises(ConfigError, match=r"lucid-scheduler\[rest\]"):
        make_client(settings, breaker)


def test_no_proxy_is_shown_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    assert RestClient(UNIX, Breaker(lambda: 0.0)).server._http._mounts == {}


def without_slurmdbd(release: str = "24.11") -> Any:
    """Partitions as 24.11.5 answers, with status 500, while slurmdbd is down."""
    document = json.loads((ASSETS / release / "partitions.json").read_text())
    error = {
        "description": "Slurmdb query failed", "error_number": 111, "error": "Connection refused",
        "source": "slurmdb_tres_get",
    }  # fmt: skip
    return {**document, "errors": [error]}


def test_partitions_are_read_while_accounting_is_silent() -> None:
    slurm = Recorded("24.11")
    slurm.partitions = without_slurmdbd()
    client = slurm.client()
    assert client.accounting == ""
    assert {partition.name for partition in client.partitions()} >= {"vc-a", "vc-b", "prof"}
    assert client.accounting == "Slurmdb query failed: Connection refused"
    slurm.partitions = {**slurm.partitions, "partitions": []}
    with pytest.raises(ClusterUnavailable, match="Slurmdb query failed"):
        client.partitions()
    other = {"description": "Unable to connect", "error_number": 111, "source": "slurm_load_partitions"}
    slurm.partitions = {**without_slurmdbd(), "errors": [*without_slurmdbd()["errors"], other]}
    with pytest.raises(ClusterUnavailable):
        client.partitions()
