"""Plans ``lucidctl setup``: the files to write and steps to take to reach a mode. Changes nothing.

``lucidctl setup --mode pack --lending borrow`` makes one more partition over all nodes of VCs that could lend idle
GPUs to each other, in which only lucidd starts jobs. Users keep their partitions, and each VC has its nodes as
quota."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.config.live import DaemonSettings
from lucid.config.load import Settings, settings_from
from lucid.errors import ConfigError, Finding, bad, did_you_mean
from lucid.places import Mode
from lucid.setup.conf_text import FOR_ALL, HOOKS, NEEDED, Change, Texts, diff_of, edited, read_text, read_texts
from lucid.setup.doctor_slurm import check_preemption, check_served, power_note, taken_whole, without_layers
from lucid.setup.host_actions import LINK, USER, Machine, program_link
from lucid.setup.install import FILES, NEW_TOML, is_lucids, of_package, shipped_content, with_keys, without_table
from lucid.setup.merge import WRAPPER, Merged, Refused, merge_pack
from lucid.setup.neighbours import MONITORING, monitors, sealed, writer_of
from lucid.setup.nodes import host_list
from lucid.setup.render import ADDRESS, differing, plugin_conf, pool_line, rules_of, without_pool
from lucid.setup.site import Look, Site
from lucid.setup.site_scripts import SiteScripts
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import NO_PREEMPTION

Tables = Mapping[str, Mapping[str, str | int | Mapping[str, int] | None]]
"""Keys of lucid.toml by table; those that are ``None`` go."""

_NAMES = ("overflow", "lucid-overflow")
_BY_HAND = "docs/lending.md says how VCs of another kind lend; or leave out --lending"

_COULD = (
    "{} could lend each other idle GPUs: --lending borrow makes the pool, --lending off ends this note. "
    "`lucidctl report --jobs sacct.txt --vcs vcs.csv` (or --history, once lucidd has run) says what it would have "
    "brought here: once with --lending borrow, once with --lending off"
)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that could be made. ``quotas``: GPUs of each VC; empty where no two of them could lend to each other.
    ``lines`` of slurm.conf. ``left_out``: why each of the others stays outside, in words."""

    partition: str
    quotas: Mapping[str, int]
    lines: Sequence[str]
    left_out: Sequence[str]


@dataclass(frozen=True, slots=True)
class Lending:
    """The changes for the pool: ``tables`` of lucid.toml, the table that ``leaves`` it, and Slurm's files as they are
    to be, where they change. ``partition``: the pool's, which slurmctld has to have afterwards; ``gone`` is one that
    it must not have any more. ``again``: the same options plan the end of the pool's partition once no job is left in
    it."""

    tables: Tables = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    leaves: str = ""
    partition: str = ""
    gone: str = ""
    again: bool = False
    notes: Sequence[str] = ()
    refused: Sequence[Finding] = ()


def lending_of(
    asked: str,
    settings: Settings,
    texts: Texts,
    packed: Sequence[str],
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    left: str = "",
) -> Lending:
    """Make the pool (*asked* is ``borrow``), take it away (``off``), or note that it could be made.

    Args:
        asked: what the administrator said, or nothing.
        packed: partitions that are, or will be, in pack mode.
        left: a partition that an earlier run has made and taken out of slurm.conf again, and that Slurm still has."""
    rules, lending = settings.daemon.pool, settings.policy.lending
    said = lending.mode if "policy.lending.mode" in settings.given else ""
    if asked == "off":
        ended = _ended(settings, said, texts, jobs)
        return replace(ended, gone=left) if left else ended
    if rules.partition and rules.quotas:
        return _kept(settings, asked, texts, packed, nodes)
    if not asked and said:
        return Lending()
    pool = pool_for(texts, packed, nodes)
    if not asked:
        return Lending(notes=[_COULD.format(", ".join(pool.quotas))] if pool.quotas else ())
    if not pool.quotas:
        what = "; ".join(pool.left_out) or f"{', '.join(packed)} is one partition alone"
        return Lending(refused=[bad(f"no two partitions could lend to each other: {what}", _BY_HAND)])
    return Lending(
        {
            "daemon.pool": {"partition": pool.partition, "quotas": pool.quotas},
            "policy.lending": {"mode": "borrow"},
        },
        {texts.main: edited(texts.files[texts.main], (), pool.lines)},
        partition=pool.partition,
        notes=[
            f"{', '.join(pool.quotas)} lend each other idle GPUs, in partition {pool.partition}, where only lucidd "
            "starts jobs; each has its own GPUs as its quota (docs/lending.md)",
            *pool.left_out,
        ],
    )


def _kept(settings: Settings, asked: str, texts: Texts, packed: Sequence[str], nodes: Sequence[SlurmNode]) -> Lending:
    """The changes where lucid.toml has a pool. Its partition may be gone, where setup was undone and lucid.toml has
    stayed."""
    rules, lines = settings.daemon.pool, rules_of(texts)
    mode = {"mode": "borrow"} if asked and settings.policy.lending.mode == "off" else {}
    more = ", ".join(name for name in packed if name not in rules.quotas)
    notes = [f"{more} lends and borrows nothing: it is not in daemon.pool.quotas of lucid.toml"] if more else []
    hosts = [n.name for n in nodes if n.gpu_types and not n.partitions.isdisjoint(rules.quotas)]
    lends = asked or settings.policy.lending.mode != "off"
    known = any(rules.partition in node.partitions for node in nodes)
    if not lends or known or rules.partition in lines or not lines.keys() >= rules.quotas.keys():
        there = rules.partition if rules.partition in lines else ""
        return Lending({"policy.lending": mode}, partition=there, notes=notes)
    fresh = edited(texts.files[texts.main], (), pool_line(rules.partition, hosts, [*rules.quotas], texts))
    return Lending({"policy.lending": mode}, {texts.main: fresh}, partition=rules.partition, notes=notes)


def _ended(settings: Settings, said: str, texts: Texts, jobs: Sequence[SlurmJob]) -> Lending:
    """The changes that end lending: first lucidd lends no more; once no job is left in the pool's partition, that
    goes, too."""
    rules, off = settings.daemon.pool, {"policy.lending": {"mode": "off"}}
    fresh = without_pool(texts, rules.partition) if rules.partition else {}
    if not fresh:
        return Lending(off)
    if said != "off":
        note = f"lucidd lends no more; jobs in partition {rules.partition} end there, and then the partition goes"
        return Lending(off, partition=rules.partition, again=True, notes=[note])
    left = [job.id for job in jobs if job.partition == rules.partition and not job.ended]
    if left:
        note = f"partition {rules.partition} stays until {', '.join(left[:10])} end there: then run the same again"
        return Lending(off, partition=rules.partition, again=True, notes=[note])
    return Lending(off, fresh, leaves="daemon.pool", gone=rules.partition)


def could_lend(conf: Path, root: Path, vcs: Sequence[str], nodes: Sequence[SlurmNode]) -> list[str]:
    """Notes on VCs that could lend; in order mode Lucid starts no job, so none lends."""
    try:
        pool = pool_for(read_texts(root, conf), vcs, nodes)
    except ConfigError:
        return []  # order mode needs no file of Slurm's
    if not pool.quotas:
        return []
    names = ",".join(pool.quotas)
    return [
        f"{names} have like nodes, and could lend each other idle GPUs in pack mode: `lucidctl setup --mode pack "
        f"--partitions {names} --lending borrow --dry-run` shows how"
    ]


def pool_for(texts: Texts, vcs: Sequence[str], nodes: Sequence[SlurmNode]) -> Pool:
    """The pool with the most GPUs, of those of these partitions whose nodes are alike and whose VCs have the same
    rules."""
    own = {vc: [node for node in nodes if node.gpu_types and vc in node.partitions] for vc in vcs}
    rules, words, groups = rules_of(texts), dict[str, str](), list[list[str]]()
    for vc in vcs:
        common = sorted({name for node in own[vc] for name in vcs if name in node.partitions and name != vc})
        if vc not in rules:
            words[vc] = "no line of slurm.conf says what it is"
        elif not own[vc]:
            words[vc] = "it has no GPUs"
        elif common:
            words[vc] = f"it has nodes in common with {', '.join(common)}, so that only a QOS can be its quota"
        elif len({_kind(node) for node in own[vc]}) > 1:
            words[vc] = "its nodes are of several kinds"
        else:
            for group in groups:
                if not differing(rules[vc], rules[group[0]]) and _kind(own[vc][0]) == _kind(own[group[0]][0]):
                    group.append(vc)
                    break
            else:
                groups.append([vc])
    best = max(groups, key=lambda group: (len(group) > 1, sum(map(len, (own[vc] for vc in group)))), default=[])
    for vc in (vc for group in groups if group is not best for vc in group):
        keys = differing(rules[vc], rules[best[0]])
        words[vc] = (
            f"its line has another {', '.join(keys)} than {best[0]}"
            if keys
            else f"its nodes are not like those of {best[0]}"
        )
    left_out = [f"{vc} lends and borrows nothing: {words[vc]}" for vc in vcs if vc in words]
    if len(best) < 2:
        return Pool("", {}, (), left_out)
    taken = frozenset(rules).union(*(node.partitions for node in nodes))
    name = next((name for name in _NAMES if name not in taken), _NAMES[-1])
    hosts = [node.name for vc in best for node in own[vc]]
    return Pool(
        name,
        {vc: sum(len(node.gpu_types) for node in own[vc]) for vc in best},
        pool_line(name, hosts, best, texts),
        left_out,
    )


def _kind(node: SlurmNode) -> tuple[object, ...]:
    """The key by which nodes are alike. A GPU's model is its type, or a feature of its node once GPUs have
    addresses."""
    models = frozenset(kind for kind in node.gpu_types if not ADDRESS.fullmatch(kind))
    return models | node.features, len(node.gpu_types), node.cpus, node.mem_mib


TOML = Path("etc/lucid/lucid.toml")
PROFILES = Path("var/lib/lucid/profiles")
_SLURM = Path("etc/slurm")
_IN_FORCE = tuple(key for key in NEEDED if key not in (*FOR_ALL, "AccountingStorageTRES"))
_GPU_MEM_MIB = 24576
_KEEPS = "AccountingStorageType"


@dataclass(frozen=True, slots=True)
class Options:
    """The administrator's wishes. ``gpu_mem``: MiB by GPU model."""

    mode: Mode
    partitions: tuple[str, ...]
    profiling: str = ""
    gpu_mem: Mapping[str, int] = field(default_factory=dict)
    past_days: int | None = None
    """Days of the site's past that lucidd learns durations from at its first start."""
    lending: str = ""
    """Pack mode: ``borrow`` makes the pool in which VCs lend, ``off`` takes it away; empty: a note mentions it."""
    made: tuple[str, ...] = ()
    """Partitions that an earlier run has made."""
    slots: int | None = None
    """Pack mode: jobs that may share a GPU; ``None``: two, or as many as before."""
    lost: tuple[Path, ...] = ()
    """Files in which nothing is left of what an earlier run wrote."""
    site_scripts: Mapping[str, str] = field(default_factory=dict)
    """Pack mode: when the site's own prologs and epilogs run (``site_scripts.CHOICES``), by script or pattern."""


@dataclass(slots=True)
class Plan(Refused):
    """The plan. ``steps``: (kind, words), in the order in which they are taken. Files come after users and before the
    rest.

    ``hosts``: the nodes whose GPUs change. ``wanted``: what slurmctld has to have in force afterwards, by key of
    ``scontrol show config``."""

    mode: Mode
    partitions: Sequence[str]
    changes: list[Change] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    wanted: dict[str, str] = field(default_factory=dict)
    node_files: list[tuple[str, str]] = field(default_factory=list)
    """What the nodes need in pack mode: paths and modes."""
    lending: Lending = field(default_factory=Lending)

    @property
    def empty(self) -> bool:
        """Whether all of it is done already."""
        return not self.changes and not self.steps


def make_plan(root: Path, machine: Machine, running: Site, options: Options, programs: Path) -> Plan:
    """The plan that leads from this machine to the mode of *options*. *programs*: the folder of lucidd.

    Raises: ConfigError: a file cannot be read, or a partition is unknown."""
    unknown = [name for name in (*options.partitions, options.profiling) if name and name not in running.names]
    if unknown:
        hint = did_you_mean(unknown[0], running.names)
        raise ConfigError(f"Slurm has no partition {unknown[0]!r}{hint}; it has {', '.join(running.names)}")
    mode = options.mode
    plan = Plan(mode, options.partitions)
    if not machine.has_user():
        plan.steps.append(("user", f"make the system user {USER}, without a home and a shell"))
    if mode is not Mode.OBSERVE:
        _rights(plan, machine, running)
    elif "jobs" in running.config.get("PrivateData", "").split(","):
        plan.notes.append("PrivateData has jobs: only as a Slurm operator does lucidd see the jobs of others")
        _rights(plan, machine, running)
    _files(plan, root, programs)
    profiling = {"profiling_partition": options.profiling} if options.profiling else {}
    memory = {"gpu_mem_mib_by_feature": dict(options.gpu_mem)} if options.gpu_mem else {}
    # An earlier run in observe mode may have taken it for a VC, as every partition with GPUs.
    modes = {options.profiling: None, **dict.fromkeys(options.partitions, mode.value)}
    past = {} if options.past_days is None else {"catch_up_days": options.past_days}
    if options.past_days is None and not (root / TOML).exists() and "slurmdbd" in running.config.get(_KEEPS, ""):
        days = DaemonSettings().catch_up_days
        plan.notes.append(
            f"lucidd's first start reads the jobs of the last {days:g} days from sacct, so that its estimates begin "
            "with what jobs took here: --past DAYS says otherwise (0: none)"
        )
    tables: Tables = {"daemon": {**profiling, **memory, **past}, "daemon.partitions": modes}
    if mode is Mode.PACK and (note := power_note(running.config)):
        plan.notes.append(note)
    if mode is Mode.PACK and not _no_pack(plan, root, running):
        lending = _lending(plan, root, running, options)
        toml = _toml(plan, root, {**tables, **lending.tables}, lending.leaves)
        _pack(plan, root, running, options, programs, toml, lending.files)
    else:
        _toml(plan, root, tables)
        if mode is Mode.ORDER:
            plan.notes += could_lend(root / _SLURM / "slurm.conf", root, options.partitions, running.nodes)
    link = program_link() if root == Path("/") else None
    if link is not None:
        plan.steps.append(("link", f"{LINK} -> {link}"))
    fresh = any(change.own or "systemd" in change.path.parts for change in plan.changes)
    # An earlier run may have written lucid.toml and waited for the nodes: lucidd has to read it, too.
    if fresh or "reconfigure" in dict(plan.steps) or not machine.is_on("lucidd"):
        plan.steps.append(("daemon", "systemctl daemon-reload, enable lucidd, and start it anew"))
    if mode is Mode.PACK and not (root / PROFILES).is_dir():
        plan.steps.append(("folder", f"make /{PROFILES}, for the samplers of the nodes"))
    return plan


def _files(plan: Plan, root: Path, programs: Path) -> None:
    packaged = of_package(root)
    for file in FILES:
        if packaged if file.daemon else plan.mode is not Mode.PACK:
            continue
        if not (file.site_may_have and (root / file.target).exists() and not is_lucids(root / file.target)):
            mode = 0o755 if file.executable else 0o644
            _want(plan, root / file.target, shipped_content(file, programs), mode, shipped=True)


def _lending(plan: Plan, root: Path, running: Site, options: Options) -> Lending:
    """The changes for the pool, with their notes put into the plan."""
    path = root / TOML
    text = read_text(path) if path.is_file() else NEW_TOML
    settings = settings_from(tomllib.loads(text), str(path), text)
    modes = {**settings.daemon.partitions, **dict.fromkeys(options.partitions, Mode.PACK)}
    packed = [name for name, mode in modes.items() if mode is Mode.PACK and name in running.names]
    texts = read_texts(root, root / _SLURM / "slurm.conf")
    known = rules_of(texts)
    left = next((name for name in options.made if name in running.names and name not in known), "")
    found = lending_of(options.lending, settings, texts, packed, running.nodes, running.jobs, left)
    plan.lending = found
    plan.notes += found.notes
    plan.refused += found.refused
    return found


def _toml(plan: Plan, root: Path, tables: Tables, leaves: str = "") -> str:
    path = (root / TOML).resolve()
    text = read_text(path) if path.is_file() else NEW_TOML
    for table, keys in tables.items():
        if keys:
            text = with_keys(text, table, keys)
    text = without_table(text, leaves) if leaves else text
    _want(plan, path, text.encode("utf-8", "surrogateescape"), own=True)
    return text


def _want(
    plan: Plan, path: Path, content: bytes, mode: int = 0o644, *, own: bool = False, shipped: bool = False
) -> None:
    path = path.resolve()
    try:
        before = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); run this as root") from None
    if before != content:
        plan.changes.append(Change(path, before, content, mode, own, shipped))


def _rights(plan: Plan, machine: Machine, running: Site) -> None:
    """Plan to make lucidd a Slurm operator, as which it changes jobs."""
    if "slurmdbd" not in running.config.get(_KEEPS, ""):
        plan.refuse(
            "there is no slurmdbd: lucidd must be a Slurm operator, and only slurmdbd has the list of operators",
            "set up slurmdbd, or stay in observe mode"
            if plan.mode is not Mode.OBSERVE
            else "take jobs out of PrivateData in slurm.conf, or set up slurmdbd: else lucidd sees no job",
        )
        return
    level = machine.slurm_rights()
    if level is None:
        plan.refuse("slurmdbd does not answer", "start slurmdbd, then run this again")
    elif not level.startswith(("operator", "admin")):
        plan.steps.append(("slurm-user", f"make {USER} a Slurm operator, who may update jobs and nothing else"))
    if plan.mode is Mode.ORDER and running.config.get("PriorityType") != "priority/multifactor":
        plan.refuse(
            f"PriorityType={running.config.get('PriorityType')}: jobs have no site factor. Another PriorityType "
            "changes the order of every queue, which is yours to decide",
            "PriorityType=priority/multifactor with PriorityWeightAge=1000 keeps the order of submission; "
            "scontrol reconfigure, then run this again",
        )


def _no_pack(plan: Plan, root: Path, running: Site) -> bool:
    """Whether pack mode is refused on this Slurm as a whole."""
    if running.conf.parent != Path("/") / _SLURM:
        plan.refuse(
            f"slurm.conf is {running.conf}: Lucid's files for Slurm belong into /etc/slurm, and job_submit.lua "
            "has to lie beside slurm.conf",
            f"make /etc/slurm a link to {running.conf.parent} on every host, and start the daemons with "
            "/etc/slurm/slurm.conf",
        )
        return True
    folders = [root / name.lstrip("/") for name in running.config.get("PluginDir", "").split(":") if name]
    if any(folder.is_dir() for folder in folders) and not any((f / "job_submit_lua.so").exists() for f in folders):
        plan.refuse(
            f"Slurm's Lua plugin is not installed: no job_submit_lua.so in {running.config['PluginDir']}, and "
            "slurmctld would not start",
            "install that plugin (Debian: slurm-wlm-basic-plugins; others: a Slurm built with Lua)",
        )
        return True
    return False


def _pack(
    plan: Plan, root: Path, running: Site, options: Options, programs: Path, toml: str, pooled: Mapping[Path, str]
) -> None:
    """Plan Slurm's own files. *pooled*: texts of those that the pool changes."""
    daemon = settings_from(tomllib.loads(toml), str(root / TOML), toml).daemon
    _layers(plan, running, [name for name in options.partitions if name not in daemon.pool.quotas])
    _served(plan, running, options)
    etc = root / _SLURM
    texts = read_texts(root, etc / "slurm.conf", pooled)
    gres = read_texts(root, etc / "gres.conf") if (etc / "gres.conf").exists() else None
    used = [*options.partitions, *([options.profiling] if options.profiling else [])]
    packed = {node.name for name in used for node in running.with_gpus.get(name, ())}
    if not packed:
        raise ConfigError(f"the partitions {', '.join(used)} have no node with GPUs")
    merged = merge_pack(texts, gres, packed, running.config, _site(root, texts), options.slots)
    plan.notes += merged.notes
    plan.refused += merged.refused
    node = root / HOOKS.lstrip("/") / "node.conf"
    before = read_text(node) if node.exists() else ""
    scripts = _site_scripts(plan, root, merged, SiteScripts.read(before), options.site_scripts)
    if merged.refused:
        return
    fresh = {**pooled, **merged.files}
    for path, text in fresh.items():
        _want(plan, path, text.encode("utf-8", "surrogateescape"))
    for model in sorted(merged.models - daemon.gpu_mem_mib_by_feature.keys()):
        plan.notes.append(
            f"the memory of {model} is taken as {_GPU_MEM_MIB} MiB: say otherwise with --gpu-mem {model}=MIB"
        )
    plugin = _plugin(etc, merged.models, daemon.heartbeat, filtered=merged.filtered)
    _want(plan, etc / "lucid.plugin.conf", plugin.encode())
    where = "/usr/bin" if of_package(root) else programs
    usual = f"sampler {where}/lucid-sampler\nmps {HOOKS}/mps\nlimit 15\n"
    text = before if re.search(r"^(?!site-)\S", before, re.MULTILINE) else usual + before
    _want(plan, node, scripts.written(text).encode("utf-8", "surrogateescape"))
    shared = [*texts.files, *(gres.files if gres else ()), etc / "lucid.plugin.conf", node]
    plan.node_files = [(f"/{path.relative_to(root)}", "0644") for path in shared]
    plan.node_files += [(f"/{f.target}", "0755" if f.executable else "0644") for f in FILES if not f.daemon]
    plan.hosts = [
        n.name
        for n in running.nodes
        if n.name in merged.slotted or (n.name in merged.hosts and n.gpu_types and not n.addressable)
    ]
    _in_force(plan, root, texts, fresh, running)
    _neighbours(plan, root, {**texts.files, **(gres.files if gres else {})}, options.lost, scripts)
    found = [*monitors(root, running.config)]
    counted = running.config.get("AccountingStorageTRES", "")
    if "gres/gpu" in counted and "gres/shard" not in counted:
        found.append(f"AccountingStorageTRES={counted}")
    if found:
        plan.notes.append(
            f"{', '.join(found)}: what counts gres/gpu does not see jobs in slots (gres/shard). {MONITORING}; "
            "TRESBillingWeights=GRES/gpu=1,GRES/shard=1 makes `billing` count both"
        )


def _neighbours(
    plan: Plan, root: Path, files: Mapping[Path, str], lost: Collection[Path], scripts: SiteScripts
) -> None:
    """What a tool writes, that tool has to change: setup says the lines and the place, and changes nothing."""
    named = {path.resolve(): path for path in files}
    ours, slurms = ([one for one in plan.changes if (one.path in named) is slurm] for slurm in (False, True))
    writers = {one.path: writer_of(named[one.path], files, lost) for one in slurms}
    stuck = [one for one in ours if not one.own and sealed(one.path)]
    if stuck:
        lines = "".join(_lines(one) for one in stuck if not one.shipped)
        plan.refuse(
            f"{root / _SLURM} is mounted read-only, and {len(stuck)} files of Lucid belong there",
            f"`lucidctl slurm install --root DIR` writes them below DIR, for what is mounted there{lines}",
        )
    if not any(writers.values()):
        return
    plan.changes = ours
    busy = f"drain {host_list(plan.hosts)}, " if plan.hosts else ""
    plan.refuse(
        "a tool writes Slurm's configuration here, and would take Lucid's lines out again: setup changes nothing",
        f"`lucidctl slurm install` (Lucid's own files, which these lines name), {busy}all lines below (+, in "
        "place of -) where it is said, scontrol reconfigure; then run this again (docs/site.md)",
    )
    for one in slurms:
        writer = writers[one.path]
        why, place = (writer.why, writer.place) if writer else ("belongs to these lines", "the file, by hand")
        plan.refuse(f"{one.path} {why}", place + _lines(one))
    node = root / HOOKS.lstrip("/") / "node.conf"
    if any(one.path == node.resolve() for one in ours) and (text := scripts.written("").lstrip()):
        change = Change(node, b"", text.encode("utf-8", "surrogateescape"))
        plan.refuse(f"{node} has to name the scripts that {WRAPPER} runs", f"the file, by hand{_lines(change)}")


def _lines(change: Change) -> str:
    """What goes, and what comes in its place."""
    lines = diff_of([change], around=0).splitlines()[2:]
    return "".join(f"\n         {line}" for line in lines if not line.startswith("@@"))


def _site_scripts(
    plan: Plan, root: Path, merged: Merged, before: SiteScripts, chosen: Mapping[str, str]
) -> SiteScripts:
    """The lines of node.conf on the site's prologs and epilogs; refused while a choice is missing."""
    old = {"Prolog": before.prolog, "Epilog": before.epilog}
    now = {
        key: [*dict.fromkeys([*(old[key] if merged.wrapped[key] else ()), *merged.site_scripts[key]])] for key in old
    }
    scripts = SiteScripts(now["Prolog"], now["Epilog"], {**before.choices, **chosen} if any(now.values()) else {})
    for key in old:
        if merged.wrapped[key] and not now[key]:
            plan.refuse(
                f"{key}={WRAPPER} stands in slurm.conf, and node.conf names no script for it to run",
                f"lines `site-{key.lower()} SCRIPT` in {HOOKS}/node.conf, or take it out of slurm.conf",
            )
    named = scripts.named(root)
    for script in chosen.keys() - named:
        have = ", ".join(sorted(named)) or "none"
        raise ConfigError(
            f"--site-script {script}: no Prolog or Epilog of slurm.conf{did_you_mean(script, named)}; {have}"
        )
    for script, words in scripts.unchosen(root):
        plan.refuse(
            f"{script} runs in the site's Prolog or Epilog and looks for processes or GPUs ({words}): beside a "
            "pair it meets the other job's, and Slurm drains a node whose Prolog fails",
            f"--site-script {script}=first-last (for the first and the last job on a GPU), =not-guests or "
            "=always: docs/files.md says which",
        )
    return scripts


def _layers(plan: Plan, running: Site, names: Sequence[str]) -> None:
    """Check partitions over common nodes: one has to give way to the other, in a way that Lucid serves."""
    for found in check_preemption(Look(Settings(), dict.fromkeys(names, Mode.PACK), running)):
        if found.level == "bad":
            plan.refuse(found.what, f"{found.remedy}; or --mode order")
        elif found.level == "ok":
            plan.notes.append(found.what)
    for node, here in without_layers(names, running.nodes, running.preemption or NO_PREEMPTION):
        plan.refuse(
            f"node {node} stands in {' and '.join(here)}: Lucid plans a node for several partitions only where "
            "the jobs of one give way to those of the other",
            "PreemptType=preempt/partition_prio with PreemptMode=REQUEUE or CANCEL and another PriorityTier for "
            "each; or --mode order for all of them but one",
        )
        break


def _served(plan: Plan, running: Site, options: Options) -> None:
    """Refuse what pack mode does not serve in these partitions."""
    settings = Settings(daemon=DaemonSettings(profiling_partition=options.profiling))
    look = Look(settings, dict.fromkeys(options.partitions, Mode.PACK), running)
    for one in [*taken_whole(look), *check_served(look)]:
        if one.level != "bad":
            plan.notes.append(f"{one.what}: {one.remedy}")
        elif not one.setup_mends:
            plan.refuse(one.what, one.remedy)


def _in_force(plan: Plan, root: Path, texts: Texts, fresh: Mapping[Path, str], running: Site) -> None:
    after = read_texts(root, texts.main, fresh).settings
    plan.wanted = {key: after[key.lower()] for key in _IN_FORCE if key.lower() in after}
    stale = [key for key, value in plan.wanted.items() if running.config.get(key, "") != value]
    scripts = any(change.path.suffix == ".lua" for change in plan.changes)
    pool = plan.lending
    lacks = pool.partition and pool.partition not in running.names
    if fresh or stale or scripts or plan.hosts or lacks or pool.gone:
        plan.steps.append(("reconfigure", "scontrol reconfigure, and wait until slurmctld has all of it in force"))
    if plan.hosts:
        plan.notes.append(
            f"the GPUs of {host_list(plan.hosts)} get addresses or slots: no job may run there meanwhile "
            "(--drain waits)"
        )
    if any(change.shipped for change in plan.changes) or fresh:
        alone = "enable_configless" in running.config.get("SlurmctldParameters", "")
        what = (
            f"{HOOKS} (slurm.conf and gres.conf reach them by themselves)" if alone else "/etc/slurm, as it is here"
        )
        plan.notes.append(f"every node, and every host where users submit, needs {what}: --nodes-have-files says so")


def _site(root: Path, texts: Texts) -> dict[str, str]:
    """The site's own scripts that pack mode has to work with."""
    found = {}
    for file in FILES:
        path = root / file.target
        if file.site_may_have and path.exists() and not is_lucids(path):
            found[path.name] = read_text(path)
    task = texts.settings.get("taskprolog", "")
    if task.startswith("/") and (root / task.lstrip("/")).is_file():
        found[task] = read_text(root / task.lstrip("/"))
    return found


def _plugin(etc: Path, models: Iterable[str], heartbeat: str, *, filtered: bool) -> str:
    """lucid.plugin.conf; a site's own lines in it stay."""
    path = etc / "lucid.plugin.conf"
    if not path.exists():
        return plugin_conf(models, heartbeat, filtered=filtered)
    text = read_text(path)
    have = set(re.findall(r"^type\s+(\S+)", text, re.MULTILINE))
    steps = "steps mapped\n" if filtered and not re.search(r"^steps\s", text, re.MULTILINE) else ""
    return text + steps + "".join(f"type {model}\n" for model in sorted(set(models) - have))
