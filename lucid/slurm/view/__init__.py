"""Makes the snapshot that a policy plans from, out of Slurm's records and Lucid's notes. Changes nothing."""
