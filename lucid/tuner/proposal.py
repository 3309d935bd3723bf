"""``Proposal``: a proposed change of settings with its evidence, as a TOML diff, and its application; ``tune``, which
makes one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from lucid.config.load import Settings, load_settings
from lucid.core.codec import from_json, to_json
from lucid.errors import ConfigError
from lucid.files import write_atomic
from lucid.simulator.scenario import Scenario
from lucid.tuner.evidence import Evidence, compare_days
from lucid.tuner.search import Dimension, Journal, Value, before, replay, search, split_time_s, value_at, with_values

_VERSION = 1
_NUMBER_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed change: from which settings to which, and the evidence. ``changes`` is empty where the search found
    nothing better."""

    trace: str
    changes: Mapping[str, Value]
    present: Mapping[str, Value]
    trials: int
    seed: int
    split_s: float
    found_gain: float
    """Relative change of the score on the data it was found on: always flattering."""
    evidence: Evidence | None

    @property
    def worth_it(self) -> bool:
        """Whether the gain survives on later data."""
        return bool(self.changes) and self.evidence is not None and self.evidence.survives


def changed_values(settings: Settings, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values that differ from the settings', numbers rounded to three significant digits: nobody wants to read
    ``0.8512077``, and no evidence is that fine."""
    found: dict[str, Value] = {}
    for key, value in values.items():
        rounded = float(f"{value:.{_NUMBER_DIGITS}g}") if isinstance(value, float) else value
        if rounded != value_at(settings, key):
            found[key] = rounded
    return found


def toml_diff(proposal: Proposal) -> str:
    """The change as TOML, with the present value beside each line."""
    tables: dict[str, list[str]] = {}
    for key, value in sorted(proposal.changes.items()):
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}  # now {proposal.present[key]}")
    return "\n".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items())


def save_proposal(path: Path, proposal: Proposal) -> None:
    """Write the proposal as JSON."""
    path.write_text(json.dumps({"version": _VERSION, **to_json(proposal)}, indent=1) + "\n", encoding="utf-8")


def load_proposal(path: Path) -> Proposal:
    """Read a proposal back.

    Raises:
        ConfigError: it is not there, or is not a proposal of this version."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("version") != _VERSION:
            raise ConfigError(f"{path}: a proposal of another version; run lucidctl tune again")
        return from_json(Proposal, data)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name a folder that lucidctl tune wrote"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: not a proposal; name a folder that lucidctl tune wrote") from None


def apply_proposal(proposal: Proposal, config: Path) -> Path | None:
    """Write the change into a configuration file, comments and order kept. The file as it was is kept beside it as
    ``<name>.before-tune-<n>``, whose path is returned (``None`` where there was no file).

    Raises: ConfigError: nothing to apply, the settings there are no longer those that the proposal was compared with,
    or the file cannot be read or written."""
    import tomlkit

    if not proposal.changes:
        raise ConfigError("the proposal changes nothing; there is nothing to apply")
    present = load_settings(config) if config.exists() else Settings()
    for key in proposal.changes:
        if value_at(present, key) != proposal.present[key]:
            raise ConfigError(
                f"{config}: {key} is {value_at(present, key)} now, and was {proposal.present[key]} when the proposal "
                "was made; run lucidctl tune again with this file"
            )
    with_values(present, proposal.changes)  # raises before anything is written
    document = tomlkit.parse(config.read_text(encoding="utf-8")) if config.exists() else tomlkit.document()
    for key, value in proposal.changes.items():
        *path, name = key.split(".")
        inner: Any = document
        for part in path:
            if part not in inner:
                inner[part] = tomlkit.table()
            inner = inner[part]
        inner[name] = value
    try:
        kept = None
        if config.exists():
            kept = config.with_name(f"{config.name}.before-tune-{len(_kept(config)) + 1}")
            shutil.copy2(config, kept)
        write_atomic(config, tomlkit.dumps(document).encode())
    except OSError as error:
        raise ConfigError(f"{config}: cannot be written ({error.strerror}); nothing was changed") from None
    return kept


def rollback(config: Path) -> Path:
    """Put back the configuration from before the last ``apply``; returns its path.

    Raises: ConfigError: there is none."""
    kept = _kept(config)
    if not kept:
        raise ConfigError(
            f"{config}: no earlier version beside it ({config.name}.before-tune-…); nothing to roll back"
        )
    kept[-1].replace(config)
    return kept[-1]


def _kept(config: Path) -> list[Path]:
    def number(path: Path) -> int:
        text = path.name.rpartition("-")[2]
        return int(text) if text.isdigit() else 0

    return sorted(config.parent.glob(f"{config.name}.before-tune-*"), key=number)


FOUND_SHARE = 0.6
"""Share of the jobs that the search may see; the rest judges what it found."""


def _about(scenario: Scenario, dimensions: Sequence[Dimension], seed: int) -> dict[str, Any]:
    """The key of a search, as JSON, by which it differs from others."""
    trace = scenario.trace
    return {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "until_s": trace.jobs[-1].job.submit_s,
        "vcs": dict(scenario.vcs or {}),
        "seed": seed,
        "settings": msgspec.json.decode(msgspec.json.encode(scenario.settings, order="deterministic")),
        "space": [[d.key, d.low, d.high, d.log, list(d.choices)] for d in dimensions],
    }


def tune(
    scenario: Scenario,
    dimensions: Sequence[Dimension],
    folder: Path,
    trials: int,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> Proposal:
    """Search, then compare the best found with the present settings on jobs submitted later, once. Only one candidate
    is tested on the later data, so that luck among many cannot pass for a gain.

    ``folder`` keeps the journal: called again with the same arguments, the search goes on where it stopped.

    Raises: ConfigError: the folder holds another search, or the history is too short to be divided."""
    trace, split_s = scenario.trace, split_time_s(scenario.trace, FOUND_SHARE)
    if split_s >= trace.jobs[-1].job.submit_s:
        raise ConfigError(f"{trace.name}: the history is too short to keep whole days for the judgement; give more")
    earlier = replace(scenario, trace=before(trace, split_s))
    journal = Journal(folder / "trials.jsonl", _about(scenario, dimensions, seed))
    best = search(earlier, dimensions, journal, trials, seed, workers, progress)
    present_s = journal.trials[0].score_s
    changes = changed_values(scenario.settings, best.values)
    present = {key: value_at(scenario.settings, key) for key in changes}
    evidence = None
    if changes:
        old = replay(scenario, scenario.settings).since(split_s)
        new = replay(scenario, with_values(scenario.settings, changes)).since(split_s)
        evidence = compare_days(old, new, seed)
    return Proposal(
        trace.name, changes, present, len(journal.trials), seed, split_s, best.score_s / present_s - 1.0, evidence
    )
