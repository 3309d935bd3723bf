"""``lucidctl models``: train, list, show, promote and roll back the learned models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lucid.cli.console import answer, progress, say, table
from lucid.cli.learn.evaluate import evaluate
from lucid.cli.options import PATH, Group
from lucid.config.load import Settings, library_folder, load_settings, own_job_log
from lucid.errors import ConfigError
from lucid.models.library import Library

if TYPE_CHECKING:
    from lucid.models.kind import Kind
    from lucid.models.kinds import Keeper, Outcome

_LIBRARY = "lucid-models"

_library = click.option(
    "--library",
    "folder",
    type=PATH,
    envvar="LUCID_MODELS",
    help=f"Folder of the versions. Default: LUCID_MODELS, else what --config says (lucidd's), else ./{_LIBRARY}.",
)
_config = click.option("--config", type=PATH, help="TOML settings; section [models].")
_json = click.option("--json", "as_json", is_flag=True, help="The same as JSON.")


@click.group(cls=Group)
def models() -> None:
    """Train, evaluate and choose the learned models."""


models.add_command(evaluate)


@models.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option(
    "--jobs",
    type=PATH,
    help="Log of finished jobs, or a trace: trains duration (and throughput, if asked).",
)
@click.option("--profiles", type=PATH, help="CSV of configurations measured alone.")
@click.option("--pairs", type=PATH, help="CSV of pairs; with --profiles trains share and pairs.")
@click.option("--bins", type=PATH, help="CSV of submissions per bin: trains throughput.")
@click.option(
    "--synthetic",
    is_flag=True,
    help="Train share and pairs on the synthetic table of the package. Use it until you have measured.",
)
@click.option("--due", is_flag=True, help="Train only what is due, for cron. Skips what is being trained already.")
@_library
@_config
@_json
def train(
    kinds: tuple[str, ...],
    synthetic: bool,
    due: bool,
    folder: Path | None,
    config: Path | None,
    as_json: bool,
    **given: Path | None,
) -> None:
    """Train each KIND and promote the new version if it is not worse on later data.

    KIND is duration, share, pairs or throughput. Default: every kind for which there is data."""
    if synthetic:
        if given["profiles"] is not None or given["pairs"] is not None:
            raise ConfigError("--synthetic replaces --profiles and --pairs; give one or the other")
        from lucid.models.packing.measured import shipped  # arrays, which only training needs

        given |= {"profiles": shipped("profiles.csv"), "pairs": shipped("pairs.csv")}
    keeper = _keeper(folder, config, given)
    wanted = kinds or (keeper.kinds if due else keeper.asked_for)
    if not wanted:
        raise ConfigError("nothing to train from; give --jobs, --profiles with --pairs, or --bins, or a --config")
    unknown = [kind for kind in wanted if kind not in keeper.kinds]
    if unknown:
        raise ConfigError(
            f"no data to train {', '.join(unknown)} from (there is data for: "
            f"{', '.join(keeper.kinds) or 'nothing'}); give --jobs, --profiles with --pairs, or --bins"
        )
    found: list[Outcome] = []
    with progress("training") as report:
        for number, kind in enumerate(wanted):
            report(number, len(wanted))
            found += keeper.tick(datetime.now(UTC), [kind]) if due else [_trained(keeper, kind)]
    answer([one.to_json() for one in found], as_json, ("\n".join(_outcome_lines(one)) for one in found))
    if any(outcome.trouble for outcome in found):
        click.get_current_context().exit(1)


@models.command()
@click.option("--jobs", type=PATH)
@click.option("--profiles", type=PATH)
@click.option("--pairs", type=PATH)
@click.option("--bins", type=PATH)
@_library
@_config
@_json
def status(folder: Path | None, config: Path | None, as_json: bool, **given: Path | None) -> None:
    """Show the drift of the models in service, and what 'train --due' would train now. Trains nothing."""
    keeper = _keeper(folder, config, given)
    with progress("measuring drift") as report:
        report(0, 1)
        found = keeper.status(datetime.now(UTC))
    suspended = {outcome.kind: keeper.library.suspended(outcome.kind) for outcome in found}
    data = [{**outcome.to_json(), "suspended": suspended[outcome.kind]} for outcome in found]
    columns = ("kind", "new", "error to fallback's", "input that moved most", "due", "why")
    rows = (_status_row(outcome, suspended[outcome.kind]) for outcome in found)
    answer(data, as_json, [table(columns, rows, title=f"models in {keeper.library.root}")])


@models.command("list")
@_library
@_config
@_json
def list_command(folder: Path | None, config: Path | None, as_json: bool) -> None:
    """List every version in the library, and which versions are in service."""
    library = _open(folder, config)
    versions = [version for name in library.names() for version in library.versions(name)]
    suspended = {name: library.suspended(name) for name in library.names()}
    rows = [
        {
            "name": version.name,
            "version": version.number,
            "created": version.created,
            "in_service": version.in_service,
            "suspended": suspended[version.name] if version.in_service else None,
            "facts": _shown_facts(version.facts),
        }
        for version in versions
    ]
    columns = ("name", "version", "created", "learned from", "loss", "in service then", "now")
    listed = table(columns, map(_version_cells, rows), title=f"models in {library.root}")
    none = f"{library.root}: no versions yet; train some with: lucidctl models train"
    answer(rows, as_json, [listed if versions else none])


def _version_cells(row: dict[str, Any]) -> list[str]:
    facts = row["facts"]
    now = ("suspended" if row["suspended"] else "in service") if row["in_service"] else ""
    learned, losses = str(facts.get("learned_from", "-")), (facts.get("loss"), facts.get("loss_in_service"))
    return [row["name"], f"v{row['version']}", row["created"], learned, *map(_loss, losses), now]


@models.command()
@click.argument("name")
@click.option("--version", "number", type=click.IntRange(min=1), help="Default: the one in service.")
@click.option("--plots", type=PATH, help="Folder for the model as one HTML page.")
@_library
@_config
@_json
def show(
    name: str, number: int | None, plots: Path | None, folder: Path | None, config: Path | None, as_json: bool
) -> None:
    """Print the model NAME: its terms by importance or its tree, its facts and its history."""
    from lucid.models.kinds import find_kind

    library = _open(folder, config)
    version = library.show(name, number)
    kind = find_kind(name)
    model = kind.read(version)
    drawn: list[Path] = []
    if plots is not None:
        with progress("drawing") as report:
            report(0, 1)
            drawn = write_page(kind, model, plots, {"version": version.number, **_shown_facts(version.facts)})
    facts = _shown_facts(version.facts)
    data = {
        "name": name,
        "version": version.number,
        "created": version.created,
        "in_service": version.in_service,
        "facts": facts,
        "trail": library.trail(name),
        "model": dict(version.data),
        "drawn": [str(path) for path in drawn],
    }
    words = (
        f"{name} v{version.number}, {version.created}{', in service' if version.in_service else ''}",
        *(f"  {key}: {value}" for key, value in facts.items()),
        text(kind, model),
        *(f"written: {path}" for path in drawn),
    )
    answer(data, as_json, words)


@models.command()
@click.argument("name")
@click.argument("number", type=click.IntRange(min=1), metavar="VERSION")
@click.option("--why", default="by hand", show_default=True, help="For the audit trail.")
@_library
@_config
def promote(name: str, number: int, why: str, folder: Path | None, config: Path | None) -> None:
    """Put VERSION of the model NAME into service."""
    _open(folder, config).promote(name, number, why)
    say(f"{name}: v{number} is in service")


@models.command()
@click.argument("name")
@click.option("--why", default="by hand", show_default=True, help="For the audit trail.")
@_library
@_config
def rollback(name: str, why: str, folder: Path | None, config: Path | None) -> None:
    """Put the previous version of the model NAME back into service."""
    number = _open(folder, config).rollback(name, why)
    say(f"{name}: v{number} is in service again")


def _settings(config: Path | None) -> tuple[Settings, Path]:
    return load_settings(config) if config else Settings(), config.parent if config else Path()


def _open(folder: Path | None, config: Path | None) -> Library:
    settings, base = _settings(config)
    return Library(folder or library_folder(settings, base) or Path(_LIBRARY))


def _keeper(folder: Path | None, config: Path | None, given: dict[str, Path | None]) -> Keeper:
    # Imported here: `list` and `promote` need none of the models.
    from lucid.models.kinds import Keeper, Source
    from lucid.models.packing.measured import read_pairs, read_profiles
    from lucid.models.throughput.bins import bins_of_jobs, read_bins
    from lucid.simulator.traces.window import read_finished

    whole, base = _settings(config)
    settings = whole.models
    paths: dict[str, Path | None] = {}
    for name, path in given.items():
        configured = getattr(settings, name)
        paths[name] = path or (base / configured if configured else None)
    if paths["jobs"] is None and whole.daemon.partitions and own_job_log(whole).exists():
        paths["jobs"] = own_job_log(whole)
    jobs, profiles, pairs, bins = (paths[name] for name in ("jobs", "profiles", "pairs", "bins"))
    if (profiles is None) != (pairs is None):
        raise ConfigError("--profiles and --pairs belong together: share scores are labelled by measured pairs")
    sources: dict[str, Source] = {}
    if jobs is not None:
        sources["jobs"] = Source(lambda: read_finished(jobs), str(jobs))
        sources["bins"] = Source(lambda: bins_of_jobs(read_finished(jobs)), str(jobs), implied=True)
    if bins is not None:
        sources["bins"] = Source(lambda: read_bins(bins), str(bins))
    if profiles is not None and pairs is not None:

        def measured() -> Any:
            usages = read_profiles(profiles)
            return usages, read_pairs(pairs, usages)

        sources["measured"] = Source(measured, f"{profiles}, {pairs}")
    return Keeper(_open(folder, config), sources)


def _trained(keeper: Keeper, kind: str) -> Outcome:
    from lucid.models.kinds import Outcome

    return Outcome(kind, None, None, keeper.train(kind))


def _outcome_lines(outcome: Outcome) -> list[str]:
    if outcome.trouble:
        return [f"{outcome.kind}: {outcome.trouble}"]
    lines = []
    if outcome.decision is not None:
        action = outcome.decision.action.value.replace("_", " ")
        lines.append(f"{outcome.kind}: {action} ({'; '.join(outcome.decision.reasons)})")
    if outcome.trained is not None:
        trained = outcome.trained
        what = "in service" if trained.promoted else "kept, not in service"
        lines.append(f"{outcome.kind}: v{trained.version} {what}: {trained.reason}; its own loss {trained.loss:.4g}")
    return lines


def _status_row(outcome: Outcome, suspended: str | None) -> list[str]:
    if outcome.evidence is None or outcome.decision is None:
        why = outcome.trouble or "; ".join(outcome.decision.reasons if outcome.decision else ())
        return [outcome.kind, "-", "-", "-", "-", why]
    drift = outcome.evidence.drift
    worst = drift.worst_input
    reasons = list(outcome.decision.reasons)
    if suspended is not None:
        reasons.append(f"suspended since: {suspended}")
    return [
        outcome.kind,
        f"{outcome.evidence.new_jobs:,}",
        "-" if drift.ratio is None else f"{drift.ratio:.3f}",
        "-" if worst is None else f"{worst[0]}, PSI {worst[1]:.2f}",
        outcome.decision.action.value.replace("_", " "),
        "; ".join(reasons),
    ]


def _shown_facts(facts: Any) -> dict[str, Any]:
    """Facts of a version without the long lists kept for later comparison."""
    return {key: value for key, value in facts.items() if key not in ("inputs", "learned")}


def _loss(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


_MOST_TERMS = 15


def text(kind: Kind[Any, Any], model: Any) -> str:
    """The model in words: additive parts by importance of their terms, the tree as indented text."""
    lines = kind.words(model)
    for title, unit, tables in kind.tables(model):
        lines.append(f"{title} (mean absolute contribution, {unit}); intercept {tables.intercept:.4g}")
        ranked = sorted(tables.terms, key=lambda term: -term.importance)
        lines += [f"  {term.importance:8.4f}  {term.name}" for term in ranked[:_MOST_TERMS]]
        if len(ranked) > _MOST_TERMS:
            lines.append(f"            and {len(ranked) - _MOST_TERMS} smaller terms")
    return "\n".join(lines)


def write_page(kind: Kind[Any, Any], model: Any, folder: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Write the model as one HTML page, and return its path; nothing for a model without tables."""
    from lucid.models.packing.share_score import ShareTree
    from lucid.models.page import additive_page, tree_page  # loads jinja2, which only pages need

    page = folder / f"{kind.name}.html"
    if isinstance(model, ShareTree):
        tree_page(model, page, f"Model {kind.name}", facts)
        return [page]
    parts = kind.tables(model)
    if not parts:
        return []
    (title, unit, tables), *more = parts
    additive_page(tables, page, title, unit, facts, more)
    return [page]
