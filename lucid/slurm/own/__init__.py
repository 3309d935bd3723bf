"""Whose a pending job is, what it waits for, and when Lucid releases it to Slurm."""
