"""Read-only pages beside lucidd: what stands where, what waits and why, from lucidd's store alone."""
