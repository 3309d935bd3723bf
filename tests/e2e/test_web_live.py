"""lucid-web over a real lucidd and a real Slurm: what its pages say, and that Slurm is not asked for it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from box import Box
from daemon_box import REPO, Lucidd

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


class Pages:
    """lucid-web beside a lucidd. The commands by which it could ask Slurm are one that leaves a mark."""

    def __init__(self, lucidd: Lucidd) -> None:
        self.asked = lucidd.folder / "asked"
        spy = lucidd.folder / "spy"
        spy.write_text(f'#!/bin/sh\necho "$@" >> {self.asked}\nexit 1\n')
        spy.chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        config = lucidd.folder / "web.toml"
        told = (lucidd.folder / "lucid.toml").read_text()
        config.write_text(
            re.sub("(?m)^prefix = .*$", f"prefix = {json.dumps([str(spy)])}", told)
            + '[web]\nuser_header = "X-Remote-User"\ntrusted_proxies = ["127.0.0.1"]\nadmins = ["root"]\n'
        )
        words = ["-m", "lucid.cli.main", "web", "--config", str(config), "--port", str(self.port)]
        self.process = subprocess.Popen([sys.executable, *words], cwd=REPO)
        until = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, "lucid-web ended"
            assert time.monotonic() < until, "lucid-web does not answer"
            time.sleep(0.3)

    def _answers(self) -> bool:
        try:
            return bool(self.get("health.json"))
        except HTTPError:
            return True
        except (URLError, ConnectionError):
            return False

    def get(self, path: str, user: str = "root", method: str = "GET") -> str:
        asked = Request(f"http://127.0.0.1:{self.port}/{path}", headers={"X-Remote-User": user}, method=method)
        with urlopen(asked, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    daemon = Lucidd(box, tmp_path / "state", restarts="")
    daemon.start()
    yield daemon
    daemon.close()


def test_pages_over_a_real_cluster_say_what_lucidctl_says_and_ask_slurm_nothing(box: Box, lucidd: Lucidd) -> None:
    ids = [box.sbatch("-p", "vc-b", "--gpus=4", "-t", "3", "-J", "<b>x", script="sleep 90") for _ in range(6)]
    box.wait("some to wait", lambda: len(lucidd.json("queue")["queue"]) > 0)
    box.wait("some to run", lambda: any(box.state(number) == "RUNNING" for number in ids))
    pages = Pages(lucidd)
    try:
        box.wait("the same queue", lambda: _same_queue(pages, lucidd))
        running = [number for number in ids if box.state(number) == "RUNNING"]
        cluster = pages.get("")
        assert all(number in cluster for number in running)
        assert "<b>x" not in cluster + pages.get("queue") + pages.get(f"job/{ids[-1]}"), "names are shown as text"
        waiting = next(row["job"] for row in pages.json("queue.json")["queue"])
        (reason, *_) = lucidd.story(waiting)["decisions"][-1]["words"]
        assert reason.split(";")[0] in _text(pages.get(f"job/{waiting}"))
        assert pages.get("people")
        for path in ("", "queue", f"job/{waiting}"):
            with pytest.raises(HTTPError, match="405"):
                pages.get(path, method="POST")
        metrics = pages.get("metrics")
        assert f'lucid_pending_jobs{{partition="vc-b"}} {float(len(lucidd.json("queue")["queue"]))}' in metrics
        if shutil.which("promtool"):
            told = subprocess.run(
                ["promtool", "check", "metrics"], input=metrics, text=True, capture_output=True, check=False
            )
            assert (told.returncode, told.stdout + told.stderr) == (0, "")
        assert not pages.asked.exists(), f"Slurm was asked: {pages.asked.read_text()}"
    finally:
        pages.close()


def _same_queue(pages: Pages, lucidd: Lucidd) -> bool:
    told = lucidd.json("queue")["queue"]
    return bool(told) and [row["job"] for row in pages.json("queue.json")["queue"]] == [row["job"] for row in told]


def _text(page: str) -> str:
    return re.sub("<[^>]*>", "", page).replace("&#39;", "'").replace("&lt;", "<")
