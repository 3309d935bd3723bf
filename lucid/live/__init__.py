"""What lucidd does beside the cycle, and what commands read of it.

Read in this order: ``policies``, ``modes``, ``switches``, ``lending``, ``gpu_health``,
``told_settings``. Folders: ``plans``, ``reporting``, ``resilience``, ``learning``.
"""
