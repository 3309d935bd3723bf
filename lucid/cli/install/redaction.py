"""Text without names: a word that Lucid does not use is replaced by a placeholder, always the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

__all__ = ["Redactor"]

_PATH = re.compile(r"(?<![\w/])(?:/[^\s\"'/]+)+/?")
_TOKEN = re.compile(r"[^\s\"'=:,;()\[\]{}<>|]+")
_NUMBER = re.compile(r"[-+~]?\d[\d.,:/%+-]*(?:[a-zA-Z]{1,3})?")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+.*")
_OWN = re.compile(r"[A-Za-z][A-Za-z_.-]*[A-Za-z]|[A-Za-z]")
_PUNCTUATION = re.compile(r"[-.!?*/%+~#&→…]*")


@cache
def _own_words() -> frozenset[str]:
    """Every word that stands in Lucid's own sources."""
    found: set[str] = set()
    left: list[Traversable] = [files("lucid")]
    while left:
        for item in left.pop().iterdir():
            if item.is_dir():
                left.append(item)
            elif item.name.endswith(".py"):
                found.update(word.lower() for word in _OWN.findall(item.read_text(encoding="utf-8")))
    return frozenset(found)


class Redactor:
    """Replaces names. ``known``: names by what they are (user, account, job-name, host, partition); they are replaced
    wherever they stand, also those that Lucid uses as words."""

    def __init__(self, known: Mapping[str, Iterable[str]]) -> None:
        self._told: dict[str, str] = {}
        self._made: set[str] = set()
        self._counts: dict[str, int] = {}
        names = {name: kind for kind, some in known.items() for name in some if name.strip()}
        for name, kind in names.items():
            self._placeholder(name, kind)
        plain = sorted(map(re.escape, names), key=len, reverse=True)
        # a short name is replaced only where it stands by itself
        parts = [one if len(one) > 3 else rf"(?<![\w-]){one}(?![\w-])" for one in plain]
        self._known = re.compile("|".join(parts)) if parts else None

    def text(self, text: str) -> str:
        """The text without names."""
        kept: list[str] = []
        at = 0
        for found in self._known.finditer(text) if self._known is not None else ():
            kept += [self._words(text[at : found.start()]), self._told[found[0]]]
            at = found.end()
        return "".join([*kept, self._words(text[at:])])

    def data(self, value: Any) -> Any:
        """The same of everything in it, of the keys, too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.data(item) for item in value]
        return value if isinstance(value, int | float | None) else self.text(str(value))

    def _words(self, text: str) -> str:
        text = _PATH.sub(lambda found: self._placeholder(found[0], "path"), text)
        return _TOKEN.sub(lambda found: self._word(found[0]), text)

    def _word(self, token: str) -> str:
        if _ADDRESS.fullmatch(token):
            return self._placeholder(token, "host")
        bare = token.strip(".!?*-_")
        if _PUNCTUATION.fullmatch(token) or _NUMBER.fullmatch(token) or bare.lower() in _own_words():
            return token
        if token in self._made:
            return token
        return self._placeholder(token, "word")

    def _placeholder(self, name: str, kind: str) -> str:
        if name not in self._told:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._told[name] = f"{kind}-{self._counts[kind]}"
            self._made.add(self._told[name])
        return self._told[name]
