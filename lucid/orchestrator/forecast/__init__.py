"""When waiting jobs are expected to start, and how sure that is.

Read in this order: ``plan_ahead``, ``run_times``, ``start_times``, ``start_samples``.
Others import ``plan_ahead``, ``run_times``, ``start_times``.
"""
