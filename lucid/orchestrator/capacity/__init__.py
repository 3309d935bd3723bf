"""Where a job fits and from when on: placement, topology, nodes kept for a job, whom it preempts."""
