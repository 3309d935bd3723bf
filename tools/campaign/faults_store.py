"""What may befall lucidd's store and the disk it is on."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaign.fault import Fault, Host, listed


class _OnStore(Fault):
    touches = frozenset({"store"})


@listed
class Full(_OnStore):
    name, what = "disk-full", "the disk of the store is full"
    lasts_s = (15.0, 70.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        fill = ["dd", "if=/dev/zero", f"of={host.site.state}/filler", "bs=4096", f"count={256 * 1024}"]
        return {"code": subprocess.run(fill, capture_output=True, check=False, timeout=30).returncode}

    def end(self, host: Host) -> None:
        (host.site.state / "filler").unlink(missing_ok=True)


@listed
class Deleted(_OnStore):
    name, what = "store-deleted", "the store deleted under lucidd, with or without its journal"

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        whole = dice.random() < 0.7
        for path in _parts(host) if whole else [host.site.state / "lucid.db"]:
            path.unlink(missing_ok=True)
        return {"whole": whole}


@listed
class Damaged(_OnStore):
    name, what = "store-damaged", "the store damaged under lucidd: its head, pages of it, or its end cut off"

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        way = dice.choice(["head", "pages", "cut"])
        path = host.site.state / "lucid.db"
        with suppress(OSError), path.open("r+b") as file:
            size = path.stat().st_size
            if way == "cut":
                file.truncate(size // 2)
            for _ in range(0 if way == "cut" else 1 if way == "head" else 4):
                file.seek(0 if way == "head" else dice.randrange(max(size // 4096, 1)) * 4096)
                file.write(dice.randbytes(4096))
        return {"way": way}


@listed
class Locked(_OnStore):
    name, what = "store-locked", "another process holds the store's lock"
    lasts_s = (6.0, 40.0)
    db: sqlite3.Connection | None = None

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        try:
            self.db = sqlite3.connect(f"file:{host.site.state}/lucid.db?mode=rw", uri=True, timeout=10)
            self.db.isolation_level = None
            self.db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            return {"not": str(error)}

    def end(self, host: Host) -> None:
        if self.db is not None:
            with suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            self.db.close()


@listed
class ReadOnly(_OnStore):
    name, what = "store-read-only", "the store and its folder belong to somebody else, so lucidd may not write there"
    lasts_s = (10.0, 50.0)
    before: tuple[tuple[Path, int], ...] = ()

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        paths = [host.site.state, *_parts(host)]
        self.before = tuple((path, path.stat().st_mode & 0o7777) for path in paths if path.exists())
        for path, mode in self.before:
            with suppress(OSError):
                path.chmod(mode & 0o7555)
        return {"files": len(paths)}

    def end(self, host: Host) -> None:
        for path, mode in self.before:
            with suppress(OSError):
                path.chmod(mode)


def _parts(host: Host) -> list[Path]:
    return sorted(path for path in host.site.state.glob("lucid.db*") if "damaged" not in path.name)
