"""``Library``: model versions on disk: readable JSON, checked on load, promoted with care, with an audit trail::

    <root>/<name>/v0001.json      one version: the model, its facts, a SHA-256 of both
    <root>/<name>/service.json    which version is in service, and the one before it
    <root>/<name>/suspended.json  there while the version in service is suspended: its stand-in answers
    <root>/<name>/audit.jsonl     one line per action: time, action, version, why
    <root>/train.lock             held while a training runs

Every file is written whole or not at all (temporary file, fsync, rename, fsync of the folder), in an order in which a
crash between any two steps leaves the model in service as it was: a version first, then its promotion, then the audit
line. Nothing is pickled; a file that does not check is refused, never half used."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from msgspec import Struct

from lucid.core.codec import from_others, to_json
from lucid.errors import ModelError
from lucid.files import write_atomic

FORMAT: Final = "lucid-model-version/1"


class StoredModel(Struct, frozen=True, tag_field="format"):
    """Base of all models that are stored. Each names its format by its ``tag``, and checks itself: in
    ``__post_init__``, and by the types of its fields."""

    def to_json(self) -> dict[str, Any]:
        """The model as JSON-ready data; `from_json` gives an equal model back (floats survive exactly)."""
        data: dict[str, Any] = to_json(self)
        return data

    @classmethod
    def from_json(cls, data: object, *, source: str = "model") -> Self:
        """Check and build; `source` is the file or place that messages name.

        Raises:
            ModelError: anything that does not make a consistent model, naming where and what to do."""
        try:
            return from_others(cls, data)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{source}: {error}; train the model again or restore an earlier version") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a part.

    Raises:
        ModelError: the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), durable=True, mode=0o600)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error}); check space and permissions") from error


def read_version(path: Path) -> dict[str, Any]:
    """One stored version: when it was created, its facts, the model's own data.

    Raises:
        ModelError: the file is absent, is no version, or was changed since it was written."""
    content = read_json(path)
    kinds = {"created": str, "facts": dict, "data": dict}
    if content.get("format") != FORMAT or any(not isinstance(content.get(k), t) for k, t in kinds.items()):
        raise ModelError(f"{path}: is not a {FORMAT} file; restore it, or roll back to another version")
    if content.get("sha256") != digest({key: content[key] for key in kinds}):
        raise ModelError(
            f"{path}: was changed or damaged (checksum differs); restore it, or roll back to another version"
        )
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        ModelError: the file is absent, or holds no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such version; `lucidctl models list` shows those there are") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); restore it, or roll back") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: is not a JSON object; restore it, or roll back to another version")
    return content


def digest(body: Mapping[str, Any]) -> str:
    """The checksum that is stored with a version."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8")).hexdigest()


M = TypeVar("M")

_SERVICE_FORMAT: Final = "lucid-model-service/1"
_SUSPENDED: Final = "suspended.json"
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_FILE: Final = re.compile(r"v(\d{4,})\.json")


class TrainingRuns(ModelError):
    """Another training holds the library's lock; it serves the same purpose, so skip or wait."""


class Version(Struct, frozen=True):
    """One stored version: `data` is the model's own JSON, `facts` what was known when it was stored."""

    name: str
    number: int
    created: str  # ISO 8601, UTC
    facts: Mapping[str, Any]
    data: Mapping[str, Any]
    in_service: bool = False


class Trained(Struct, frozen=True):
    """Outcome of `Library.train`: the new version, both losses on later data, and whether it was promoted."""

    version: int
    loss: float
    loss_in_service: float | None
    promoted: bool
    reason: str


class Library:
    """Versions of named models under `root`; `clock` gives the time (UTC) for the trail."""

    def __init__(self, root: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.root = root
        self._clock = clock

    def names(self) -> list[str]:
        """Names that have at least one version."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if _NAME.fullmatch(p.name) and self._numbers(p.name))

    def versions(self, name: str) -> list[Version]:
        """All versions of a name, oldest first.

        Raises:
            ModelError: a file does not check."""
        return [self.show(name, number) for number in self._numbers(name)]

    def show(self, name: str, number: int | None = None) -> Version:
        """One version; without a number the one in service.

        Raises:
            ModelError: there is none, or its file does not check."""
        serving = self.serving(name)
        if number is None:
            number = serving
        if number is None:
            raise ModelError(f"{self._folder(name)}: no version of {name} is in service; train and promote one")
        path = self._path(name, number)
        content = read_version(path)
        return Version(name, number, content["created"], content["facts"], content["data"], number == serving)

    def serving(self, name: str) -> int | None:
        """Number of the version in service, or None."""
        return self._service(name)[0]

    def add(self, name: str, data: Mapping[str, Any], facts: Mapping[str, Any]) -> int:
        """Store a version without promoting it; returns its number."""
        numbers = self._numbers(name)
        number = numbers[-1] + 1 if numbers else 1
        body = {
            "created": self._clock().isoformat(timespec="seconds"),
            "facts": dict(facts),
            "data": dict(data),
        }
        sealed = {"format": FORMAT, "sha256": digest(body), **body}
        write_whole(self._path(name, number), json.dumps(sealed, indent=1) + "\n")
        self._record(name, "add", number, "stored")
        return number

    def promote(self, name: str, number: int, why: str = "by hand") -> None:
        """Put a version into service.

        Raises:
            ModelError: there is no such version, or its file does not check."""
        self.show(name, number)
        before, _ = self._service(name)
        self._serve(name, number, before if before != number else self._service(name)[1])
        self._record(name, "promote", number, why)

    def rollback(self, name: str, why: str = "by hand") -> int:
        """Put the version before the one in service back; returns its number.

        Raises:
            ModelError: there is none to go back to, or its file does not check."""
        now, before = self._service(name)
        if before is None:
            raise ModelError(f"{self._folder(name)}: no earlier version of {name} was in service; promote one")
        self.show(name, before)
        self._serve(name, before, now)
        self._record(name, "rollback", before, f"{why}; was v{now}")
        return before

    def suspend(self, name: str, why: str) -> None:
        """Let the stand-in answer instead of the version in service, until a version is promoted (or rolled
        back to) again; a second suspension changes nothing."""
        if self.suspended(name) is None:
            write_whole(self._folder(name) / _SUSPENDED, json.dumps({"why": why}, ensure_ascii=False) + "\n")
            self._record(name, "suspend", self.serving(name) or 0, why)

    def suspended(self, name: str) -> str | None:
        """Why the version in service is suspended, or None where it is not.

        Raises:
            ModelError: the file that says so cannot be read."""
        path = self._folder(name) / _SUSPENDED
        return str(read_json(path).get("why", "")) if path.exists() else None

    def trail(self, name: str) -> list[dict[str, Any]]:
        """The audit trail, oldest first; a last line torn by a crash is left out.

        Raises:
            ModelError: a line before the last is not JSON."""
        path = self._folder(name) / "audit.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        entries = []
        for number, line in enumerate(lines, start=1):
            try:
                if line:
                    entries.append(json.loads(line))
            except ValueError:
                if number < len(lines):
                    raise ModelError(f"{path}, line {number}: is not JSON; repair or remove the line") from None
        return entries

    def train(
        self,
        name: str,
        fit: Callable[[], M],
        dump: Callable[[M], Mapping[str, Any]],
        load: Callable[[Mapping[str, Any]], M],
        loss: Callable[[M], float],
        facts: Mapping[str, Any] | None = None,
        *,
        most: float = math.inf,
        final: Callable[[], M] | None = None,
    ) -> Trained:
        """Fit, judge on later data beside the model in service, store, and promote if not worse.

        `loss` must use data later than any that `fit` saw; lower is better. A loss above `most` is never promoted. A
        model in service that no longer loads counts as beaten. `final` fits the model that is stored, if that is to
        learn from the judging data too; without it the judged model is stored.

        Raises: TrainingRuns: another training holds the lock. ModelError: the new model has no loss, or cannot be
        stored."""
        with self.training():
            model = fit()
            # Judged as it will be loaded, so that what is promoted is known to survive storage.
            data = json.loads(json.dumps(dump(model)))
            new = float(loss(load(data)))
            if new != new:
                raise ModelError(f"{self._folder(name)}: the new {name} has no loss (nan); nothing was stored")
            old, trouble = self._loss_in_service(name, load, loss)
            if final is not None:
                data = json.loads(json.dumps(dump(final())))
                load(data)
            number = self.add(name, data, {**(facts or {}), "loss": new, "loss_in_service": old})
            if old is None:
                reason = trouble or "no version was in service"
            else:
                reason = f"loss {new:.6g}, in service {old:.6g} on the same later data"
            promoted = (old is None or new <= old) and new <= most
            if new > most:
                reason = f"loss {new:.6g}, at most {most:g} is promoted"
            if promoted:
                self.promote(name, number, reason)
            else:
                self._record(name, "keep", number, f"not promoted: {reason}")
            return Trained(number, new, old, promoted, reason)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Hold the one training lock of this library.

        The kernel drops the lock when its holder dies, so a lock file left behind never blocks anybody.

        Raises:
            TrainingRuns: it is held by another process or thread."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "train.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 64, 0).decode("ascii", "replace").strip() or "unknown"
                raise TrainingRuns(
                    f"{path}: another training runs (process {holder}); wait for it or stop that process"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode("ascii"), 0)
            yield
        finally:
            os.close(handle)

    def _loss_in_service(
        self, name: str, load: Callable[[Mapping[str, Any]], M], loss: Callable[[M], float]
    ) -> tuple[float | None, str]:
        if self.serving(name) is None:
            return None, ""
        try:
            value = float(loss(load(self.show(name).data)))
        except ModelError as error:
            return None, f"the version in service cannot be used: {error}"
        return (value, "") if value == value else (None, "the version in service has no loss (nan)")

    def _service(self, name: str) -> tuple[int | None, int | None]:
        path = self._folder(name) / "service.json"
        if not path.exists():
            return None, None
        content = read_json(path)
        now, before = content.get("version"), content.get("before")
        if content.get("format") != _SERVICE_FORMAT or not isinstance(now, int) or isinstance(now, bool):
            raise ModelError(f"{path}: does not say which version is in service; promote one again")
        return now, before if isinstance(before, int) else None

    def _serve(self, name: str, number: int, before: int | None) -> None:
        content = {"format": _SERVICE_FORMAT, "version": number, "before": before}
        write_whole(self._folder(name) / "service.json", json.dumps(content) + "\n")
        (self._folder(name) / _SUSPENDED).unlink(missing_ok=True)

    def _record(self, name: str, action: str, number: int, why: str) -> None:
        entry = {
            "time": self._clock().isoformat(timespec="seconds"),
            "action": action,
            "version": number,
            "why": why,
        }
        path = self._folder(name) / "audit.jsonl"
        with path.open("ab+") as file:
            # A crash may have torn the last line: it was never completed, so it goes.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.write((json.dumps(entry) + "\n").encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())

    def _numbers(self, name: str) -> list[int]:
        folder = self._folder(name)
        if not folder.is_dir():
            return []
        return sorted(int(match[1]) for path in folder.iterdir() if (match := _FILE.fullmatch(path.name)))

    def _path(self, name: str, number: int) -> Path:
        return self._folder(name) / f"v{number:04d}.json"

    def _folder(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            known = ", ".join(sorted(p.name for p in self.root.glob("*/"))) if self.root.is_dir() else ""
            raise ModelError(f"{name!r} is no name of a model (small letters, digits, _ and -); known: {known}")
        return self.root / name
