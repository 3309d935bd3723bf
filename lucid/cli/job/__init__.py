"""What is told of one job: its story, its end, when it starts, and what would start it sooner.

Read in this order: ``explain``, ``story``, ``live_story``, ``replayed_story``, ``how_ended``, ``unknown_job``,
``ask_slurm``, ``when``, ``why_not``.
Others import ``explain``, ``story``, ``live_story``, ``replayed_story``, ``when``, ``why_not``.
"""
