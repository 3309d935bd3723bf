"""Slurm: polled, read, and changed. Nothing outside this folder knows its commands or fields."""
