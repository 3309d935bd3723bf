"""Debian's Prometheus over an exporter of lucidd's metrics; the script that makes boards and alerts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lucid.daemon.reporting.metrics import CONTENT_TYPE, render
from lucid.daemon.reporting.waste_inputs import MetricsSource

__all__ = ["FOLDER", "ROOT", "Exporter", "Prometheus", "make", "plain"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "slurm/grafana"
sys.path.insert(0, str(FOLDER))
import make  # noqa: E402 - the script that makes the files


class Exporter:
    """The metrics over HTTP, as the page serves them."""

    def __init__(self, source: MetricsSource) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = render(source)
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self.server.server_address[1]


class Prometheus:
    """Debian's own, on a port and in a folder of the test."""

    def __init__(self, folder: Path, target: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.config = folder / "prometheus.yml"
        self.config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{FOLDER / 'alerts.yml'}']\n"
            "scrape_configs:\n"
            f"  - {{job_name: lucid, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
        )
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def scraped(self, times: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                found = self.ask("query", query="count_over_time(lucid_up[5m])")["result"]
                if found and float(found[0]["value"][1]) >= times:
                    return
            except OSError:
                pass
            time.sleep(0.25)
        raise AssertionError("Prometheus has not scraped")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def plain(expr: str) -> str:
    """With Grafana's variables filled in."""
    return expr.replace("$__rate_interval", "1m").replace("$__range", "5m")
