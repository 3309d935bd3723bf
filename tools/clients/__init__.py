"""Programs that submit to Slurm for people, on plain Slurm and in pack mode: what they and their jobs come to is the
same."""
