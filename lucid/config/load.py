"""``Settings``, the whole of ``lucid.toml``: reading the file, and errors that name line and nearest key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from lucid.config.live import DaemonSettings, ModelSettings, SlurmSettings
from lucid.config.other import EfficiencySettings, WebSettings
from lucid.config.policy import OverheadSettings, PolicySettings
from lucid.config.section import Section, defaults, is_fixed, of_simulations
from lucid.errors import ConfigError, did_you_mean
from lucid.places import Mode

OF_SIMULATIONS = (
    "lucidd does not read such settings of simulations; move them into a file of their own, and give that to "
    "lucidctl simulate --config"
)


_FOLLOWS_LOAD = "jobs share by how long nobody has waited in their VC; policy.packing.when_calm = true ends that"
_GONE = {f"policy.packing.{key}": _FOLLOWS_LOAD for key in ("dynamic", "harmless_pair_speed", "horizon_h", "calm_s")}
_NOBODY = "no site set it, and no measurement asked for another value; it is fixed at what its default was"
_GONE |= dict.fromkeys(
    (
        *(f"efficiency.{key}" for key in ("light_util", "light_mem", "limit_share", "limit_jobs", "limit_unused_h")),
        *("policy.profiling.cold_start_factor", "web.plan_every_s"),
        *("policy.muri.split_pairs", "policy.muri.resources", "models.monotone", "daemon.gpu_health.start_over"),
        "daemon.site_factor_bound",
    ),
    _NOBODY,
)
_TAKEN_OUT = {
    "policy.packing.sweep_most": "delete the line; two tasks of an array share a GPU as any pair does",
    "policy.idle": "delete the section; lucidctl efficiency lists idle jobs",
    "policy.before_windows": "delete the section",
    "idle": "delete the section; lucidctl efficiency lists idle jobs, and tells and cancels nobody",
    "daemon.optout": "delete the line; what Lucid cannot order in detail waits behind the jobs that came earlier",
    "web.connections_per_client": "delete the line; limit_conn of nginx keeps clients apart",
    "policy.sia": "delete the section, and run the policy pollux",
    "tuner": "delete the section, and run lucidctl tune search from cron",
    "daemon.oom_grow_gib": "lucidctl explain says what a job that ended out of memory should ask for",
    **dict.fromkeys(
        ("slurm.rest_url", "slurm.rest_token_file", "slurm.rest_commands"),
        'slurm.client = "command", and slurm.prefix where Slurm is on another host',
    ),
    "policy.sleep": "delete the section; a node is woken at once for a job that needs it",
    "policy.lending.longest_s": "delete the line; any job may borrow",
    "policy.lending.large": "delete the line; any job may borrow",
    "policy.lending.bound_s": "policy.fairness.beyond_plain_s bounds waiting in pools as well",
    "slurm.keep_awake": "delete the line; SuspendExcNodes in slurm.conf keeps nodes awake",
}
_GONE |= {key: f"taken out (docs/decisions/0070-taken-out.md); {remedy}" for key, remedy in _TAKEN_OUT.items()}
"""Settings of earlier versions, and what stands in their place."""

_S = TypeVar("_S", bound=Section)


class Settings(Section):
    """The whole of ``lucid.toml``."""

    policy: PolicySettings = defaults(PolicySettings)
    overheads: OverheadSettings = defaults(OverheadSettings, policy="")
    models: ModelSettings = defaults(ModelSettings)
    slurm: SlurmSettings = defaults(SlurmSettings)
    daemon: DaemonSettings = defaults(DaemonSettings)
    web: WebSettings = defaults(WebSettings)
    efficiency: EfficiencySettings = defaults(EfficiencySettings)


def own_job_log(settings: Settings) -> Path:
    """The log of finished jobs that lucidd writes."""
    return Path(settings.daemon.state_dir) / "jobs.csv"


def settings_from(data: dict[str, Any], where: str, text: str = "") -> Settings:
    """Settings from a mapping. ``where`` names its source in errors; ``text`` is the file that it was read from, if
    any, whose lines errors name, and which may set nothing that is fixed.

    Raises: ConfigError: naming the key, the value, what was expected, and for an unknown key the known ones."""
    try:
        settings = _valid(data)
    except ValidationError as error:
        lines = [_line_of(item["loc"], text) + _explain(dict(item)) for item in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None
    if text and (keys := [*_fixed_keys(settings, "")]):
        lines = [_line_of(tuple(key.split(".")), text) + f"{key!r} is gone: {_NOBODY}" for key in keys]
        raise ConfigError(f"{where}: " + "; ".join(lines))
    for key in ("state_dir", "heartbeat", "profiles_dir"):
        value = getattr(settings.daemon, key)
        if "\0" in value:
            raise ConfigError(f"{where}: daemon.{key} = {value!r}: no path has a NUL in it; write another")
        if value and not Path(value).is_absolute():
            raise ConfigError(
                f"{where}: daemon.{key} = {value!r}: write a path that begins with /; lucidd and lucidctl start "
                "in different folders, and would each look in their own"
            )
    packs = [name for name, mode in settings.daemon.partitions.items() if mode is Mode.PACK]
    if packs and not settings.slurm.packs:
        raise ConfigError(f"{where}: daemon.partitions.{packs[0]} = 'pack', but {settings.slurm.not_packed}")
    return settings


def _fixed_keys(section: BaseModel, table: str) -> Iterator[str]:
    """The keys that were set and that no file may set."""
    for name in sorted(section.model_fields_set):
        key, value = f"{table}.{name}".lstrip("."), getattr(section, name)
        if is_fixed(type(section), name):
            yield key
        elif isinstance(value, BaseModel):
            yield from _fixed_keys(value, key)


def still_there(data: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Settings that an earlier version wrote down, without those that have gone since."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: still_there(value, kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else value
        for name, value in data.items()
        if (kind := kinds.get(name)) is not None
    }


def _valid(data: dict[str, Any]) -> Settings:
    """The settings as from ``Settings.model_validate``, but only sections that differ from the defaults are
    compiled."""
    try:
        return _read(Settings, data)
    except ValidationError:
        return Settings.model_validate(data)  # says all that is wrong, with whole keys


def _read(section: type[_S], data: dict[str, Any]) -> _S:
    values: dict[str, Any] = {}
    for key, value in data.items():
        field = section.model_fields.get(key)
        kind = None if field is None else field.annotation
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
            values[key] = _read(kind, value)
        elif field is not None and value == (default := field.get_default(call_default_factory=True)):
            values[key] = default
        else:
            return section.model_validate(data)
    return cast("_S", section.model_construct({*data}, **values))


def _line_of(loc: tuple[int | str, ...], text: str) -> str:
    """``line 7: `` of a key in a file; empty where it is not found simply."""
    path = [str(part) for part in loc]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\]]*?)\s*\]", line)
        if header:
            table = [part.strip(" \"'") for part in header[1].split(".")]
        key = table if header else [*table, *(p.strip(" \"'") for p in line.partition("=")[0].split("."))]
        if path[: len(key)] == key and (len(key) == len(path) or not header):
            return f"line {number}: "
    return ""


def _explain(item: dict[str, Any]) -> str:
    path = [str(part) for part in item["loc"]]
    if item["type"] == "extra_forbidden":
        gone = _GONE.get(".".join(path))
        if gone is not None:
            return f"{'.'.join(path)!r} is gone: {gone}"
        known = _keys_at(path[:-1])
        hint = did_you_mean(path[-1], known)
        return f"unknown key {'.'.join(path)!r}{hint} (known here: {', '.join(known)})"
    given, says = repr(item["input"]), item["msg"].removeprefix("Value error, ")
    return f"{'.'.join(path)} = {given if len(given) <= 200 else given[:200] + '…'}: {says}"


def _keys_at(path: list[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in path:
        inner = model.model_fields[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [key for key in model.model_fields if not is_fixed(model, key)]


def simulation_keys(settings: Settings) -> list[str]:
    """The keys that were set and that lucidd does not read, as ``policy.muri.unpack``."""
    policies = {name.partition("-")[0] for name in (settings.daemon.policy, *settings.daemon.policies.values())}
    return [*_simulation_keys(settings, policies, "", simulated=False)]


def _simulation_keys(section: BaseModel, policies: set[str], table: str, *, simulated: bool) -> Iterator[str]:
    for name in sorted(section.model_fields_set):
        key, value, only = f"{table}.{name}".lstrip("."), getattr(section, name), of_simulations(type(section), name)
        refused = simulated or (only is not None and (not only or only not in policies))
        if isinstance(value, BaseModel):
            yield from _simulation_keys(value, policies, key, simulated=refused)
        elif refused:
            yield key


def load_settings(path: Path, *, live: bool = False) -> Settings:
    """Read ``lucid.toml``. ``live``: for lucidd.

    Raises: ConfigError: the file cannot be read, is not TOML, or holds a wrong or unknown key, or for lucidd a key of
    simulations."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give --config an existing file") from None
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8, and numbers of 5,000 digits
        raise ConfigError(f"{path}: not valid TOML: {error}; mend it, then: lucidctl doctor") from None
    settings = settings_from(data, str(path), text)
    if live and (keys := simulation_keys(settings)):
        lines = [_line_of(tuple(key.split(".")), text) + key for key in keys]
        raise ConfigError(f"{path}: {', '.join(lines)}: {OF_SIMULATIONS}")
    return settings
