"""When waiting jobs are expected to start, and how sure that is."""
