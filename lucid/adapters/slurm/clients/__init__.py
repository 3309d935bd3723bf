"""What talks to Slurm: its commands, or pyslurm, both behind one interface and one breaker.

Read in this order: ``port``, ``factory``, ``commands``, ``changed_jobs``, ``pyslurm``,
``accounting``, ``ended_job``, ``munge``.
Others import ``port``, ``factory``, ``commands``, ``accounting``, ``ended_job``.
"""
