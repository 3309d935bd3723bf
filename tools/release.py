"""``make release``: everything of a release into out/release, and at the end its tag."""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def obstacles(root: Path, version: str) -> list[str]:
    """What stands against a release, in words."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"pyproject.toml: version {version!r} is not MAJOR.MINOR.PATCH")
    if ".invalid" in _project(root).get("urls", {}).get("Homepage", ""):
        found.append("pyproject.toml: Homepage is still to be filled in: where is the repository published?")
    if changed := _git(root, "status", "--porcelain"):
        found.append(f"the tree is not clean: {len(changed.splitlines())} files")
    if _git(root, "tag", "--list", f"v{version}"):
        found.append(f"the tag v{version} is there already: set another version in pyproject.toml")
    cited = root / "CITATION.cff"
    if cited.exists() and f"\nversion: {version}\n" not in cited.read_text(encoding="utf-8"):
        found.append(f"CITATION.cff names another version than {version}")
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", log, re.MULTILINE):
        found.append(f"CHANGELOG.md has no '## {version} (YYYY-MM-DD)'")
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", log, re.MULTILINE | re.DOTALL)
    if unreleased is not None and unreleased[1].strip():
        found.append("CHANGELOG.md has lines under 'Unreleased': put them under the version")
    return found


def checksums(folder: Path) -> str:
    """As ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.glob("[!.]*") if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def version_of(root: Path) -> str:
    """The one place where it stands."""
    return str(_project(root)["version"])


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def steps(root: Path, out: Path, quick: bool) -> list[list[str]]:
    """What is run, in order. ``quick``: without the checks."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    made = [] if quick else [["make", "test"]]
    made += [["make", "build-release", f"RELEASE={out}"], ["make", "sbom"]]
    made += [["make", name] for name in ("deb", "rpm") if re.search(rf"^{name}:", makefile, re.MULTILINE)]
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="make everything, and no tag")
    parser.add_argument("--quick", action="store_true", help="with --dry: without the checks")
    given = parser.parse_args(arguments)
    version, out = version_of(ROOT), ROOT / "out" / "release"
    against = obstacles(ROOT, version)
    for words in against:
        print(f"{'would stop a release' if given.dry else 'stops'}: {words}")
    if against and not given.dry:
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for path in out.iterdir():
        path.unlink()
    for words in steps(ROOT, out, given.quick and given.dry):
        print("+", *words, flush=True)
        if subprocess.run(words, cwd=ROOT, check=False).returncode != 0:
            print(f"stops: {' '.join(words)} failed")
            return 1
    for path in [ROOT / "out/sbom.cdx.json", *(ROOT / "out/packages").glob("*")]:
        if path.is_file() and path.suffix in (".json", ".deb", ".rpm"):
            (out / path.name).write_bytes(path.read_bytes())
    (out / "SHA256SUMS").write_text(checksums(out), encoding="utf-8")
    print((out / "SHA256SUMS").read_text(encoding="utf-8"), end="")
    if given.dry:
        print(f"dry run: no tag v{version}; files in {out}")
        return 0
    _git(ROOT, "tag", "--annotate", f"v{version}", "--message", f"Lucid {version}")
    print(f"tagged v{version}; files in {out}. Next: git push origin v{version}")
    return 0


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
