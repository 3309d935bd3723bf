"""Slurm's accounting: states of jobs, columns of ``sacct``, and the texts in them. What reads logs of jobs, for a
replay, for learning or from a live cluster, reads them here."""
