"""Pairs of jobs on the same GPUs: which may share, which should, and when to part them."""
