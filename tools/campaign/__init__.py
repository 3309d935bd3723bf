"""The fault campaign: counted jobs on a real Slurm under Lucid while things break at random; ``make campaign``."""
