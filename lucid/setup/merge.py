"""Merges what pack mode needs into a site's slurm.conf and gres.conf, or refuses it with the remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lucid.errors import Finding, bad
from lucid.setup.conf_text import FOR_ALL, HOOKS, NEEDED, Edit, Statement, Texts, edited, with_values
from lucid.setup.nodes import host_list
from lucid.setup.render import ADDRESS, SLOTS, Gres, addressed_gres, addresses, hosts_or_none, with_slots

WRAPPER = f"{HOOKS}/site_scripts"
"""The program that runs the site's own prologs and epilogs."""
_USUAL = (
    "cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages", "gres/gpumem", "gres/gpuutil"
)  # fmt: skip
"""Words of AccountingStorageTRES that need no line: Slurm's defaults, and what it adds itself to gres/gpu."""
_OWN_PLUGIN = "call Lucid's from it (docs/files.md, 'A plugin of your own'): by hand, with lucidctl slurm install"


@dataclass(slots=True, kw_only=True)
class Refused:
    """What setup found that it does not change by itself, with what a person does about it; and what it notes."""

    notes: list[str] = field(default_factory=list)
    refused: list[Finding] = field(default_factory=list)

    def refuse(self, what: str, remedy: str) -> None:
        """Refuse something."""
        self.refused.append(bad(what, remedy))


@dataclass(slots=True)
class Merged(Refused):
    """The merged files: new texts by file, where they differ; ``models`` that users may ask for; ``hosts`` whose GPUs
    have addresses then, ``slotted`` those whose GPUs had them and get another number of slots; ``filtered``: commands
    and steps run through Lucid's cli_filter.lua."""

    files: dict[Path, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    filtered: bool = True
    hosts: list[str] = field(default_factory=list)
    slotted: set[str] = field(default_factory=set)
    site_scripts: dict[str, list[str]] = field(default_factory=dict)
    """The site's own ``Prolog`` and ``Epilog`` that the wrapper takes over now."""
    wrapped: dict[str, bool] = field(default_factory=dict)
    """Whether the wrapper is named already, by ``Prolog`` and ``Epilog``."""


@dataclass(slots=True)
class _Work:
    texts: Texts
    edits: dict[Path, list[Edit]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    features: dict[str, set[str]] = field(default_factory=dict)
    """Features of each host, as its line has them; ``more`` has what setup adds."""
    more: dict[str, set[str]] = field(default_factory=dict)

    def set(self, statement: Statement, values: Mapping[str, str]) -> None:
        """Set these keys where the statement stands."""
        edit = with_values(statement, self.texts.files[statement.path], values)
        self.edits.setdefault(statement.path, []).append(edit)


@dataclass(frozen=True, slots=True)
class _Node:
    """A NodeName line, with the DEFAULT lines before it applied."""

    hosts: tuple[str, ...]
    gres: tuple[str, ...]
    feature: str
    """The features of its line, with commas between them."""

    @property
    def gpus(self) -> list[tuple[str, int]]:
        """(model, count) of each gres/gpu."""
        found = []
        for word in self.gres:
            kind, *rest = (part for part in re.sub(r"\(.*?\)", "", word).split(":") if part != "no_consume")
            if kind == "gpu":
                count = int(rest[-1]) if rest and rest[-1].isdigit() else 1
                found.append((rest[0] if rest and not rest[0].isdigit() else "", count))
        return found

    @property
    def addressed(self) -> bool:
        """Whether each GPU is a type of its own already."""
        return bool(self.gpus) and all(ADDRESS.fullmatch(model) for model, _ in self.gpus)


def merge_pack(
    texts: Texts,
    gres: Texts | None,
    packed: Collection[str],
    in_force: Mapping[str, str],
    site: Mapping[str, str],
    slots: int | None = None,
) -> Merged:
    """Both files for pack mode on the nodes *packed*.

    Args:
        texts: slurm.conf with what it includes.
        gres: gres.conf with what it includes, where there is one.
        packed: Names of nodes whose GPUs are to be shared. A NodeName line that has one of them changes as a whole.
        in_force: ``scontrol show config``, for parameters that no file sets.
        slots: Jobs that may share one GPU, ``None``: two, or as many as there are already.
        site: Texts of the site's own scripts: ``job_submit.lua``, ``cli_filter.lua``, and the TaskProlog by its path.
    """
    merged, work = Merged(), _Work(texts)
    _nodes(work, gres, packed, merged, slots or SLOTS)
    if slots is not None:
        _slots(work, gres, packed, merged, slots)
    _parameters(work, in_force, site, merged)
    _billing(work, packed, merged)
    if merged.refused:
        merged.files.clear()
        return merged
    for path, text in texts.files.items():
        more = ["# Lucid (lucidctl setup):", *work.added] if work.added and path == texts.main else []
        fresh = edited(text, work.edits.get(path, ()), more)
        if fresh != text:
            merged.files[path] = fresh
    return merged


def _slots(work: _Work, gres: Texts | None, packed: Collection[str], merged: Merged, slots: int) -> None:
    """Set the number of slots for each GPU that has an address already."""
    changed = set[str]()
    for statement in work.texts.statements_of("NodeName"):
        hosts, text = hosts_or_none(statement.pairs["nodename"]) or [], statement.pairs.get("gres", "")
        fresh = re.sub(r"\bshard:(g\d+):\d+", rf"shard:\1:{slots}", text)
        if fresh != text and set(hosts) & set(packed):
            work.set(statement, {"Gres": fresh})
            changed |= set(hosts)
    if changed and gres is not None and not merged.files.keys() & gres.files.keys():
        merged.files |= with_slots(gres, changed, slots)
    elif changed:
        merged.refuse("some GPUs get addresses, and others another number of slots", "run this without --slots first")
    merged.slotted |= changed


def _nodes(work: _Work, gres: Texts | None, packed: Collection[str], merged: Merged, slots: int) -> None:
    defaults: dict[str, str] = {}
    found = []
    for statement in work.texts.statements_of("NodeName"):
        pairs = statement.pairs
        if pairs["nodename"].upper() == "DEFAULT":
            defaults |= pairs
            continue
        own = {**defaults, **pairs}
        hosts = hosts_or_none(own["nodename"])
        if hosts is None and "gpu" in own.get("gres", ""):
            merged.refuse(
                f"{statement.path}: NodeName={own['nodename']} is a host list that setup does not read",
                "write the line once for each range (n[1-4]), then run this again",
            )
        words = tuple(word for word in re.split(r",(?![^(]*\))", own.get("gres", "")) if word)
        said = [line[key] for line in (pairs, defaults) for key in ("feature", "features") if key in line]
        node = _Node(tuple(hosts or ()), words, said[0] if said else "")
        work.features |= {host: set(node.feature.split(",")) for host in node.hosts}
        found.append((statement, node))
    wanted = {
        host: sum(count for _, count in node.gpus)
        for _, node in found
        if set(node.hosts) & set(packed) and node.gpus and not node.addressed
        for host in node.hosts
    }
    ready = {host for _, node in found if node.addressed for host in node.hosts}
    for host in sorted(set(packed) - wanted.keys() - ready):
        merged.refuse(
            f"node {host} has no NodeName line with GPUs in {work.texts.main}", "NodeName=… Gres=gpu:N there"
        )
    others = [host for _, node in found if node.gpus for host in node.hosts if host not in wanted]
    merged.hosts += sorted(ready)
    mine = sorted(ready & set(packed))
    found_gres = _gres(gres, wanted, [host for host in others if host not in ready], merged, slots, mine)
    for statement, node in found:
        if not node.gpus:
            continue
        kinds = {model for model, _ in node.gpus if model and not node.addressed}
        kinds |= set().union(*(found_gres.models.get(host, set()) for host in node.hosts))
        values = {}
        if set(node.hosts) & wanted.keys():
            rest = [word for word in node.gres if word.split(":")[0] != "gpu"]
            what = ""
            if len(kinds) > 1:
                what = f"GPUs of {', '.join(sorted(kinds))} in one"
            elif any(word.split(":")[0] in ("shard", "mps") for word in rest):
                what = "gres/shard or gres/mps already"
            elif any(word.split(":")[0] == "gpu" and "no_consume" in word.split(":") for word in node.gres):
                what = "GPUs that Slurm gives to any number of jobs (no_consume)"
            if what:
                merged.refuse(
                    f"node {host_list(node.hosts)} has {what} (Gres={','.join(node.gres)})",
                    "leave its partition in observe or order mode, or describe its GPUs by hand (docs/files.md)",
                )
                continue
            numbers = {found_gres.numbers[host] for host in node.hosts if host in found_gres.numbers}
            if len(numbers) > 1:
                merged.refuse(
                    f"nodes {host_list(node.hosts)} stand in one NodeName line, and their GPUs have different "
                    "device files in gres.conf",
                    "a NodeName line for each kind of node in slurm.conf, then run this again",
                )
            if any(each != (*range(len(each)),) for each in numbers):
                merged.notes.append(
                    f"device files of {host_list(node.hosts)} are not numbered 0, 1, 2 and so on: cgroup.conf needs "
                    "ConstrainDevices=yes there (docs/gpu-health.md)"
                )
            values["Gres"] = ",".join([addresses(min(numbers, default=()), slots), *rest])
            merged.hosts += node.hosts
            merged.models |= kinds
        have = [word for word in node.feature.split(",") if word]
        lacking = sorted(kinds & merged.models - set(have)) if "Gres" in values else []
        if lacking:
            values[_feature_key(statement)] = ",".join([*have, *lacking])
            work.more |= {host: set(lacking) for host in node.hosts}
        if values:
            work.set(statement, values)
    for statement, node in found:  # a model becomes a feature for everybody: whoever has it must be found by it
        model = {model for model, _ in node.gpus} & merged.models
        have = [word for word in node.feature.split(",") if word]
        if model - set(have) and not set(node.hosts) & wanted.keys():
            work.set(statement, {_feature_key(statement): ",".join([*have, *sorted(model - set(have))])})
            work.more |= {host: model - set(have) for host in node.hosts}


def _sets(work: _Work, merged: Merged) -> dict[str, set[str]]:
    """Hosts by NodeSet, by their features as they are. A set that a new feature would make larger is refused."""
    sets: dict[str, set[str]] = {}
    for pairs in (statement.pairs for statement in work.texts.statements_of("NodeSet")):
        name, feature = pairs["nodeset"], pairs.get("feature", "")
        hosts = sets.setdefault(name, set())
        hosts |= _in_nodes(pairs.get("nodes", ""), work, {}) or set()
        hosts |= {host for host, words in work.features.items() if feature in words} if feature else set()
        joins = {host for host, words in work.more.items() if feature in words} - hosts
        if joins:
            merged.refuse(
                f"nodes {host_list(joins)} would join NodeSet={name} (Feature={feature}): setup makes the GPUs' "
                "model a feature of each node that has them",
                f"NodeSet={name} Nodes={host_list(hosts)} in place of its Feature=, then run this again",
            )
    return sets


def _in_nodes(text: str, work: _Work, sets: Mapping[str, set[str]]) -> set[str] | None:
    """The hosts of Nodes=: a host list, names of sets, ALL, or a list of these. ``None``: a word is none of these."""
    found = set[str]()
    for word in filter(None, re.split(r",(?![^\[]*\])", text)):
        hosts = sets[word] if word in sets else work.features if word.upper() == "ALL" else hosts_or_none(word)
        if hosts is None:
            return None
        found |= set(hosts)
    return found


def _billing(work: _Work, packed: Collection[str], merged: Merged) -> None:
    """Bill a slot as the GPU that it stands for, or a job in slots would cost its account nothing."""
    sets = _sets(work, merged)
    for statement in work.texts.statements_of("PartitionName"):
        weights = statement.pairs.get("tresbillingweights", "")
        hosts = _in_nodes(statement.pairs.get("nodes", ""), work, sets)
        found = re.search(r"(?:^|,)gres/gpu(:[^=,]+)?=([^,]+)", weights, re.IGNORECASE)
        others = hosts and not hosts & set(packed)
        if found is None or others or "gres/shard" in weights.lower():
            continue
        name = statement.pairs["partitionname"]
        if found[1]:
            merged.refuse(
                f"partition {name} bills GPUs by their model (TRESBillingWeights={weights}), and a GPU's type is "
                "its address on packed nodes",
                "GRES/gpu=… without a model in its line, or leave it in order mode",
            )
            continue
        work.set(statement, {"TRESBillingWeights": f"{weights},GRES/shard={found[2]}"})
        merged.notes.append(f"a slot is billed as a GPU in partition {name} (GRES/shard={found[2]})")


def _feature_key(statement: Statement) -> str:
    """The spelling, of both, that counts on this line."""
    return "Features" if "features" in statement.pairs and "feature" not in statement.pairs else "Feature"


def _gres(
    gres: Texts | None, wanted: Mapping[str, int], others: list[str], merged: Merged, slots: int, ready: list[str]
) -> Gres:
    if not wanted and (gres is None or not ready):
        return Gres()
    if gres is None:
        merged.refuse(
            "there is no gres.conf beside slurm.conf, so the GPUs' device files are not known here",
            "put the gres.conf of the nodes here, with NodeName= in each line, and on every node the same",
        )
        return Gres()
    found = addressed_gres(gres, wanted, others, slots, ready)
    merged.notes += found.notes
    by_remedy: dict[str, list[str]] = {}
    for what, remedy in found.problems:
        by_remedy.setdefault(remedy, []).append(what)
    merged.refused += [bad("; ".join(whats[:5]), remedy) for remedy, whats in by_remedy.items()]
    merged.files |= {path: text for path, text in found.files.items() if text != gres.files[path]}
    return found


def _parameters(work: _Work, in_force: Mapping[str, str], site: Mapping[str, str], merged: Merged) -> None:
    settings = work.texts.settings

    def words(key: str) -> list[str]:
        return [word for word in settings.get(key.lower(), "").split(",") if word]

    needed = dict(NEEDED)
    for key in FOR_ALL:
        wanted = needed.pop(key)
        now = settings.get(key.lower()) or in_force.get(key, "")
        if now != wanted:
            merged.refuse(
                f"{key}={now or '(not set)'}: pack mode needs {wanted}, and a change concerns every job",
                f"{key}={wanted} in slurm.conf, restart slurmctld, then run this again",
            )
        elif key.lower() not in settings:
            work.added.append(f"{key}={wanted}")
    for key, value in needed.items():
        usual = (*value.split(","), *(_USUAL if key == "AccountingStorageTRES" else ()))
        lost = [
            word
            for word in in_force.get(key, "").split(",")
            if word and word.lower() not in usual and not word.startswith(HOOKS) and word not in words(key)
        ]
        if lost:
            merged.refuse(
                f"slurmctld has {key}={in_force[key]}, and neither {work.texts.main} nor what it includes says "
                + ",".join(lost),
                "scontrol reconfigure if the file was edited, or the line in slurm.conf; then run this again",
            )
    if "mps" in words("GresTypes"):
        merged.refuse(
            "GresTypes has mps: Slurm lets a job of gres/mps and one in a slot onto one GPU",
            "take gres/mps out of slurm.conf and gres.conf: Lucid starts MPS for pairs without it (docs/nodes.md)",
        )
    _join(work, "GresTypes")
    if "slurmdbd" in in_force.get("AccountingStorageType", ""):
        _join(work, "AccountingStorageTRES")
    for key, name in (("JobSubmitPlugins", "job_submit.lua"), ("CliFilterPlugins", "cli_filter.lua")):
        if name in site and name == "cli_filter.lua" and not merged.models:
            merged.filtered = False
            merged.notes.append(
                f"the site's own {name} stays: jobs that share lack some of sbatch's variables, unless it calls "
                "Lucid's (docs/submission.md)"
            )
        elif name in site:
            merged.refuse(f"there is a {name} of the site's own beside slurm.conf", _OWN_PLUGIN)
        else:
            _join(work, key)
    for key in ("Prolog", "Epilog"):
        if needed[key] not in words(key):
            work.added.append(f"{key}={needed[key]}")
        _wrap(work, key, needed[key], merged)
    task, ours = settings.get("taskprolog", ""), needed["TaskProlog"]
    if not task:
        work.added.append(f"TaskProlog={ours}")
    elif task != ours and ours not in site.get(task, ""):
        merged.refuse(
            f"TaskProlog={task}: Slurm runs one task prolog only, and jobs that share need Lucid's",
            f"a last line `{ours}` in {task}, then run this again",
        )
    if "runinjob" in settings.get("prologflags", "").lower():
        merged.notes.append("PrologFlags has RunInJob: the MPS daemon of a pair may end with the job that came first")


def _wrap(work: _Work, key: str, ours: str, merged: Merged) -> None:
    """Let the site's own scripts run through Lucid's wrapper, which takes the place of the first of them."""
    statements = work.texts.statements_of(key)
    merged.wrapped[key] = any(one.pairs[key.lower()] == WRAPPER for one in statements)
    theirs = [one for one in statements if one.pairs[key.lower()] not in (ours, WRAPPER, "")]
    merged.site_scripts[key] = [one.pairs[key.lower()] for one in theirs]
    for number, one in enumerate(theirs):
        if number == 0 and not merged.wrapped[key]:
            work.set(one, {key: WRAPPER})
        else:
            work.edits.setdefault(one.path, []).append(Edit(one.first, one.after, ()))
    if theirs:
        merged.notes.append(
            f"{key}={', '.join(merged.site_scripts[key])} runs through {WRAPPER}, with all GPUs of the job"
        )


def _join(work: _Work, key: str) -> None:
    """Add the words that Lucid needs to a list parameter, at its end, where it counts."""
    wanted = NEEDED[key].split(",")
    statements = work.texts.statements_of(key)
    if not statements:
        work.added.append(f"{key}={','.join(wanted)}")
        return
    last = statements[-1]
    have = [word for word in last.pairs[key.lower()].split(",") if word]
    bare = [word.removeprefix("job_submit/").removeprefix("cli_filter/") for word in have]
    lacking = [word for word in wanted if word not in bare]
    if lacking:
        work.set(last, {key: ",".join([*have, *lacking])})
