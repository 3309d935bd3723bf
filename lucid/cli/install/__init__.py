"""What brings Lucid onto a Slurm, checks it there, and takes it away.

Read in this order: ``setup``, ``setup_plan``, ``setup_apply``, ``setup_machine``, ``setup_undo``, ``setup_pool``,
``doctor``, ``slurm``, ``manual_release``.
Others import ``setup``, ``doctor``, ``slurm``, ``manual_release``.
"""
