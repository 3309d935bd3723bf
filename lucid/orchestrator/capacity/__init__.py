"""Where a job fits, and from when on: placement, topology, nodes kept for a job, whom it preempts.

Read in this order: ``placement``, ``topology``, ``timeline``, ``large_jobs``, ``node_reservations``, ``victims``,
``gpus_out``.
"""
