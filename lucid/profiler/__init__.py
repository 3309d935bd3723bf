"""What was measured of jobs, and what follows from it. Reads no file and no card."""
