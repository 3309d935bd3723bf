"""When the nodes are polled, which nodes meet a job's constraints, and GPUs of running jobs without clashes.

All nodes of a large cluster are a large answer, so they are asked for seldom (``slurm.nodes_every_s``). While jobs
wait, or a node boots or goes down, a short listing of states is asked for, and all nodes only when it has changed.

A partition may have nodes of several kinds, and users ask for some by features (``--constraint``), by name (``-w``),
or all but some (``-x``). A job planned on other nodes would be started in vain, again and again, while GPUs that
others could use are kept for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.configuration import Kept
from lucid.slurm.records.fields import hosts
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.view.observation import Observation, users_nodes
from lucid.slurm.view.power_saving import Power, PowerRules, booting
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore

BOOTS_VIEW = "boots"
"""The store's record of how long boots took."""
_MOVES_S, _WAITS_S = 0.9, 1.9
"""How soon the next listing of states follows, where a node is on its way up or down, or where jobs wait: with polls
a second apart, at each or at every other one."""
_RULES_S = 300.0


class NodePolls:
    """Asks for the nodes when they are due."""

    def __init__(self, client: CommandClient, store: SqliteStore, every_s: float) -> None:
        self._client = client
        self._store = store
        self._every_s = every_s
        known = store.view(BOOTS_VIEW)
        self.power = Power(known if isinstance(known, dict) else None)
        self.nodes: Sequence[SlurmNode] = ()
        self._raw: Sequence[SlurmNode] = ()
        self._at_s = self._states_at_s = self._same_s = float("-inf")
        self._rules = Kept(self._read_rules, PowerRules(), _RULES_S)
        self._states: str | None = None

    def poll(self, jobs: Sequence[SlurmJob], now_s: float, fresh: bool = False) -> Sequence[SlurmNode]:
        """The nodes as of now, with what their power state means (``power_saving``). ``fresh``: ask for them in any
        case."""
        since, learned = booting(jobs), False
        if self._due(jobs, bool(since), now_s) or fresh:
            self._states = None if fresh else self._states
            self._raw = self._client.nodes()
            before_s, self._at_s, self._same_s = self._same_s, now_s, now_s
            if any(node.sleeps for node in self._raw):
                self.power.rules = self._rules(now_s)
            learned = self.power.observe_nodes(self._raw, since, now_s, before_s)
        if self.power.observe_jobs(jobs, self._raw) or learned:
            self._store.put_view(BOOTS_VIEW, self.power.boots)
        self.nodes = self.power.with_states(self._raw, now_s, since)
        return self.nodes

    def _due(self, jobs: Sequence[SlurmJob], set_up: bool, now_s: float) -> bool:
        passed_s = now_s - self._at_s
        lost = any(job.lost for job in jobs)  # where a lost job may be, only fresh states of nodes tell
        if lost or passed_s >= self._every_s or passed_s < 0:
            self._states = None  # an older listing tells nothing of what has changed since this look
            return True
        if set_up or self.power.moves(self._raw):
            return self._changed(now_s, _MOVES_S)
        return any(job.pending and job.asks for job in jobs) and self._changed(now_s, _WAITS_S)

    def _changed(self, now_s: float, every_s: float) -> bool:
        """Whether a node has another state than at the last listing."""
        if 0 <= now_s - max(self._states_at_s, self._at_s) < every_s:
            return False
        self._states_at_s = now_s
        before, self._states = self._states, self._client.node_states()
        if self._states == before:
            self._same_s = now_s
            return False
        return True

    def _read_rules(self) -> PowerRules:
        partitions = self._client.partitions()
        return PowerRules.from_config(self._client.config(), any(p.suspends for p in partitions))


_TOKENS = re.compile(r"[\w.:+=/-]+|[&|()\[\],]")
_MOST = 1024
"""Most characters of a constraint that are read."""
_OPENS, _CLOSES = {"(": ")", "[": "]"}, frozenset(")]")


class NodesAskedFor:
    """Which nodes meet what each job's user asks of nodes, at one poll."""

    def __init__(self, facts: Observation) -> None:
        self._facts = facts
        self._met: dict[str, frozenset[str]] = {}

    def words_for(self, record: SlurmJob, note: JobNote | None, home: str, stays: bool = False) -> str:
        """What a job's user asks of nodes, in the user's words, where it rules out some, but not all, of the nodes of
        its VC: otherwise Lucid may have misread it, and Slurm decides. A job that ``stays`` asks for the nodes of its
        own partition, among those of all VCs that lend."""
        facts = self._facts
        listed = users_nodes(record, note)
        words = (record.features, listed and f"-w {listed}", record.excludes and f"-x {record.excludes}")
        asked = " ".join(word for word in words if word)
        pool = None if facts.pool is None or home not in facts.pool.quotas else facts.pool
        if not (asked or (stays and pool)):
            return ""
        vcs = pool.quotas if pool else (home,)
        here = frozenset(n.name for n in facts.nodes if n.gpu_types and not n.partitions.isdisjoint(vcs))
        own = pool.own[home] if stays and pool else here
        if asked and asked not in self._met:
            self._met[asked] = nodes_met(record, listed, facts.nodes)
        met = own & self._met[asked] if asked else own
        if not met or met == own:
            asked, met = "", own
        if own != here:
            asked = f"{asked} -p {home}".strip()
            self._met[asked] = met
        return asked

    def fitting(self, nodes: Sequence[Node], pending: Iterable[Pending]) -> dict[str, tuple[str, ...]]:
        """The nodes that meet each constraint, as in ``Partition.fitting``."""
        asked = {entry.job.constraint for entry in pending} - {""}
        return {words: tuple(n.name for n in nodes if n.name in self._met[words]) for words in sorted(asked)}

    def met_in(self, constraint: str, partition: str) -> bool:
        """Whether any node of a partition meets the constraint."""
        return not constraint or any(
            n.name in self._met[constraint] for n in self._facts.nodes if partition in n.partitions
        )


def nodes_met(record: SlurmJob, users_list: str, nodes: Sequence[SlurmNode]) -> frozenset[str]:
    """The names of the nodes that meet what a job's user asks. ``users_list``: the node list of its user, empty where
    there is none. A constraint that cannot be read rules out no node."""
    listed, excluded = frozenset(hosts(users_list)), frozenset(hosts(record.excludes))
    if len(listed) < record.min_nodes:
        listed = frozenset()  # besides those it gets others
    return frozenset(
        node.name
        for node in nodes
        if (not listed or node.name in listed)
        and node.name not in excluded
        and met_by(record.features, node.features | node.available_features) is not False
    )


def met_by(constraint: str, features: frozenset[str]) -> bool | None:
    """Whether a node with these features meets a constraint. ``None`` where one node alone cannot tell (``a*2``),
    where Slurm's own order of & and | would matter, and where it is no constraint."""
    if not constraint or len(constraint) > _MOST:
        return None
    tokens = _TOKENS.findall(constraint)
    if "".join(tokens) != re.sub(r"\s", "", constraint):
        return None
    try:
        return _Reader(tokens, features).whole()
    except (IndexError, RecursionError, ValueError):
        return None


class _Reader:
    """Reads a constraint: items with one kind of operator between them; an item is a feature, or such a list in
    brackets."""

    def __init__(self, tokens: list[str], features: frozenset[str]) -> None:
        self._tokens = tokens
        self._features = features
        self._at = 0

    def whole(self) -> bool:
        found = self._list()
        if self._at != len(self._tokens):
            raise ValueError("text after the end")
        return found

    def _list(self) -> bool:
        found, operator = [self._item()], ""
        while self._at < len(self._tokens) and self._tokens[self._at] not in _CLOSES:
            here = "|" if self._tokens[self._at] == "|" else "&" if self._tokens[self._at] in "&," else "?"
            if here == "?" or here != (operator or here):
                raise ValueError("no operator, or two kinds of them")
            operator = here
            self._at += 1
            found.append(self._item())
        return any(found) if operator == "|" else all(found)

    def _item(self) -> bool:
        token = self._tokens[self._at]
        self._at += 1
        if token in _OPENS:
            found = self._list()
            if self._tokens[self._at] != _OPENS[token]:
                raise ValueError("brackets that do not match")
            self._at += 1
            return found
        if not token[0].isalnum() and token[0] not in "_.":
            raise ValueError("no feature")
        return token in self._features


def without_clashes(entries: Sequence[Running], coming: Collection[str], gpus: Mapping[str, int]) -> list[Running]:
    """The running jobs, each job of ``coming`` moved to as many GPUs of the same nodes that no other job has. Slurm
    chooses the GPUs of jobs on whole GPUs, and may have given those planned for one job to another; two on one GPU
    would look like a pair, and a GPU that is taken like a free one. ``gpus``: how many each node has."""
    if not coming:
        return list(entries)
    used: dict[str, int] = defaultdict(int)
    for entry in entries:
        if entry.job.id not in coming:
            for part in entry.placement:
                used[part.node] |= part.mask
    found = []
    for entry in entries:
        if entry.job.id in coming:
            parts = tuple(_moved(part, used[part.node], gpus.get(part.node, 0)) for part in entry.placement)
            for part in parts:
                used[part.node] |= part.mask
            entry = entry if parts == entry.placement else replace(entry, placement=parts)
        found.append(entry)
    return found


def _moved(part: NodeGpus, used: int, gpus: int) -> NodeGpus:
    """The job's GPUs on the node: its own where they are free, then others; its own where there are too few
    others."""
    wanted = part.mask.bit_count()
    mask = part.mask & ~used
    free = ((1 << gpus) - 1) & ~used & ~mask
    while free and mask.bit_count() < wanted:
        mask |= free & -free
        free &= free - 1
    return NodeGpus(part.node, mask) if mask.bit_count() == wanted else part
