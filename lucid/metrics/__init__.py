"""What Slurm cannot export, for Prometheus: from lucidd's own state alone, without a request to slurmctld."""
