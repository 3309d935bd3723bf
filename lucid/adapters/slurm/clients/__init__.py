"""What talks to Slurm: its commands, slurmrestd or pyslurm, all behind one interface and one breaker.

Read in this order: ``port``, ``factory``, ``commands``, ``changed_jobs``, ``before_23_02``, ``rest``,
``rest_connection``, ``rest_token``, ``pyslurm``, ``accounting``, ``ended_job``, ``munge``.
Others import ``port``, ``factory``, ``commands``, ``rest_token``, ``accounting``, ``ended_job``.
"""
