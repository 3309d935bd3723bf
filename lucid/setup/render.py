"""Writes gres.conf with an address and slots for each GPU, the slurm.conf lines for it, the lending partition.

Each GPU gets a GRES type of its own, its address (``g0``, ``g1``, ...), and slots (shards) of the same type: only so
can a job be sent to a chosen GPU, and only so does Slurm itself bound the jobs of a GPU. A site's own gres.conf is
rewritten in the same way. For VCs that lend GPUs to each other there are the partition in which jobs borrow, as
``lucidctl setup`` writes it, and lines and commands for administrators who type them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lucid.core.placement import hosts_in
from lucid.errors import ConfigError
from lucid.setup.conf_text import HOOKS, NEEDED, Edit, Statement, Texts, edited, with_values, written
from lucid.setup.nodes import NodeSpec, PartitionSpec, device_number, host_list

SLOTS = 2
"""Jobs that may share one GPU by default: Lucid pairs. Groups that take turns (Muri) need more."""
MOST_SLOTS = 8

STALE_S = 60
"""Age of the heartbeat, s, from which the plugin leaves jobs alone."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts of files: the whole of ``gres_conf`` and ``plugin_conf``, and the part ``slurm_conf`` to include."""

    gres_conf: str
    slurm_conf: str
    plugin_conf: str


def render(
    nodes: Sequence[NodeSpec],
    partitions: Sequence[PartitionSpec] = (),
    *,
    heartbeat: str = "/run/lucid/heartbeat",
    files: str = HOOKS,
    node_extra: dict[str, str] | None = None,
    slots: int = SLOTS,
) -> Rendered:
    """Configuration for these nodes and partitions.

    Args:
        partitions: Partition lines to write; none leaves the partitions to the site's own slurm.conf.
        heartbeat: Where the daemon writes its heartbeat, on slurmctld's host.
        files: The folder that holds Lucid's prolog, epilog and task prolog on every node.
        node_extra: More for each NodeName line, by host list (``{"n[1-4]": "Port=[17001-17004]"}``).

    Raises:
        ConfigError: a host stands in two groups, or a partition names a host that no group has."""
    known: set[str] = set()
    for node in nodes:
        for host in hosts_in(node.hosts):
            if host in known:
                raise ConfigError(f"host {host} is given twice; each host belongs in one --nodes")
            known.add(host)
    for partition in partitions:
        for host in hosts_in(partition.hosts):
            if host not in known:
                raise ConfigError(f"partition {partition.name} names host {host}, which no --nodes describes")
    if len([partition for partition in partitions if partition.default]) > 1:
        raise ConfigError("more than one partition is the default; give --default once")
    return Rendered(
        _gres_conf(nodes, slots),
        _slurm_conf(nodes, partitions, files, node_extra or {}, slots),
        plugin_conf([node.gpu_type for node in nodes if node.gpu_type], heartbeat),
    )


def gpu_lines(hosts: str, devices: Sequence[str], slots: int = SLOTS) -> list[str]:
    """Lines of gres.conf: an address and slots for each GPU. A device is its File, and the rest of its line."""
    files = [device.split()[0] for device in devices]
    types = [f"g{device_number(file)}" for file in files]
    return [
        *(f"NodeName={hosts} Name=gpu Type={kind} File={line}" for kind, line in zip(types, devices, strict=True)),
        *(
            f"NodeName={hosts} Name=shard Type={kind} Count={slots} File={file}"
            for kind, file in zip(types, files, strict=True)
        ),
    ]


def addresses(numbers: Iterable[int], slots: int = SLOTS) -> str:
    """The value of ``Gres=`` of a NodeName line for the GPUs whose device files have these numbers."""
    types = [f"g{number}" for number in numbers]
    return ",".join([*(f"gpu:{kind}:1" for kind in types), *(f"shard:{kind}:{slots}" for kind in types)])


def plugin_conf(types: Iterable[str], heartbeat: str, *, filtered: bool = True) -> str:
    """The text of lucid.plugin.conf. *types* are the GPU models that users may ask for. *filtered*: Lucid's
    cli_filter.lua runs in srun on the nodes, too."""
    lines = [
        "# Written by `lucidctl slurm render`; read by job_submit.lua and cli_filter.lua.",
        f"heartbeat {heartbeat}",
        f"stale {STALE_S}",
        "route no",
        "shards lucid",
        *(["steps mapped"] if filtered else []),
        *(f"type {name}" for name in sorted(set(types))),
    ]
    return "\n".join(lines) + "\n"


def _gres_conf(nodes: Sequence[NodeSpec], slots: int) -> str:
    lines = [
        "# Written by `lucidctl slurm render`. The same file belongs on every node and on slurmctld's host.",
        "# One type a GPU is its address; found types (AutoDetect) would hide the addresses.",
        "AutoDetect=off",
    ]
    for node in nodes:
        lines += gpu_lines(node.hosts, [node.device.replace("{}", str(number)) for number in range(node.gpus)], slots)
    return "\n".join(lines) + "\n"


def _slurm_conf(
    nodes: Sequence[NodeSpec], partitions: Sequence[PartitionSpec], files: str, extra: dict[str, str], slots: int
) -> str:
    lines = [
        "# Written by `lucidctl slurm render`. Include it from slurm.conf in place of the site's own lines for",
        "# these nodes; parameters that slurm.conf sets already must stand in one of the two files only.",
        *(f"{key}={value.replace(HOOKS, files)}" for key, value in NEEDED.items()),
    ]
    for node in nodes:
        parts = [f"NodeName={node.hosts}"]
        parts += [f"CPUs={node.cpus}"] if node.cpus else []
        parts += [f"RealMemory={node.mem_mib}"] if node.mem_mib else []
        features = [*([node.gpu_type] if node.gpu_type else []), *node.features]
        parts += [f"Feature={','.join(features)}"] if features else []
        parts += [f"Gres={addresses(range(node.gpus), slots)}"]
        parts += [extra[node.hosts]] if node.hosts in extra else []
        lines.append(" ".join(parts))
    for partition in partitions:
        parts = [f"PartitionName={partition.name}", f"Nodes={partition.hosts}"]
        parts += ["Default=YES"] if partition.default else []
        parts += [f"{key}={value}" for key, value in partition.options.items()]
        lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"


ADDRESS = re.compile(r"g\d+")
RENAME = "Type=g3 for File=/dev/nvidia3 and so on in gres.conf, the same in slurm.conf's Gres=, while no job is there"
_KEPT = ("cores", "cpus", "links", "link", "flags")
"""Keys of a GPU's line that are copied beside its address."""


@dataclass(slots=True)
class Gres:
    """The rewritten gres.conf. ``files``: the texts that change. ``numbers``: of the GPUs' device files, by host that
    gets addresses. ``models``: the type that they give to GPUs, by host. ``problems`` say why a host cannot be given
    addresses, each with its remedy."""

    files: dict[Path, str] = field(default_factory=dict)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def hosts_or_none(expression: str) -> list[str] | None:
    """The hosts of a host list; ``None`` where it is one that Lucid does not read (``n[1-2]r[1-4]``)."""
    try:
        return hosts_in(expression)
    except ConfigError:
        return None


def misnamed(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """The addresses that are not the number of their device file, in words: ``g2 is /dev/nvidia3``. Lucid, which sees
    no gres.conf, takes the one for the other."""
    return [
        f"{pairs['type']} is {file}"
        for pairs in rows
        if pairs.get("name") in ("gpu", "shard") and ADDRESS.fullmatch(pairs.get("type", ""))
        for file in hosts_or_none(pairs.get("file", "")) or ()
        if pairs["type"] != f"g{device_number(file)}"
    ]


def with_slots(texts: Texts, hosts: Iterable[str], slots: int) -> dict[Path, str]:
    """gres.conf with so many slots for each GPU of these hosts, which have addresses; the files that change. A line
    of some of them and of others changes as a whole."""
    mine, edits = set(hosts), dict[Path, list[Edit]]()
    for statement in texts.statements:
        pairs = _folded(statement.pairs)
        names = hosts_or_none(pairs["nodename"]) if "nodename" in pairs else []
        if pairs.get("name") != "shard" or not ADDRESS.fullmatch(pairs.get("type", "")):
            continue
        if pairs.get("count") != str(slots) and (not names or mine & set(names)):
            edit = with_values(statement, texts.files[statement.path], {"Count": str(slots)})
            edits.setdefault(statement.path, []).append(edit)
    return {path: edited(texts.files[path], made) for path, made in edits.items()}


def addressed_gres(
    texts: Texts, wanted: Mapping[str, int], others: Iterable[str], slots: int = SLOTS, ready: Iterable[str] = ()
) -> Gres:
    """gres.conf, with what it includes, with addresses for the GPUs of the hosts *wanted* (GPUs by host). The hosts
    *others* keep theirs.

    Hosts that have addresses already are left as they are, also those that slurm.conf marks as *ready*: an address
    that is not the number of its device file is a problem."""
    result = Gres()
    rows = [(statement, _folded(statement.pairs)) for statement in texts.statements]
    covers = {}
    for statement, pairs in rows:
        hosts = hosts_or_none(pairs["nodename"]) if "nodename" in pairs else []
        if hosts is None:
            result.problems.append(
                (
                    f"{statement.path}: NodeName={pairs['nodename']} is a host list that setup does not read",
                    "write the line once for each range (n[1-4]), then run this again",
                )
            )
            return result
        covers[statement] = set(hosts)
    for host in sorted({*wanted, *ready}):
        if wrong := misnamed(
            pairs for statement, pairs in rows if not covers[statement] or host in covers[statement]
        ):
            result.problems.append(
                (f"node {host} has addresses of other files: {', '.join([*dict.fromkeys(wrong)])}", RENAME)
            )
    devices: dict[str, tuple[str, ...]] = {}
    for host, count in wanted.items():
        mine = [(s, pairs) for s, pairs in rows if not covers[s] or host in covers[s]]
        types = {pairs["type"] for _, pairs in mine if pairs.get("name") == "gpu" and "type" in pairs}
        if types and all(ADDRESS.fullmatch(kind) for kind in types):
            result.numbers[host] = tuple(sorted(int(kind[1:]) for kind in types))
            continue
        result.models[host] = types
        found = _devices(host, count, [pairs for _, pairs in mine], result)
        if found is not None:
            devices[host] = found
            result.numbers[host] = tuple(device_number(device.split()[0]) or 0 for device in found)
    if not result.problems and devices:
        result.files = _rewritten(texts, rows, covers, devices, sorted(set(others) - set(wanted)), slots)
    return result


def _devices(host: str, count: int, rows: list[dict[str, str]], result: Gres) -> tuple[str, ...] | None:
    shared = [pairs["name"] for pairs in rows if pairs.get("name") in ("shard", "mps")]
    gpus = [pairs for pairs in rows if pairs.get("name") == "gpu" and ("autodetect" not in pairs or "file" in pairs)]
    said = [pairs for pairs in rows if "autodetect" in pairs]
    said = [pairs for pairs in said if "nodename" in pairs] or said  # a node's own line goes before that of all
    detects = bool(said) and said[-1]["autodetect"].lower() != "off"
    found = []
    for pairs in gpus:
        more = "".join(f" {key.capitalize()}={pairs[key]}" for key in _KEPT if key in pairs)
        found += [file + more for file in hosts_or_none(pairs.get("file", "")) or ()]
    problem = None
    if shared:
        problem = (
            f"has gres/{shared[0]} already",
            "take it out of gres.conf, slurm.conf and jobs: pairs use Lucid's slots",
        )
    elif any("multiplefiles" in pairs for pairs in gpus):
        problem = "has GPUs of several files (MultipleFiles=, MIG)", "leave its partition in observe or order mode"
    elif any("file" not in pairs for pairs in gpus):
        problem = "has GPUs without File=", "File=/dev/nvidia[0-3] on the line of its GPUs in gres.conf"
    elif detects and not all({"cores", "cpus"} & pairs.keys() and {"links", "link"} & pairs.keys() for pairs in gpus):
        problem = (
            "gets the cores and links of its GPUs from AutoDetect, which addresses need switched off",
            "a line for each GPU with the File=, Cores= and Links= that `slurmd -G` prints there, in gres.conf; or "
            "AutoDetect=off for the node, if no job needs them",
        )
    elif not gpus and detects:
        note = (
            "AutoDetect is switched off for nodes with addresses: their GPUs are taken to be /dev/nvidia0 and so on, "
            "without their cores and links (if jobs need them: `setup --undo`, a line in gres.conf for each GPU with "
            "the File=, Cores= and Links= that `slurmd -G` prints, and setup again). Where nvidia-smi -q shows Minor "
            "Number in another order, cgroup.conf needs ConstrainDevices=yes (docs/gpu-health.md)"
        )
        result.notes += [] if note in result.notes else [note]
        found = [f"/dev/nvidia{number}" for number in range(count)]
    elif not gpus:
        problem = (
            "has no line for its GPUs in gres.conf",
            "put the gres.conf of the nodes here, with NodeName= in each line",
        )
    elif len(found) != count:
        problem = f"has {len(found)} GPUs in gres.conf, {count} in slurm.conf", "one number in both files"
    elif len({device_number(line.split()[0]) for line in found} - {None}) != count:
        problem = (
            f"has GPUs whose device files do not end in a number of their own ({', '.join(found[:8])})",
            "File= with the numbered files (/dev/nvidia3, /dev/dri/renderD128): the number is the GPU's address",
        )
    if problem is not None:
        result.problems.append((f"node {host} {problem[0]}", problem[1]))
        return None
    return tuple(sorted(found, key=lambda device: [int(part) for part in re.findall(r"\d+", device.split()[0])]))


def _folded(pairs: dict[str, str]) -> dict[str, str]:
    """The pairs, with the spellings that Slurm takes for one another made one."""
    more = {"file": pairs["files"]} if "files" in pairs and "file" not in pairs else {}
    return {**pairs, **more, **({"name": pairs["name"].lower()} if "name" in pairs else {})}


def _rewritten(
    texts: Texts,
    rows: list[tuple[Statement, dict[str, str]]],
    covers: Mapping[Statement, set[str]],
    devices: Mapping[str, tuple[str, ...]],
    others: list[str],
    slots: int,
) -> dict[Path, str]:
    edits, off = dict[Path, list[Edit]](), False
    for statement, pairs in rows:
        mine = edits.setdefault(statement.path, [])
        detects = pairs.get("autodetect", "off").lower() != "off"
        if not detects and pairs.get("name") != "gpu":
            off = off or ("autodetect" in pairs and not covers[statement])
            continue
        left = sorted(covers[statement] - devices.keys()) if covers[statement] else others
        if covers[statement] and len(left) == len(covers[statement]):
            continue
        if not left:
            mine.append(Edit(statement.first, statement.after, ()))
        elif covers[statement]:
            mine.append(with_values(statement, texts.files[statement.path], {"NodeName": host_list(left)}))
        else:
            mine.append(
                Edit(statement.first, statement.after, (f"NodeName={host_list(left)} {statement.text.strip()}",))
            )
    groups: dict[tuple[str, ...], list[str]] = {}
    for host, files in devices.items():
        groups.setdefault(files, []).append(host)
    more = ["# Lucid: one type a GPU is its address; slots of the same type (docs/files.md)."]
    more += [] if off else [f"NodeName={host_list(devices)} AutoDetect=off" if others else "AutoDetect=off"]
    for files, hosts in groups.items():
        more += gpu_lines(host_list(hosts), files, slots)
    return {
        path: edited(text, edits.get(path, ()), more if path == texts.main else ())
        for path, text in texts.files.items()
    }


_MADE = "# Lucid: VCs lend idle GPUs (lucidctl setup --lending off takes this line away)"
_OWN = frozenset(["partitionname", "nodes", "default", "state", "alternate"])
_WHO = {"allowaccounts": "AllowAccounts", "allowgroups": "AllowGroups", "allowqos": "AllowQos"}


def rules_of(texts: Texts) -> dict[str, dict[str, str]]:
    """By partition: all that its line sets, with the lines of PartitionName=DEFAULT before it. Keys in small
    letters."""
    default, found = dict[str, str](), dict[str, dict[str, str]]()
    for statement in texts.statements_of("PartitionName"):
        name = statement.pairs["partitionname"]
        if name.upper() == "DEFAULT":
            default |= statement.pairs
        else:
            found[name] = {**default, **statement.pairs}
    return found


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The keys in which the rules of two partitions differ, but for nodes, and for who may use them."""
    keys = (one.keys() | other.keys()) - _OWN - _WHO.keys()
    return sorted(key for key in keys if one.get(key) != other.get(key))


def pool_line(name: str, nodes: Sequence[str], vcs: Sequence[str], texts: Texts) -> list[str]:
    """Lines for the end of slurm.conf: a partition over the nodes of these VCs, whose rules do not differ. Users of
    one of the VCs may be moved there."""
    rules = [rules for vc, rules in rules_of(texts).items() if vc in vcs]
    spelled = dict[str, str]()
    for statement in texts.statements_of("PartitionName"):
        for key in re.findall(r"([\w.]+)\s*[-+*/]?=", statement.text):
            spelled.setdefault(key.lower(), key)
    words = [f"PartitionName={name}", f"Nodes={host_list(nodes)}"]
    words += [
        f"{spelled.get(key, key)}={written(value)}"
        for key, value in rules[0].items()
        if key not in _OWN | _WHO.keys()
    ]
    for key, spelling in _WHO.items():
        lists = [one.get(key, "ALL") for one in rules]
        if any(key in one for one in rules):
            everybody = any(one.upper() == "ALL" for one in lists)
            may = ["ALL"] if everybody else sorted({who for one in lists for who in one.split(",") if who})
            words.append(f"{spelling}={','.join(may)}")
    return [_MADE, " ".join(words)]


def without_pool(texts: Texts, name: str) -> dict[Path, str]:
    """The files without the lines that ``pool_line`` gave; none where somebody else wrote the partition's line."""
    for statement in texts.statements_of("PartitionName"):
        text = texts.files[statement.path]
        above = text.split("\n")[statement.first - 1].rstrip("\r") if statement.first else ""
        if statement.pairs["partitionname"] == name and above == _MADE:
            return {statement.path: edited(text, [Edit(statement.first - 1, statement.after, ())])}
    return {}


def lending_text(
    partition: str,
    quotas: Mapping[str, int],
    nodes: Mapping[str, Sequence[str]],
    bounded: frozenset[str],
    gpus: int,
    by_account: bool = False,
    slots: int = SLOTS,
) -> str:
    """The lines and commands for lending, each with a word on what it is for.

    Args:
        partition: the pool's, over all nodes.
        nodes: names of the nodes of each VC's partition.
        bounded: VCs whose partition has more GPUs than their quota.
        by_account: accounts keep these to their quotas, and not a QOS of their partition."""
    everywhere = sorted({name for names in nodes.values() for name in names})
    room = f"PartitionName={partition} Nodes={','.join(everywhere)} MaxTime=UNLIMITED State=UP"
    lines, commands = ["# slurm.conf: only lucidd starts jobs there (job_submit.lua refuses users)."], list[str]()
    limited = [vc for vc in quotas if vc in bounded]
    if limited and by_account:
        room += " QOS=lucid-borrow"
        commands += ["# Goes before the limits of accounts: all GPUs, or fewer to bound what is lent."]
        commands += [f"sacctmgr -i add qos lucid-borrow set {_limit(gpus, slots)}"]
        commands += ["# The quotas: name the account of each VC."]
        commands += [f"sacctmgr -i modify account ACCOUNT_OF_{vc} set {_limit(quotas[vc], slots)}" for vc in limited]
    lines.append(room)
    if limited and not by_account:
        lines += ["# Add this to the line of each VC, whose nodes are also those of others."]
        lines += [f"PartitionName={vc} … QOS={vc}-quota" for vc in limited]
        commands += ["# The quotas: before slurm.conf names them."]
        commands += [f"sacctmgr -i add qos {vc}-quota set {_limit(quotas[vc], slots)}" for vc in limited]
    if limited:
        lines += ["AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/shard"]
    else:
        lines += ["# Each VC has as many GPUs of its own as its quota: no limit is needed."]
    return "\n".join([*commands, *lines]) + "\n"


def _limit(gpus: int, slots: int) -> str:
    """The limit in GPUs and slots: Slurm counts a job in slots against gres/shard only."""
    return f"GrpTRES=gres/gpu={gpus},gres/shard={slots * gpus}"
