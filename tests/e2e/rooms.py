"""Which files of tests/e2e go with which paths: ``make e2e FOR="path…"``, by the table in ``rooms.toml``.

    python tests/e2e/rooms.py lucid/slurm/view/snapshot.py     # or a folder, or a revision: what differs
    from it

The files go to stdout; why they are chosen, to stderr.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
STORY = sorted(path.name for path in HERE.glob("test_story*.py"))
"""Runs with every choice."""


@dataclass(frozen=True)
class Room:
    """``none``: why there is nothing to ask."""

    of: tuple[str, ...]
    ask: tuple[str, ...] = ()
    none: str = ""

    def has(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.of)


def rooms() -> list[Room]:
    """In the order of the table."""
    table = tomllib.loads((HERE / "rooms.toml").read_text())["room"]
    return [Room(tuple(row["of"]), tuple(row.get("ask", ())), row.get("none", "")) for row in table]


def asked_by(path: str) -> tuple[list[str], str]:
    """The files that a path asks for: those of all rooms that name it, or else of the first that has its folder.
    Where there are none, why."""
    if path.startswith("tests/e2e/"):
        return _in_tests(Path(path).name), "nothing imports it"
    table = rooms()
    own = [room for room in table if path in room.of] or [room for room in table if room.has(path)][:1]
    if not own:
        return [], "no room of a live Slurm's"
    return list(dict.fromkeys(file for room in own for file in room.ask)), own[0].none


def _in_tests(name: str) -> list[str]:
    """The file itself, or those that import this helper, directly or through another; all, where conftest.py does."""
    imports = {
        path.name: {
            f"{module}.py" for module in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        }
        for path in HERE.glob("*.py")
    }
    found, fresh = set[str](), {name}
    while fresh:
        found |= fresh
        fresh = {file for file, modules in imports.items() if modules & found} - found
    asked = imports if "conftest.py" in found else found & imports.keys()
    return sorted(file for file in asked if file.startswith("test_"))


def paths_of(word: str) -> list[str]:
    """A path as it is, a folder's files, or what differs from a revision (files that git does not know included)."""
    path = (REPO / word).resolve()
    if path.is_dir():
        return _git("ls-files", "--", str(path))
    if path.exists() or not _is_revision(word):
        return [str(path.relative_to(REPO))]
    return [
        *_git("diff", "--name-only", "--no-renames", "--merge-base", word),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def _is_revision(word: str) -> bool:
    words = ["git", "rev-parse", "--quiet", "--verify", f"{word}^{{commit}}"]
    return not subprocess.run(words, cwd=REPO, capture_output=True, check=False).returncode


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True, check=True).stdout.splitlines()


def main(words: list[str]) -> int:
    files: set[str] = set()
    for path in dict.fromkeys(path for word in words for path in paths_of(word)):
        asked, why = asked_by(path)
        if asked or path.startswith(("lucid/", "slurm/")):
            print(f"{path}: {' '.join(asked) or f'none; {why}'}", file=sys.stderr)
        files.update(asked)
    if not files:
        print("no test on a real Slurm goes with this", file=sys.stderr)
        return 0
    print(*(f"tests/e2e/{file}" for file in [*STORY, *sorted(files - {*STORY})]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
