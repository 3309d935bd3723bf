"""``Journal``: the record of what ``lucidctl setup`` changed, with copies, so that all of it can be taken back.

This holds after a killed run, too. Before the first file changes, a copy of each file as it was and the hash of each
file as it will be are on disk. The folder belongs to root, who writes its files back."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lucid.errors import ConfigError
from lucid.files import write_atomic
from lucid.setup.conf_text import Change, diff_of

FOLDER = Path("etc/lucid/setup")
"""The journal's folder, below the root of the file system."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Restore:
    """The effect of undoing on one file: its bytes afterwards, or ``None`` to remove it."""

    path: Path
    content: bytes | None
    mode: int
    owner: tuple[int, int]


@dataclass(slots=True)
class _Record:
    """A file by hashes: before the first setup (empty: there was none), and of each text that setup gave it since."""

    before: str
    after: list[str]
    mode: int
    uid: int
    gid: int
    own: bool = False


@dataclass(slots=True)
class Journal:
    """The record on disk. ``state``: ``none``, ``applying``, ``done``, ``undoing`` or ``undone``."""

    root: Path
    state: str = "none"
    mode: str = ""
    files: dict[str, _Record] = field(default_factory=dict)
    made: list[list[str]] = field(default_factory=list)
    """Everything made that is no file, in order: ["user", "lucid"], ["folder", "/etc/lucid"]."""

    @classmethod
    def read(cls, root: Path) -> Journal:
        """The record below *root*; an empty one where there is none.

        Raises:
            ConfigError: it cannot be read."""
        path = root / FOLDER / "manifest.json"
        try:
            found = json.loads(path.read_bytes())
            if found["format"] != _FORMAT:
                raise ConfigError(f"{path}: written by another version of Lucid; undo with that one")
            files = {name: _Record(**record) for name, record in found["files"].items()}
            return cls(root, found["state"], found["mode"], files, found["made"])
        except FileNotFoundError:
            return cls(root)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error!r}); run this as root") from None

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return self.root / FOLDER

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context in which no other setup runs here.

        Raises: ConfigError: one does, or the folder cannot be made."""
        try:
            for parent in (self.folder.parent, self.folder):
                if not parent.is_dir():
                    parent.mkdir(parents=True)
                    parent.chmod(0o755 if parent == self.folder.parent else 0o700)
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be made ({error.strerror}); run this as root") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ConfigError("another lucidctl setup runs on this machine; wait for its end") from None
        finally:
            os.close(handle)
            if self.state == "none":
                shutil.rmtree(self.folder, ignore_errors=True)

    def has(self, kind: str) -> list[str]:
        """The things of this kind that were made, the latest first."""
        return [name for made, name, *_ in reversed(self.made) if made == kind]

    def note(self, kind: str, name: str, was: str = "") -> None:
        """Record once that something is about to be made; *was* is what it was before."""
        if name not in self.has(kind):
            self.made.append([kind, name, was])
            self._write()

    def struck(self, kind: str, name: str) -> None:
        """Record that something that was made is gone again."""
        self.made = [made for made in self.made if made[:2] != [kind, name]]
        self._write()

    def made_of(self, kind: str) -> list[tuple[str, str]]:
        """The things of this kind that were made, with what each was before, the latest first."""
        return [(name, was) for made, name, was in reversed(self.made) if made == kind]

    def begin(self, mode: str) -> None:
        """Record that something is about to change."""
        self.state, self.mode = "applying", mode
        self._write()
        self._sweep()

    def apply(self, changes: Sequence[Change]) -> None:
        """Write every file; the caller calls ``done``.

        Raises: ConfigError: a file cannot be written. Those that this call wrote are as they were."""
        for change in changes:
            place = next(parent for parent in change.path.parents if parent.exists())
            if change.path.is_dir() or not os.access(place, os.W_OK | os.X_OK):
                raise ConfigError(f"{change.path}: cannot be written there; run this as root, nothing was changed")
        (self.folder / "files").mkdir(exist_ok=True)
        for change in changes:
            self._remember(change)
        self._write()
        try:
            for change in changes:
                for parent in reversed([parent for parent in change.path.parents if not parent.exists()]):
                    self.note("folder", str(parent))
                    parent.mkdir()
                    parent.chmod(0o755)
                record = self.files[str(change.path)]
                self._put(change.path, change.after, record.mode, (record.uid, record.gid))
        except OSError as error:
            self.revert(changes)
            raise ConfigError(
                f"{error.filename}: cannot be written ({error.strerror}); every file is as it was before this run"
            ) from None

    def revert(self, changes: Sequence[Change]) -> None:
        """Give these files back their content from before this run, which is forgotten. Raises OSError."""
        for change in changes:
            record = self.files[str(change.path)]
            self._put(change.path, change.before, record.mode, (record.uid, record.gid))
            record.after.pop()
            if not record.after:
                del self.files[str(change.path)]
        self._write()

    def done(self) -> None:
        """Record that all of it is in force: older texts of the files are no longer needed."""
        for record in self.files.values():
            record.after = record.after[-1:]
        self.state = "done"
        self._write()

    def lost(self) -> tuple[Path, ...]:
        """Files of Slurm that something has written anew since: none of setup's lines is left, and some of the file's
        own are."""
        found = []
        for name, record in self.files.items():
            path = Path(name)
            if self.state != "done" or not record.before or path.suffix != ".conf" or not path.is_file():
                continue
            had, wrote = _lines(self._copy(record.before)), _lines(self._copy(record.after[-1]))
            now = _lines(path.read_bytes())
            if wrote - had and now & had and not now & (wrote - had):
                found.append(path)
        return tuple(found)

    def restores(self, *, purge: bool = False) -> list[Restore]:
        """The effects of undoing on each file. Nothing is changed.

        Raises: ConfigError: files were edited since; the message has each edit as a diff."""
        found, edited, lost = list[Restore](), list[Change](), self.lost()
        for name, record in self.files.items():
            if record.own and not purge:
                continue
            path = Path(name)
            if path in lost:
                continue  # nothing of setup's is in it
            before = self._copy(record.before)
            now = path.read_bytes() if path.is_file() else None
            if now is not None and not record.own and _hash(now) not in (record.before, *record.after):
                edited.append(Change(path, self._copy(record.after[-1]), now))
            elif now != before:
                found.append(Restore(path, before, record.mode, (record.uid, record.gid)))
        if edited:
            names = [str(change.path) for change in edited]
            copies = ", ".join(str(self._place(self.files[name].before)) for name in names if self.files[name].before)
            raise ConfigError(
                f"edited since setup: {', '.join(names)}. Nothing was undone. Take the edits below out, or move each "
                "of these files away (mv FILE FILE.mine); run this again, and put your edits into what is there then"
                f"{f'; as before setup: {copies}' if copies else ''}\n{diff_of(edited)}"
            )
        return found

    def undo(self, restores: Iterable[Restore]) -> None:
        """Put the files back. May be killed and called again.

        Raises:
            ConfigError: a file cannot be written."""
        self.state = "undoing"
        self._write()
        self._sweep()
        for restore in restores:
            try:
                self._put(restore.path, restore.content, restore.mode, restore.owner)
            except OSError as error:
                raise ConfigError(
                    f"{restore.path}: cannot be written ({error.strerror}); run it again to go on"
                ) from None

    def remove_folders(self) -> None:
        """Remove the folders that were made, where they are empty."""
        for name in self.has("folder"):
            try:
                shutil.rmtree(Path(name) / "__pycache__", ignore_errors=True)  # of the hooks, which are Python
                Path(name).rmdir()
            except OSError:
                continue
            self.struck("folder", name)

    def forget(self, *, purge: bool) -> None:
        """Forget everything, since it is undone, except what a purge needs."""
        self.files = {name: record for name, record in self.files.items() if record.own and not purge}
        self.mode = ""
        if self.files or (self.made and not purge):
            self.state = "undone"
            self._write()
            used = {
                self._place(digest) for record in self.files.values() for digest in (record.before, *record.after)
            }
            for path in (self.folder / "files").iterdir():
                if path not in used:
                    path.unlink()
        else:
            self.state = "none"
            shutil.rmtree(self.folder)

    def _sweep(self) -> None:
        """Remove files that a killed run left half-written beside those that they were to replace."""
        for path in [*map(Path, self.files), self.folder / "manifest.json"]:
            for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                left.unlink(missing_ok=True)
        for left in (self.folder / "files").glob(".*.tmp"):
            left.unlink(missing_ok=True)

    def _remember(self, change: Change) -> None:
        name = str(change.path)
        record = self.files.get(name)
        if record is None:
            seen = change.path.stat() if change.before is not None else None
            record = self.files[name] = _Record(
                self._keep(change.before),
                [],
                change.mode if seen is None else seen.st_mode & 0o7777,
                0 if seen is None else seen.st_uid,
                0 if seen is None else seen.st_gid,
                change.own,
            )
        digest = self._keep(change.after)
        record.after = [*(old for old in record.after if old != digest), digest]

    def _place(self, digest: str) -> Path:
        return self.folder / "files" / digest

    def _keep(self, content: bytes | None) -> str:
        if content is None:
            return ""
        digest = _hash(content)
        write_atomic(self._place(digest), content, durable=True, mode=0o600)
        return digest

    def _copy(self, digest: str) -> bytes | None:
        """The kept copy, checked.

        Raises: ConfigError: it is not there, or was changed."""
        if not digest:
            return None
        try:
            content = self._place(digest).read_bytes()
        except OSError as error:
            raise ConfigError(f"{self._place(digest)}: cannot be read ({error.strerror}); run this as root") from None
        if _hash(content) != digest:
            raise ConfigError(f"{self._place(digest)}: is not what setup put there; nothing was undone")
        return content

    def _put(self, path: Path, content: bytes | None, mode: int, owner: tuple[int, int]) -> None:
        if content is None:
            path.unlink(missing_ok=True)
            return
        write_atomic(path, content, durable=True, mode=mode)
        os.chown(path, *owner)

    def _write(self) -> None:
        text = json.dumps(
            {
                "format": _FORMAT,
                "state": self.state,
                "mode": self.mode,
                "files": {name: asdict(record) for name, record in self.files.items()},
                "made": self.made,
            },
            indent=1,
        )
        write_atomic(self.folder / "manifest.json", text.encode(), durable=True, mode=0o600)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lines(content: bytes | None) -> set[bytes]:
    return {line.strip() for line in (content or b"").splitlines()} - {b""}
