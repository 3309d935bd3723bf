"""What changes jobs in Slurm: the plan carried out, and what went wrong put right."""
