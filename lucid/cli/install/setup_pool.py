"""Which partitions could lend idle GPUs to each other: ``lucidctl setup --mode pack --lending borrow`` makes one more
partition over all their nodes, in which only lucidd starts jobs. Users keep their partitions, and each VC has its
nodes as quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.config import Settings
from lucid.errors import ConfigError
from lucid.slurmconf.conf_text import Texts, edited, read_texts
from lucid.slurmconf.gres_text import ADDRESS
from lucid.slurmconf.lending import differing, pool_line, rules_of, without_pool
from lucid.slurmconf.merge import Refusal

__all__ = ["Lending", "Pool", "Tables", "could_lend", "lending_of", "pool_for"]

Tables = Mapping[str, Mapping[str, str | int | Mapping[str, int]]]
"""Keys of lucid.toml by table."""

_NAMES = ("overflow", "lucid-overflow")
_BY_HAND = "docs/slurm-lending.md says how VCs of another kind lend; or leave out --lending"

_COULD = (
    "{} could lend each other idle GPUs: --lending borrow makes the pool, --lending off ends this note. "
    "`lucidctl report --jobs sacct.txt --vcs vcs.csv` (or --history, once lucidd has run) says what it would have "
    "brought here: once with --lending borrow, once with --lending off"
)


@dataclass(frozen=True, slots=True)
class Pool:
    """``quotas``: GPUs of each VC; empty where no two of them could lend to each other. ``lines`` of slurm.conf.
    ``left_out``: why each of the others stays outside, in words."""

    partition: str
    quotas: Mapping[str, int]
    lines: Sequence[str]
    left_out: Sequence[str]


@dataclass(frozen=True, slots=True)
class Lending:
    """What becomes of the pool: ``tables`` of lucid.toml, the table that ``leaves`` it, and Slurm's files as they are
    to be, where they change. The rest is as in ``setup_plan.Plan``."""

    tables: Tables = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    leaves: str = ""
    partition: str = ""
    gone: str = ""
    again: bool = False
    notes: Sequence[str] = ()
    refused: Sequence[Refusal] = ()


def lending_of(
    asked: str,
    settings: Settings,
    texts: Texts,
    packed: Sequence[str],
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    left: str = "",
) -> Lending:
    """Make the pool (*asked* is ``borrow``), take it away (``off``), or say that it could be made.

    Args:
        asked: what the administrator said, or nothing.
        settings: of lucid.toml as it stands.
        texts: slurm.conf as it stands.
        packed: partitions that are, or will be, in pack mode.
        nodes: Slurm's.
        jobs: Slurm's.
        left: a partition that an earlier run has made and taken out of slurm.conf again, and that Slurm still has.
    """
    rules, lending = settings.daemon.pool, settings.policy.lending
    said = lending.mode if "mode" in lending.model_fields_set else ""
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
        return Lending(refused=[Refusal(f"no two partitions could lend to each other: {what}", _BY_HAND)])
    return Lending(
        {
            "daemon.pool": {"partition": pool.partition, "quotas": pool.quotas},
            "policy.lending": {"mode": "borrow"},
        },
        {texts.main: edited(texts.files[texts.main], (), pool.lines)},
        partition=pool.partition,
        notes=[
            f"{', '.join(pool.quotas)} lend each other idle GPUs, in partition {pool.partition}, where only lucidd "
            "starts jobs; each has its own GPUs as its quota (docs/slurm-lending.md)",
            *pool.left_out,
        ],
    )


def _kept(settings: Settings, asked: str, texts: Texts, packed: Sequence[str], nodes: Sequence[SlurmNode]) -> Lending:
    """lucid.toml has a pool. Its partition may be gone, where setup was undone and lucid.toml has stayed."""
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
    """First lucidd lends no more; once no job is left in the pool's partition, that goes, too."""
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
    """In order mode Lucid starts no job, so that no VC lends: a word on those that could."""
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
    """Of these partitions the most GPUs that are alike and belong to VCs of the same rules."""
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
    """What makes nodes alike. A GPU's model is its type, or a feature of its node once GPUs have addresses."""
    models = frozenset(kind for kind in node.gpu_types if not ADDRESS.fullmatch(kind))
    return models | node.features, len(node.gpu_types), node.cpus, node.mem_mib
