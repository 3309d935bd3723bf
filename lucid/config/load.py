"""``Settings``, the whole of ``lucid.toml``: reading the file, and errors that name line and nearest key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args, get_origin

import msgspec

from lucid.config.live import DaemonSettings, EfficiencySettings, ModelSettings, SlurmSettings, WebSettings
from lucid.config.policy import OverheadSettings, PolicySettings
from lucid.config.section import STUDY, Section, allowed, is_table, keys_of
from lucid.errors import ConfigError, did_you_mean
from lucid.places import Mode

OF_SIMULATIONS = (
    "lucidd does not read such settings of simulations; move them into a file of their own, and give that to "
    "lucidctl simulate --config"
)


_FOLLOWS_LOAD = "jobs share by how long nobody has waited in their VC; policy.packing.when_calm = true ends that"
_GONE = {f"policy.packing.{key}": _FOLLOWS_LOAD for key in ("dynamic", "harmless_pair_speed", "horizon_h", "calm_s")}
_NOBODY = "no site set it, and no measurement asked for another value; it is fixed at what its default was"
_FIXED = {
    "efficiency": "light_util light_mem limit_share limit_jobs limit_unused_h days idle_start_s empty_s "
    "least_measured least_gpu_h",
    "web": "plan_every_s rows",
    "models": "monotone new_jobs most_age_days",
    "slurm": "start_tries",
    "daemon": "site_factor_bound reuse_profiles_days record_every_s",
    "daemon.gpu_health": "start_over most_of_node return_after_s placeholder_s",
    "policy": "remainder_on_emptiest restart_overhead_s",
    "policy.profiling": "cold_start_factor users_in_turn overflow_most_s burst_wait_s least_t_prof_s",
    "policy.packing": "partner waiting_pair_work part_below_speed priority_ratio mps unparted_harm",
    "policy.reservation": "above_gpus after_wait_s oldest_after_s patience_s most_share",
    "policy.fairness": "keep_from half_life_s",
    "policy.backfill": "calc_period_s limit_factor least_limit_s",
    "policy.tiresias": "interval_s placement",
    "policy.muri": "split_pairs resources group_size ordering matching unpack overheads patience_s",
    "policy.pollux": "restart_s avoid_interference population generations patience greedy_seeds seed",
    "policy.optimus": "epochs_left seed",
    "overheads": "preempt_small_s preempt_large_s elastic_start_s",
}
_GONE |= {f"{table}.{key}": _NOBODY for table, keys in _FIXED.items() for key in keys.split()}
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

SIMULATED: Final = {
    "overheads": "",
    "policy.packing.same_user_only": "",
    "policy.fairness.shares": "",
    **{f"policy.{name}": name for name in ("tiresias", "muri", "pollux", "optimus")},
}
"""Keys and tables of simulations, each with the policy that lucidd reads it for, if any."""


class Settings(Section, frozen=True, kw_only=True):
    """The whole of ``lucid.toml``."""

    policy: PolicySettings = PolicySettings()
    overheads: OverheadSettings = OverheadSettings()
    models: ModelSettings = ModelSettings()
    slurm: SlurmSettings = SlurmSettings()
    daemon: DaemonSettings = DaemonSettings()
    web: WebSettings = WebSettings()
    efficiency: EfficiencySettings = EfficiencySettings()
    given: Annotated[frozenset[str], STUDY] = frozenset()
    """The keys that were set, as ``policy.packing.gss``."""

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy in which these values are set, by dotted key."""
        return msgspec.structs.replace(super().changed(values), given=self.given | values.keys())


def own_job_log(settings: Settings) -> Path:
    """The log of finished jobs that lucidd writes."""
    return Path(settings.daemon.state_dir) / "jobs.csv"


def library_folder(settings: Settings, base: Path) -> Path | None:
    """The folder of model versions, ``None`` where no setting names one. ``base``: the folder of lucid.toml."""
    if settings.models.library:
        return base / settings.models.library
    return Path(settings.daemon.state_dir) / "models" if settings.daemon.partitions else None


def profiles_folder(settings: Settings) -> Path:
    """The folder of samplers' summaries."""
    return Path(settings.daemon.profiles_dir or Path(settings.daemon.state_dir) / "profiles")


def settings_from(data: Mapping[str, Any], where: str, text: str = "") -> Settings:
    """Settings from a mapping. ``where`` names its source in errors; ``text`` is the file that it was read from, if
    any, whose lines errors name, and which may not set what only a study sets.

    Raises: ConfigError: all that is wrong, each with the key, the value, what is allowed, and for an unknown key the
    known ones."""
    reader = _Reader(of_file=bool(text))
    settings: Settings = msgspec.structs.replace(reader.section(Settings, data), given=frozenset(reader.given))
    _check_paths(settings.daemon, reader)
    packs = [name for name, mode in settings.daemon.partitions.items() if mode is Mode.PACK]
    if packs and not settings.slurm.packs:
        key = ("daemon", "partitions", packs[0])
        reader.refuse(key, f"{'.'.join(key)} = 'pack', but {settings.slurm.not_packed}")
    if reader.wrong:
        raise ConfigError(f"{where}: " + "; ".join(_line_of(key, text) + why for key, why in reader.wrong))
    return settings


def _check_paths(daemon: DaemonSettings, reader: _Reader) -> None:
    for key in ("state_dir", "heartbeat", "profiles_dir", "elastic.reports_dir"):
        path = tuple(f"daemon.{key}".split("."))
        value = daemon.elastic.reports_dir if "elastic" in path else getattr(daemon, key)
        if "\0" in value:
            reader.refuse(path, f"daemon.{key} = {value!r}: no path has a NUL in it; write another")
        elif value and not Path(value).is_absolute():
            who = "the nodes' jobs and lucidd" if "elastic" in path else "lucidd and lucidctl"
            reader.refuse(
                path,
                f"daemon.{key} = {value!r}: write a path that begins with /; {who} start in different folders, and "
                "would each look in their own",
            )


_Key = tuple[str, ...]


class _Reader:
    """Reads sections key by key, so that all that is wrong is found. A wrong key keeps its default."""

    def __init__(self, of_file: bool) -> None:
        self._of_file = of_file
        self.given: set[str] = set()
        self.wrong: list[tuple[_Key, str]] = []
        """What is wrong, with its key."""

    def refuse(self, key: _Key, why: str) -> None:
        """Note what is wrong with a key."""
        self.wrong.append((key, why))

    def section(self, kind: type[Section], data: Mapping[str, Any], table: _Key = ()) -> Any:
        """The section of the values in a table."""
        known = keys_of(kind) if self._of_file else {field.name: field.type for field in msgspec.structs.fields(kind)}
        found: dict[str, Any] = {}
        for name, value in data.items():
            key = (*table, name)
            if name not in known:
                self.refuse(key, _unknown(key, [*keys_of(kind)]))
            elif is_table(known[name]) and isinstance(value, dict):
                found[name] = self.section(known[name], value, key)
            else:
                self.given.add(".".join(key))
                before = len(self.wrong)
                read = self._value(known[name], value, key)
                if len(self.wrong) == before:
                    found[name] = read
        return kind(**found)

    def _value(self, kind: Any, value: Any, key: _Key) -> Any:
        if get_origin(kind) is dict and isinstance(value, dict):
            return {name: self._value(get_args(kind)[1], one, (*key, name)) for name, one in value.items()}
        try:
            if isinstance(value, float) and not isfinite(value):
                raise msgspec.ValidationError
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            shown, right = repr(value), allowed(kind)
            shown = shown if len(shown) <= 200 else shown[:200] + "…"
            right = right.replace("`", "") if right.startswith("`") else f"a {right}"
            self.refuse(key, f"{'.'.join(key)} = {shown}: write {right}")


def _unknown(key: _Key, known: list[str]) -> str:
    name = ".".join(key)
    if name in _GONE:
        return f"{name!r} is gone: {_GONE[name]}"
    return f"unknown key {name!r}{did_you_mean(key[-1], known)} (known here: {', '.join(known)})"


def stored_policy(data: Mapping[str, Any], where: str) -> PolicySettings:
    """Settings of policies as a plan record or a view holds them; those that have gone since are passed over.

    Raises: ConfigError: one has a value that it may not have."""
    try:
        return msgspec.convert(data, PolicySettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: settings of another version of Lucid: {error}") from None


def _line_of(path: _Key, text: str) -> str:
    """``line 7: `` of a key in a file; empty where it is not found simply."""
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\]]*?)\s*\]", line)
        if header:
            table = [part.strip(" \"'") for part in header[1].split(".")]
        key = table if header else [*table, *(p.strip(" \"'") for p in line.partition("=")[0].split("."))]
        if [*path[: len(key)]] == key and (len(key) == len(path) or not header):
            return f"line {number}: "
    return ""


def simulation_keys(settings: Settings) -> list[str]:
    """The keys that were set and that lucidd does not read, as ``policy.pollux.p``."""
    policies = {name.partition("-")[0] for name in (settings.daemon.policy, *settings.daemon.policies.values())}
    unread = tuple(f"{key}." for key, policy in SIMULATED.items() if policy not in policies)
    return sorted(key for key in settings.given if f"{key}.".startswith(unread))


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
