"""Policies that change how many GPUs a job has, round by round: Pollux, Optimus, DRF, elastic data sharing."""
