"""What may be wrong with Slurm's configuration in force, for what Lucid is to do. Pure, over its keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lucid.config import Mode, Publish, Settings
from lucid.live.reporting.doctor_finding import Finding, bad, warn
from lucid.orchestrator.order.site_factor import BOUND

__all__ = ["look_over_config"]

_WEIGHTS = ("Age", "Assoc", "FairShare", "Fairshare", "JobSize", "Partition", "QOS")
_SHORT_JOB_AGE_S = 120


def look_over_config(settings: Settings, modes: Mapping[str, Mode], config: Mapping[str, str]) -> Iterator[Finding]:
    """Of the keys that Lucid's modes rest on; *modes* by partition, as they are now."""
    used = set(modes.values())
    yield from _priorities(used, config)
    yield from _jobs(settings, config)
    if settings.daemon.catch_up_days:
        yield from _accounting(config)
    if Mode.PACK in used:
        yield from _gpus(config)
        yield from _memory(config)
        yield from _scripts(settings, config)
        yield from _control_groups(config)


def _control_groups(config: Mapping[str, str]) -> Iterator[Finding]:
    """cgroup/v1 names a job's control group by its number, whatever this setting says."""
    if config.get("CgroupJobIdPaths") == "no" and config.get("CgroupPlugin") in ("cgroup/v2", "autodetect"):
        yield Finding(
            "ok",
            "Slurm names control groups by SLUID: the sampler asks the slurmstepd in each for its job; one that "
            "cannot see slurmstepd (hidepid, a container) may take a process for nobody's",
            "CgroupJobIdPaths=yes in cgroup.conf (from 26.05.2) puts the job's number there again",
        )


def _words(config: Mapping[str, str], key: str) -> list[str]:
    return [word.strip() for word in config.get(key, "").split(",") if word.strip()]


def _number(config: Mapping[str, str], key: str) -> int | None:
    """The whole number at the start of a value (``300 sec``), or none."""
    found = re.match(r"\d+", config.get(key, ""))
    return int(found[0]) if found else None


def _accounting(config: Mapping[str, str]) -> Iterator[Finding]:
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        yield warn(
            "no accounting by slurmdbd: jobs that end while lucidd is down are missing from its history",
            "slurmdbd, or daemon.catch_up_days = 0",
        )
    elif "gres/gpu" not in config.get("AccountingStorageTRES", ""):
        yield warn(
            "AccountingStorageTRES lacks gres/gpu: jobs that end while lucidd is down are missing from its history",
            "AccountingStorageTRES=gres/gpu,gres/shard",
        )


def _priorities(used: set[Mode], config: Mapping[str, str]) -> Iterator[Finding]:
    if used <= {Mode.OBSERVE}:
        return
    if "multifactor" not in config.get("PriorityType", ""):
        found = bad if Mode.ORDER in used else warn
        yield found(
            f"PriorityType={config.get('PriorityType')}: no site factors", "PriorityType=priority/multifactor"
        )
        return
    if Mode.ORDER not in used:
        return
    if config.get("PrioritySiteFactorPlugin"):
        yield bad(
            f"PrioritySiteFactorPlugin={config['PrioritySiteFactorPlugin']} writes over the site "
            "factors of order mode",
            "do without one of the two: pack mode writes no site factors",
        )
    weights = sum(_number(config, f"PriorityWeight{name}") or 0 for name in _WEIGHTS)
    if weights < BOUND:
        yield warn(
            f"a site factor of up to {BOUND} outweighs age, fair-share and QOS together ({weights})",
            "larger PriorityWeight…",
        )


def _jobs(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    age_s, poll_s = _number(config, "MinJobAge"), settings.slurm.poll_idle_s
    if age_s and age_s <= 2 * poll_s:
        yield bad(
            f"MinJobAge={age_s} s: Slurm forgets a job that ended before Lucid looks ({poll_s:g} s), so "
            "nothing is learned from it",
            "MinJobAge=300",
        )
    elif age_s and age_s < _SHORT_JOB_AGE_S:
        yield warn(
            f"MinJobAge={age_s} s: what ends while lucidd restarts is missing from its history", "MinJobAge=300"
        )
    for key, what in (("RequeueExit", "starts over"), ("RequeueExitHold", "is held, and stays so,")):
        if config.get(key):
            yield warn(
                f"{key}={config[key]}: a job that ends so {what} without Lucid", f"know of it, or do without {key}"
            )
    if "jobs" in _words(config, "PrivateData") and settings.daemon.publish is Publish.JOBS:
        yield warn(
            "PrivateData has jobs, and lucidd shows everybody size and decision of every job, without names",
            'daemon.publish = "nothing", if that is more than your site shows',
        )
    if "rl_enable" in config.get("SlurmctldParameters", ""):
        yield warn(
            "SlurmctldParameters has rl_enable: a burst of starts may be put off by the rate limit",
            "rl_bucket_size of at least slurm.writes_per_cycle",
        )


def _gpus(config: Mapping[str, str]) -> Iterator[Finding]:
    if config.get("SelectType") != "select/cons_tres":
        yield bad(
            f"SelectType={config.get('SelectType') or '(not set)'}: GPUs cannot be asked for one by one",
            "SelectType=select/cons_tres, and restart slurmctld",
        )
    kinds = _words(config, "GresTypes")
    lacking = {"gpu", "shard"} - set(kinds)
    if lacking:
        yield bad(f"GresTypes lacks {', '.join(sorted(lacking))}", "GresTypes=gpu,shard")
    if {"mps", "shard"} <= set(kinds):
        yield bad(
            "GresTypes has mps and shard: Slurm lets a job of each on one GPU (seen on 22.05)",
            "GresTypes=gpu,shard: MPS is started for pairs without gres/mps (docs/mps.md)",
        )
    accounted = config.get("AccountingStorageTRES", "")
    if accounted and "gres/shard" not in accounted:
        yield warn(
            "AccountingStorageTRES lacks gres/shard: accounting does not show who had slots",
            "AccountingStorageTRES=gres/gpu,gres/shard",
        )
    if config.get("JobRequeue", "1").startswith("0"):
        yield warn("JobRequeue=0: no job may be requeued, so none is profiled", "JobRequeue=1")


def _memory(config: Mapping[str, str]) -> Iterator[Finding]:
    """Its partitions' own defaults are looked at with the partitions."""
    kinds = [word.upper() for word in _words(config, "SelectTypeParameters")]
    if not kinds:
        yield warn(
            "SelectTypeParameters is not set: what is shared out follows the release's default",
            "SelectTypeParameters=CR_Core_Memory",
        )
        return
    if any(kind.startswith("CR_SOCKET") for kind in kinds):
        yield bad(
            f"SelectTypeParameters={','.join(kinds)}: a job takes whole sockets, and leaves no CPUs on "
            "its GPUs' node to a partner",
            "SelectTypeParameters=CR_Core_Memory",
        )
    if not any("MEMORY" in kind for kind in kinds):
        yield warn(
            f"SelectTypeParameters={','.join(kinds)}: memory is not shared out, so two jobs of a pair "
            "may fill a node's",
            "SelectTypeParameters=CR_Core_Memory",
        )


def _scripts(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    if "lua" not in _words(config, "JobSubmitPlugins"):
        yield bad(
            "job_submit.lua is not loaded, so no job is ever held for Lucid",
            "JobSubmitPlugins=lua, and job_submit.lua: lucidctl slurm install",
        )
    if settings.daemon.mps and "extra_constraints" in config.get("SchedulerParameters", ""):
        yield bad(
            "SchedulerParameters has extra_constraints: Slurm takes what lucidd writes into a "
            "job's Extra for a constraint on nodes",
            "daemon.mps = false (pairs then share by time-slicing), or do without extra_constraints",
        )
    if settings.daemon.mps and not config.get("Prolog"):
        yield warn(
            "no Prolog: nothing starts MPS, so pairs share by time-slicing",
            "Prolog=…/prolog.d/* and mps in node.conf, or daemon.mps = false",
        )
    for key in ("Prolog", "Epilog"):
        if theirs := [word for word in _words(config, key) if not re.search("/lucid[a-z-]*/", word)]:
            yield warn(
                f"{key}={','.join(theirs)} is told only the last GPU of a job, and takes a pair's GPUs for one job's",
                "lucidctl setup --mode pack lets it run through Lucid's site_scripts (docs/hooks.md)",
            )
    if not config.get("TaskProlog"):
        yield warn(
            "no TaskProlog: an inner srun fails in a job that shares and has --gpus…",
            "TaskProlog=…/slurm/task_prolog",
        )
    if "RunInJob" in _words(config, "PrologFlags"):
        yield warn(
            "PrologFlags has RunInJob: the MPS daemon of a pair is part of the job that started first, "
            "and may end with it",
            "PrologFlags without RunInJob",
        )
