"""Readings of GPUs, samples of jobs, and the profiles made from them."""
