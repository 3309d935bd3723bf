"""Random command lines, on plain Slurm and under Lucid: what a user gets is the same, but for docs/differences.md."""
