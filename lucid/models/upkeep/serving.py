"""Which versions serve: for every kind the one in service, or its replacement and the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lucid.core.frozen import dataclass
from lucid.errors import ModelError
from lucid.models.upkeep.kind import Kind, Stored
from lucid.models.upkeep.kinds import KINDS
from lucid.models.upkeep.library import Library

__all__ = ["Served", "Serving"]

M = TypeVar("M", bound=Stored)


@dataclass(frozen=True, slots=True)
class Serving:
    """What answers for one kind: a version (``v3``), or its replacement, and ``why``. ``trouble``: a version
    is in service and cannot be used."""

    version: str
    why: str
    trouble: bool = False


class Served:
    """The versions of a library that serve, read once. A version that does not check is passed over."""

    def __init__(self, library: Library, kinds: Sequence[Kind[Any, Any]] = KINDS) -> None:
        self._library = library
        self._models: dict[str, Any] = {}
        self.serving: Mapping[str, Serving] = {kind.name: self._look(kind) for kind in kinds}
        """By name of the kind."""

    def model(self, kind: Kind[M, Any]) -> M | None:
        """The model of the version in service; ``None`` where its replacement answers."""
        return self._models.get(kind.name)

    def version(self, kind: Kind[Any, Any]) -> str:
        """What answers for a kind, as explanations name it."""
        return self.serving[kind.name].version

    def _look(self, kind: Kind[Any, Any]) -> Serving:
        library = self._library
        try:
            number, suspended = library.serving(kind.name), library.suspended(kind.name)
            if number is None:
                return Serving(kind.stand_in, f"no version in {library.root}")
            if suspended is not None:
                return Serving(kind.stand_in, f"v{number} is suspended: {suspended}")
            self._models[kind.name] = kind.for_service(kind.read(library.show(kind.name)))
        except ModelError as error:
            return Serving(kind.stand_in, str(error), trouble=True)
        except Exception as error:  # a version that does not check, whatever is wrong with it
            return Serving(kind.stand_in, f"{type(error).__name__}: {error}", trouble=True)
        return Serving(f"v{number}", self._promoted(kind.name, number))

    def _promoted(self, name: str, number: int) -> str:
        """Why this version serves, from the library's own trail."""
        try:
            trail = self._library.trail(name)
            return next(
                (
                    str(entry["why"])
                    for entry in reversed(trail)
                    if entry["version"] == number and entry["action"] in ("promote", "rollback")
                ),
                "",
            )
        except Exception as error:  # the trail explains, and no more
            return str(error)
