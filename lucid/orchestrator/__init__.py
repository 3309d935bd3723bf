"""Decides: annotates snapshots, plans, checks plans for safety, and runs the cycle."""
