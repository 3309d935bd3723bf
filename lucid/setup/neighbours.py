"""What else a site runs beside Slurm: tools that write Slurm's configuration, and programs that count its GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lucid.errors import ConfigError
from lucid.setup.backup import Restore
from lucid.setup.conf_text import HOOKS, read_texts

MONITORING = "docs/monitoring.md has the formulas that count jobs in slots"
_GENERATED = re.compile(
    r"(?i)^\s*#(?!.*configurator).*\b(?:generated|managed by|do not (?:edit|modify)|ansible|puppet)\b"
)
"""A comment of a file that a tool writes. SchedMD's configurator writes a file once, for a person to go on with."""
_UNITS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_COUNTS = re.compile(r"(?i)slurm.*exporter|exporter.*slurm|jobstats|gpustats|job_defense")
"""Programs known to count the GPUs of jobs or nodes by Slurm's gres/gpu."""


@dataclass(frozen=True, slots=True)
class Tool:
    """``signs`` in Slurm's configuration, and the names of the ``files`` that the tool writes, whatever these say of
    themselves. ``place``: where the tool takes lines."""

    name: str
    signs: str
    files: str
    place: str


_TOOLS = (
    Tool(
        "CycleCloud", r"azslurm|cyclecloud|include\s+\S*\bazure\.conf", r"(?:azure|gres|keep_alive)\.conf",
        "azslurm has no place for them: a script of yours that runs `azslurm scale --no-restart`, puts them in, and "
        "restarts slurmctld, in place of each `azslurm scale`",
    ),
    Tool(
        "ParallelCluster", r"pcluster|slurm_parallelcluster", r"(?:slurm_parallelcluster.*|gres)\.conf",
        "CustomSlurmSettings refuses Gres, GresTypes, Prolog and Epilog: a script that puts them in and runs "
        "scontrol reconfigure, named by OnNodeConfigured and OnNodeUpdated of the head node's CustomActions",
    ),
    Tool(
        "slurm-gcp", r"slurm-gcp|include\s+\S*\bcloud\.conf|/slurm/scripts/\w+\.py",
        r"(?:slurm|cloud|gres|cloud_gres)\.conf",
        "slurm_conf_tpl (parameters; GresTypes, Prolog and Epilog behind `include cloud.conf`), node_conf of the "
        "nodeset (Gres, Feature), partition_conf; a gres.conf of your own, in place of the link to cloud_gres.conf",
    ),
    Tool(
        "soperator", r"soperator", r".*",
        "customSlurmConfig of the SlurmCluster (slurm.conf); a ConfigMap over gres.conf",
    ),
    Tool(
        "Slinky", r"slinky|### GENERAL ###", r".*",
        "controller.extraConf (slurm.conf); a ConfigMap with gres.conf in controller.configFileRefs",
    ),
    Tool("Puppet", r"puppet", "", "the template or the hiera keys of the module that writes it"),
    Tool("Ansible", r"ansible", "", "the template or the variables of the role that writes it"),
)  # fmt: skip
_UNKNOWN = "the template of the tool that writes it; if none does, take such a comment out of the file"


@dataclass(frozen=True, slots=True)
class Writer:
    """A file is another program's to write: ``why`` one knows, and the ``place`` where it takes lines."""

    why: str
    place: str


def writer_of(path: Path, files: Mapping[Path, str], lost: Collection[Path] = ()) -> Writer | None:
    """Who writes one of Slurm's *files*; ``None``: a person, as far as can be seen. *lost*: files in which nothing is
    left of what setup wrote."""
    says = next((line.strip() for line in files[path].splitlines()[:10] if _GENERATED.match(line)), "")
    tool = next((one for one in _TOOLS if says and re.search(one.signs, says, re.IGNORECASE)), None) or next(
        (one for one in _TOOLS if one.files and re.search(one.signs, "\n".join(files.values()), re.IGNORECASE)), None
    )
    place = tool.place if tool else _UNKNOWN
    if says:
        return Writer(f"says {says!r}", place)
    if tool and any(re.fullmatch(tool.files, name) for name in (path.name, path.resolve().name)):
        return Writer(f"is written by {tool.name}", place)
    if path.resolve() in lost:
        return Writer("lacks all that setup wrote there: something has written it anew", place)
    return Writer("is mounted read-only", place if tool else "where that mount comes from") if sealed(path) else None


def sealed(path: Path) -> bool:
    """Can nobody write this file here? A read-only mount, a file mounted alone, or a ConfigMap."""
    there = next(one for one in (path, *path.parents) if one.exists())
    mounted = path.is_file() and os.path.ismount(path)  # Path.is_mount knows folders only
    config_map = any(part.startswith("..") for part in path.resolve().parts)
    return mounted or config_map or bool(os.statvfs(there).f_flag & os.ST_RDONLY)


def monitors(root: Path, config: Mapping[str, str]) -> Iterator[str]:
    """Exporters and the like: units on this host, scripts that Slurm runs, Slurm's own metrics."""
    found = {path.name for where in _UNITS for path in (root / where).glob("*.service") if _COUNTS.search(path.name)}
    yield from sorted(found)
    for key in ("Prolog", "Epilog", "TaskProlog", "PrologSlurmctld", "EpilogSlurmctld"):
        if _COUNTS.search(config.get(key, "")):
            yield f"{key}={config[key]}"
    if config.get("MetricsType", "").startswith("metrics/"):
        yield f"MetricsType={config['MetricsType']}"


def check_unnamed(root: Path, restores: Collection[Restore]) -> None:
    """Before an undo: a slurm.conf that a tool writes may still name files that go, and Slurm would not start.

    Raises:
        ConfigError: it does; the message has the line.
    """
    after = {one.path: (one.content or b"").decode("utf-8", "surrogateescape") for one in restores}
    if not any(one.content is None and HOOKS in str(one.path) for one in restores):
        return
    conf = root / "etc/slurm/slurm.conf"
    try:
        there = read_texts(root, conf).files
        texts = read_texts(root, conf, {path: after[path.resolve()] for path in there if path.resolve() in after})
    except ConfigError:
        return  # Slurm does not start with it as it is
    for statement in texts.statements:
        if f"{HOOKS}/" in statement.text:
            raise ConfigError(
                f"{statement.path} would still say {statement.text.strip()!r}, which setup has not written: take "
                "Lucid's lines out of what writes it (docs/site.md), let Slurm read it, then run this again"
            )
