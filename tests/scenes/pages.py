"""lucid-web's pages over a fake cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon_site import Site as SlurmSite
from lucid.config.load import Settings, settings_from
from lucid.web.app import build_app
from lucid.web.source import Source
from scenes.jobs import LIGHT
from web_client import WebClient

HOSTILE = "<img src=x onerror=alert(1)>\"'</script>{{7*7}}\u202e"
ADDRESSES = ("/", "/queue", "/queue/changes", "/job/1", "/job/9", "/people", "/people/ada", "/health")


class Pages:
    """The pages over a fake cluster: jobs 1 to 12 of ada, 13 of bob."""

    def __init__(self, folder: Path, web: dict[str, Any] | None = None, private: str = "none", **daemon: Any) -> None:
        self.slurm = SlurmSite(folder, restarts=None, **daemon)
        self.slurm.slurm.private = private
        for number in range(1, 13):
            self.slurm.submit(str(number), 4, run_s=3000.0, user="ada", name=HOSTILE, account="lab<b>")
            self.slurm.sampler.profiles[str(number)] = replace(LIGHT, workload="secret")
        self.slurm.submit("13", 2, run_s=100.0, user="bob", name="bobs", account="bobslab")
        self.slurm.turns(60.0)
        given = {"trusted_proxies": ["10.0.0.1"], "admins": ["root-ish"]} | (web or {})
        self.web = settings_from({"web": given}, "a test").web
        self.settings: Settings = self.slurm.settings.changed({"web": self.web})
        self.source = Source(self.settings, folder / "lucid.toml", lambda: self.slurm.slurm.now)
        self.source.poll()
        self.source.account()

    def client(self, user: str = "", root: str = "", address: str = "10.0.0.1") -> WebClient:
        app = build_app(self.source, root)
        headers = {"x-remote-user": user} if user else {}
        return WebClient(app, headers, address)
