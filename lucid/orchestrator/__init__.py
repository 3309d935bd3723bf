"""Decides: annotates snapshots, plans, checks plans for safety, and runs the cycle.

Read in this order: ``cycle``, ``annotate``, ``policy``, ``rules``, ``rounds``, ``by_partition``, ``plan_reuse``,
``blocked_jobs``, ``boot_reasons``, ``must_leave``, ``isolation``, ``policy_host``. Folders:
``policies``, ``order``, ``capacity``, ``forecast``, ``safety``.
Others import ``cycle``, ``policy``, ``rules``, ``by_partition``, ``isolation``, ``policy_host``.
"""
