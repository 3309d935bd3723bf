"""Policies that change how many GPUs a job has while it runs.

Read in this order: ``plan_draft``, ``resize_worth``, ``data_sharing``, ``pollux``, ``optimus``, ``drf``.
Others import ``data_sharing``, ``pollux``, ``optimus``, ``drf``.
"""
