"""The modules that change jobs in Slurm: they carry out the plan and put right what went wrong."""
