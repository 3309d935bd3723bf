"""Ways to reach what is outside: clocks, stores, Slurm."""
