"""Muri: jobs of equal GPU count take turns on storage, CPU, GPU and network, in groups chosen by matching.

Read in this order: ``muri_policy``, ``live_groups``, ``slow_groups``, ``group_placement``.
Others import ``muri_policy``, ``slow_groups``, ``group_placement``.
"""
