"""When the nodes are looked at again, and what is then known of each of them.

All nodes of a large cluster are a large answer, so they are asked for seldom (``slurm.nodes_every_s``). But what waits
for a node must not wait for that, too: while one boots or goes down, or a job is set up on one, all are asked for at
nearly every look. And while jobs wait, a short listing of states is asked for, and the nodes when it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lucid.adapters.slurm.client import SlurmClient
from lucid.adapters.slurm.nouns import SlurmJob, SlurmNode
from lucid.adapters.slurm.power import Power, PowerRules, booting
from lucid.adapters.store.port import Store
from lucid.errors import ClusterError, ClusterUnavailable

__all__ = ["BOOTS_VIEW", "NodeLooks"]

BOOTS_VIEW = "boots"
"""The store's picture of how long boots took."""
_SOON_S = 0.9
"""lucidd's looks are a second apart while something waits, and farther where Slurm is slow: this is at each …"""
_STATES_S = 1.9
"""… and this at every other one."""
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
        self._at_s = self._states_at_s = self._rules_at_s = float("-inf")
        self._states: str | None = None

    def look(self, jobs: Sequence[SlurmJob], now_s: float) -> Sequence[SlurmNode]:
        """The nodes as of now, with what their power state means (``power``)."""
        since, learned = booting(jobs), False
        if self._due(jobs, bool(since), now_s):
            self._raw = self._client.nodes()
            self._at_s = now_s
            if any(node.sleeps for node in self._raw):
                self._read_rules(now_s)
            learned = self.power.saw(self._raw, since, now_s)
        if self.power.saw_jobs(jobs, self._raw) or learned:
            self._store.put_view(BOOTS_VIEW, self.power.boots)
        self.nodes = self.power.told(self._raw, now_s)
        return self.nodes

    def _due(self, jobs: Sequence[SlurmJob], set_up: bool, now_s: float) -> bool:
        passed_s = now_s - self._at_s
        if passed_s >= self._every_s or passed_s < 0:
            return True
        if any(job.lost for job in jobs):  # where a lost job may be, only fresh states of nodes tell
            return True
        if passed_s < _SOON_S:
            return False
        if set_up or self.power.moves(self._raw):
            return True
        return any(job.pending and job.asks for job in jobs) and self._changed(now_s)

    def _changed(self, now_s: float) -> bool:
        """Has a node another state than at the last look at them?"""
        if 0 <= now_s - self._states_at_s < _STATES_S:
            return False
        self._states_at_s = now_s
        before, self._states = self._states, self._client.node_states()
        return self._states is not None and self._states != before

    def _read_rules(self, now_s: float) -> None:
        if 0 <= now_s - self._rules_at_s < _RULES_S:
            return
        self._rules_at_s = now_s
        try:
            partitions = self._client.partitions()
            self.power.rules = PowerRules.of(self._client.config(), any(p.suspends for p in partitions))
        except ClusterUnavailable:
            raise
        except ClusterError:
            return
