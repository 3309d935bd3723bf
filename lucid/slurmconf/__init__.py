"""Slurm's own configuration for Lucid: what to write into it, and whether what is there will do."""
