"""What looks at a live cluster, or switches it: lucidd's store and what lucidd publishes; Slurm is hardly asked.

Read in this order: ``status``, ``switch_commands``, ``queue``, ``top``, ``top_screen``,
``top_cells``, ``gpu``, ``gpu_health``, ``efficiency``, ``time_limits``, ``metrics``, ``plan_again``.
Others import ``status``, ``switch_commands``, ``queue``, ``top``, ``gpu``, ``efficiency``, ``time_limits``,
``idle``, ``metrics``, ``plan_again``.
"""
