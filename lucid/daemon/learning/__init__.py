"""Models that serve lucidd, and their training in child processes."""
