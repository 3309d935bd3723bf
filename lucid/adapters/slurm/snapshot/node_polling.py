"""When the nodes are looked at again, and what is then known of each of them.

All nodes of a large cluster are a large answer, so they are asked for seldom (``slurm.nodes_every_s``). But what
waits for a node must not wait for that, too. So while jobs wait, or a node boots or goes down, a short listing of
states is asked for, and all nodes only when it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lucid.adapters.slurm.clients.port import SlurmClient
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.snapshot.power_saving import Power, PowerRules, booting
from lucid.adapters.store.port import Store
from lucid.errors import ClusterError, ClusterUnavailable

__all__ = ["BOOTS_VIEW", "NodeLooks"]

BOOTS_VIEW = "boots"
"""The store's picture of how long boots took."""
_MOVES_S, _WAITS_S = 0.9, 1.9
"""So soon after the last listing of states comes the next, where a node is on its way up or down, or jobs wait: with
lucidd's looks, a second apart, at each or at every other one."""
_RULES_S = 300.0


class NodeLooks:
    """Asks for the nodes when they are due."""

    def __init__(self, client: SlurmClient, store: Store, every_s: float) -> None:
        self._client = client
        self._store = store
        self._every_s = every_s
        known = store.view(BOOTS_VIEW)
        self.power = Power(known if isinstance(known, dict) else None)
        self.nodes: Sequence[SlurmNode] = ()
        self._raw: Sequence[SlurmNode] = ()
        self._at_s = self._states_at_s = self._rules_at_s = self._same_s = float("-inf")
        self._states: str | None = None

    def look(self, jobs: Sequence[SlurmJob], now_s: float, fresh: bool = False) -> Sequence[SlurmNode]:
        """The nodes as of now, with what their power state means (``power_saving``). ``fresh``: ask for them in any
        case."""
        since, learned = booting(jobs), False
        if self._due(jobs, bool(since), now_s) or fresh:
            self._states = None if fresh else self._states
            self._raw = self._client.nodes()
            before_s, self._at_s, self._same_s = self._same_s, now_s, now_s
            if any(node.sleeps for node in self._raw):
                self._read_rules(now_s)
            learned = self.power.saw(self._raw, since, now_s, before_s)
        if self.power.saw_jobs(jobs, self._raw) or learned:
            self._store.put_view(BOOTS_VIEW, self.power.boots)
        self.nodes = self.power.told(self._raw, now_s, since)
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
        """Has a node another state than at the last listing?"""
        if 0 <= now_s - max(self._states_at_s, self._at_s) < every_s:
            return False
        self._states_at_s = now_s
        before, self._states = self._states, self._client.node_states()
        if self._states == before:
            self._same_s = now_s
            return False
        return True

    def _read_rules(self, now_s: float) -> None:
        if 0 <= now_s - self._rules_at_s < _RULES_S:
            return
        try:
            partitions = self._client.partitions()
            self.power.rules = PowerRules.of(self._client.config(), any(p.suspends for p in partitions))
            self._rules_at_s = now_s
        except ClusterUnavailable:
            raise
        except ClusterError:
            return  # what was read before counts
