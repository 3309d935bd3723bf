"""Slurm: asking it, reading its answers, changing jobs, and the files shared with its plugin and hooks.

Read in this order: ``cluster``, ``heartbeat``, ``wake``. Folders: ``clients``, ``records``, ``pending``,
``snapshot``, ``actions``, ``elastic``.
"""
