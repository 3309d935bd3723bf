"""A site's Slurm configuration: read, changed, taken back, and checked by doctor."""
