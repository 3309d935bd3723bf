"""What is told of one job: its story, its end, when it starts, and what would start it sooner.

Read in this order: ``explain``, ``how_ended``, ``unknown_job``, ``ask_slurm``, ``when``, ``why_not``.
Others import ``explain``, ``when``, ``why_not``.
"""
