"""``lucid-web`` and ``lucidctl web``: serve the read-only pages."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import run, say
from lucid.cli.options import PATH, config_option
from lucid.config.load import Settings, load_settings
from lucid.errors import ConfigError


@click.command()
@config_option
@click.option("--demo", is_flag=True, help="Show a simulated cluster that lives; needs no Slurm and no lucidd.")
@click.option("--host", help="Address to listen on.  [default: web.host]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: web.port]")
@click.option("--root-path", help="Path under which a proxy shows the pages, such as /lucid.")
@click.option("--store", type=PATH, help="lucid.db, where it is not in daemon.state_dir.")
def web(
    config: Path, demo: bool, host: str | None, port: int | None, root_path: str | None, store: Path | None
) -> None:
    """Serve read-only pages: cluster, queue, jobs, people, health.

    The pages read lucidd's store, so this runs as lucidd's user. Slurm is never asked."""
    lacking = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if lacking:
        raise ConfigError(f"{', '.join(lacking)} not installed: pip install 'lucid-scheduler[web]'")
    from lucid.web.app import serve
    from lucid.web.source import Source

    given: dict[str, Any] = {"host": host, "port": port, "root_path": root_path}
    if demo:
        with _demonstration() as path:
            settings = _with(load_settings(path), given)
            _say(settings, demo=True)
            serve(Source(settings, path), settings.web)
        return
    settings = _with(_settings(config, store), given)
    _say(settings, demo=False)
    serve(Source(settings, config if store is None else None), settings.web)


def _settings(config: Path, store: Path | None) -> Settings:
    settings = Settings() if store is not None and not config.exists() else load_settings(config)
    if store is None:
        return settings
    folder = store.parent if store.name.endswith(".db") else store
    return settings.changed({"daemon.state_dir": str(folder.absolute())})


def _with(settings: Settings, given: dict[str, Any]) -> Settings:
    update = {f"web.{key}": value for key, value in given.items() if value is not None}
    if update.get("web.port") == 0:
        update["web.port"] = _free_port(update.get("web.host", settings.web.host))
    return settings.changed(update)


def _free_port(host: str) -> int:
    """The port that ``--port 0`` takes, chosen before it is printed."""
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(f"{host}: cannot be listened on ({error}); choose another --host") from None


def _say(settings: Settings, *, demo: bool) -> None:
    web = settings.web
    host = f"[{web.host}]" if ":" in web.host else web.host
    where = f"unix:{web.socket}" if web.socket else f"http://{host}:{web.port}{web.root_path}/"
    what = "a SYNTHETIC cluster" if demo else str(Path(settings.daemon.state_dir) / "lucid.db")
    say(f"lucid-web: {what} at {where} (Ctrl-C ends it)", err=True)


@contextmanager
def _demonstration() -> Iterator[Path]:
    """A context with a simulated cluster and its store; yields the path of its configuration."""
    from lucid.web.demo import write_settings

    with tempfile.TemporaryDirectory(prefix="lucid-demo-") as name:
        path = write_settings(Path(name))
        say("lucid-web: replaying the first days of a SYNTHETIC month …", err=True)
        child = subprocess.Popen(
            [sys.executable, "-m", "lucid.web.demo", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise ConfigError("the demonstration could not be started; see its messages above")
            yield path
        finally:
            child.terminate()
            child.wait(10)


def main() -> None:
    """Run ``lucid-web``, which is ``lucidctl web``."""
    run(web, "lucid-web")
