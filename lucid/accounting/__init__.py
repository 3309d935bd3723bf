"""Slurm's job logs: rows, values, states, and why jobs ended badly."""
