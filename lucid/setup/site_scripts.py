"""``SiteScripts``: a site's own prologs and epilogs in pack mode, and the choice when each runs.

node.conf records when each script runs; ``slurm/lucid_hooks/site.py`` runs them by it."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHOICES = ("first-last", "not-guests", "always")
_INSPECTS = re.compile(
    r"nvidia-smi|/dev/nvidia\w*|dcgm\w*|rocm-smi|\bSLURM_(?:JOB|STEP)_GPUS\b|\bCUDA_VISIBLE_DEVICES\b"
    r"|\b(?:GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES)\b|/proc/|\b(?:pgrep|pkill|killall|fuser|lsof|kill|ps)\b(?=\s)"
)
_PATHS = re.compile(
    r"(?<![\w./$}-])/(?!(?:usr|bin|sbin|lib|lib64|proc|dev|sys|run|tmp|var)\b|etc\b/?(?!/?\w))[\w./+-]+"
)
"""Files and folders that a script names, without the system's own."""
_MOST_BYTES, _MOST_FILES = 1 << 18, 50


@dataclass(frozen=True, slots=True)
class SiteScripts:
    """The record in node.conf: the patterns that stood in ``Prolog=`` and ``Epilog=``, and the choices, by script or
    pattern."""

    prolog: Sequence[str] = ()
    epilog: Sequence[str] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> SiteScripts:
        """The record in the text of node.conf."""
        found = re.findall(r"^site-(prolog|epilog|run)[ \t]+(.*\S)", text, re.MULTILINE)
        runs = [words for kind, value in found if kind == "run" and len(words := value.split(None, 1)) == 2]
        prolog, epilog = ([value for kind, value in found if kind == which] for which in ("prolog", "epilog"))
        return cls(prolog, epilog, {script: choice for choice, script in runs})

    def written(self, text: str) -> str:
        """The text of node.conf with this record. All its other lines stay as they are."""
        if self == SiteScripts.read(text):
            return text
        lines = text.splitlines(keepends=True)
        kept = "".join(line for line in lines if not re.match("site-(prolog|epilog|run)[ \t]", line))
        lines = [f"site-prolog {one}" for one in self.prolog] + [f"site-epilog {one}" for one in self.epilog]
        lines += [f"site-run {choice} {script}" for script, choice in self.choices.items()]
        return kept + "\n" * (not kept.endswith("\n")) + "".join(f"{line}\n" for line in lines)

    def named(self, root: Path) -> set[str]:
        """The patterns and the scripts that a choice may name."""
        patterns = {*self.prolog, *self.epilog}
        return patterns | {script for one in patterns for script in _scripts(root, one)}

    def unchosen(self, root: Path) -> Iterator[tuple[str, str]]:
        """Scripts that look for processes or GPUs, without a choice, and the words that show it."""
        for pattern in dict.fromkeys([*self.prolog, *self.epilog]):
            for script, words in looking(root, pattern):
                if not {script, pattern} & self.choices.keys():
                    yield script, words


def looking(root: Path, pattern: str) -> Iterator[tuple[str, str]]:
    """The scripts of a pattern that look for processes or GPUs, themselves or in a file that they name, and the words
    that show it. A script that cannot be read here counts as one."""
    found = _scripts(root, pattern)
    if not found:
        yield pattern, "it is not on this host, so that nobody looked into it"
    for script in found:
        texts: dict[Path, str | None] = {}
        first = root / script.lstrip("/")
        _read(root, first, texts)
        words = sorted({word for text in texts.values() for word in _INSPECTS.findall(text or "")})
        if words or texts[first] is None:
            yield script, ", ".join(words[:4]) or "it cannot be read as text"


def _scripts(root: Path, pattern: str) -> list[str]:
    found = glob.glob(str(root / pattern.lstrip("/")))  # noqa: PTH207 - of a whole path
    return sorted(f"/{Path(name).relative_to(root)}" for name in found)


def _read(root: Path, path: Path, texts: dict[Path, str | None]) -> None:
    """Put the lines of a script, and of the files that it names, that are no comments into *texts*; ``None`` where it
    is no text."""
    if path in texts or len(texts) >= _MOST_FILES:
        return
    texts[path] = None
    try:
        with path.open("rb") as file:
            whole = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    if "\0" in whole:
        return
    text = texts[path] = "\n".join(line for line in whole.splitlines() if not line.lstrip().startswith("#"))
    for named in dict.fromkeys(_PATHS.findall(text)):
        below = root / named.lstrip("/")
        for each in sorted(below.iterdir()) if below.is_dir() else [below]:
            if each.is_file():
                _read(root, each, texts)
