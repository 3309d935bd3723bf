"""Slurm's answers, read into values of our own."""
