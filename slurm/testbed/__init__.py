"""A real Slurm on one machine: every daemon, fake GPUs, several users; made by `make cluster`."""
