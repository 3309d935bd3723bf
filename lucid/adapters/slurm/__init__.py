"""Slurm: asking it, reading its answers, changing jobs, and the files shared with its plugin and hooks."""
