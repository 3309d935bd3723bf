"""``python packaging deb`` and ``python packaging rpm``: the two packages, into out/packages. docs/install.md."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from debian import build_deb
from redhat import build_rpm
from staging import PACKAGES, REPO, Target, stage

_SUITES = {"bookworm": ("3.11", "~deb12"), "trixie": ("3.13", "~deb13"), "noble": ("3.12", "~ubuntu24.04")}
"""Releases of Debian and Ubuntu, for building on another machine: the minor version of Python, the tag."""


def main() -> None:
    """Build, and say what was built."""
    parser = argparse.ArgumentParser(prog="python packaging", description=__doc__)
    parser.add_argument("kind", choices=("deb", "rpm"))
    parser.add_argument("--suite", default="", help=f"{', '.join(_SUITES)} (default: this machine's release)")
    parser.add_argument("--python", default="", help="3.N: the Python that it is for (default: the release's own)")
    parser.add_argument("--arch", default=platform.machine(), choices=("x86_64", "aarch64"))
    parser.add_argument("--level", type=int, default=6, help="of xz: 0 is quick and large (%(default)s)")
    parser.add_argument("--work", type=Path, default=REPO / "build/packages", help="where it is put together")
    parser.add_argument("--out", type=Path, default=REPO / "out/packages")
    given = parser.parse_args()
    if given.suite and given.suite not in _SUITES:
        parser.error(f"--suite {given.suite}: known are {', '.join(_SUITES)}; for another one name --python")
    os.environ.setdefault("SOURCE_DATE_EPOCH", _epoch())
    python, tag = _SUITES.get(given.suite) or _this_machine()
    python = given.python or ("3.12" if given.kind == "rpm" else python)
    if not re.fullmatch(r"3\.\d+", python) or int(python[2:]) < 11:
        parser.error(f"--python {python}: Lucid needs 3.11 or later; for another release name --suite")
    target = Target(given.kind, python, given.arch)
    given.out.mkdir(parents=True, exist_ok=True)
    work = given.work / f"{given.kind}-{python}-{given.arch}"
    work.mkdir(parents=True, exist_ok=True)
    roots = stage(target, work)
    for package in PACKAGES:
        if given.kind == "deb":
            path = build_deb(target, package, roots[package], tag, given.out, given.level)
        else:
            path = build_rpm(target, package, roots[package], work, given.out, given.level)
        sys.stdout.write(f"{path}  {path.stat().st_size / 2**20:.1f} MiB\n")


def _this_machine() -> tuple[str, str]:
    """Its own Python, and its release's tag."""
    said = {}
    try:
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            said[key] = value.strip('"')
    except OSError:
        pass
    release = {"debian": "deb", "ubuntu": "ubuntu"}.get(said.get("ID", ""), said.get("ID", "") or "local")
    number = said.get("VERSION_ID") or said.get("VERSION_CODENAME", "")
    found = Path("/usr/bin/python3").resolve().name
    return found.removeprefix("python"), f"~{release}{number}"


def _epoch() -> str:
    """The time of the last commit; outside of git the changelog's."""
    words = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode == 0 and (REPO / ".git").exists() and done.stdout.strip():
        return done.stdout.strip()
    return str(int((REPO / "CHANGELOG.md").stat().st_mtime))


if __name__ == "__main__":
    main()
