"""Measuring what jobs do to each other: a suite of small training jobs, alone and in pairs, on one GPU."""
