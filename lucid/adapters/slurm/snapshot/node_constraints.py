"""Which nodes a job's user asks for: by features (``--constraint``), by name (``-w``), all but some (``-x``). Pure.

A partition may have nodes of several kinds. A job is then planned on nodes that it may have, or it would be started
in vain, again and again, while GPUs that others could use are kept for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lucid.adapters.slurm.records.field_parsers import hosts
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.snapshot.observation import Observation, users_nodes
from lucid.adapters.store.port import JobNote
from lucid.core.job import Pending
from lucid.core.node import Node

__all__ = ["NodesAskedFor", "met_by", "nodes_met"]

_TOKENS = re.compile(r"[\w.:+=/-]+|[&|()\[\],]")
_MOST = 1024
"""Characters of a constraint that are read."""
_OPENS, _CLOSES = {"(": ")", "[": "]"}, frozenset(")]")


class NodesAskedFor:
    """Of one look: which nodes meet what each job's user asks of nodes."""

    def __init__(self, facts: Observation | None) -> None:
        """``None``: nothing was looked at yet."""
        self._facts = facts
        self._met: dict[str, frozenset[str]] = {}

    def of(self, record: SlurmJob, note: JobNote | None, home: str) -> str:
        """What a job's user asks of nodes, in the user's words, where it rules out some of the nodes of its VC, and
        not all: Slurm decides about what Lucid may have read wrongly."""
        facts = self._facts
        listed = users_nodes(record, note)
        words = (record.features, listed and f"-w {listed}", record.excludes and f"-x {record.excludes}")
        asked = " ".join(word for word in words if word)
        if not asked or facts is None:
            return ""
        if asked not in self._met:
            self._met[asked] = nodes_met(record, listed, facts.nodes)
        vcs = facts.pool.quotas if facts.pool is not None and home in facts.pool.quotas else (home,)
        met = [
            node.name in self._met[asked]
            for node in facts.nodes
            if node.gpu_types and not node.partitions.isdisjoint(vcs)
        ]
        return asked if any(met) and not all(met) else ""

    def fitting(self, nodes: Sequence[Node], pending: Iterable[Pending]) -> dict[str, tuple[str, ...]]:
        """See ``Partition.fitting``."""
        asked = {entry.job.constraint for entry in pending} - {""}
        return {words: tuple(n.name for n in nodes if n.name in self._met[words]) for words in sorted(asked)}

    def met_in(self, constraint: str, partition: str) -> bool:
        """Does any node of a partition meet a job's constraint?"""
        if not constraint or self._facts is None:
            return True
        return any(n.name in self._met[constraint] for n in self._facts.nodes if partition in n.partitions)


def nodes_met(record: SlurmJob, users_list: str, nodes: Sequence[SlurmNode]) -> frozenset[str]:
    """The names of the nodes that meet what a job's user asks. ``users_list``: the node list of its user, empty where
    there is none. What cannot be read rules out no node."""
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
    """Does a node with these features meet a constraint? ``None`` where one node alone cannot tell (``a*2``), where
    Slurm's own order of & and | would matter, and where it is no constraint."""
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
    """Items with one kind of operator between them; an item is a feature, or such a list in brackets."""

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
