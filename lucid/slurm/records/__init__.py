"""What Slurm's answers say, as values of our own."""
