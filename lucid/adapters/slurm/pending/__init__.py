"""Jobs that wait: who decides about them, what they wait for, and when Lucid leaves one to Slurm.

Read in this order: ``job_state``, ``ownership``, ``pending_state``, ``pending_reasons``, ``hold_order``,
``cpu_starvation``, ``let_go_reasons``.
"""
