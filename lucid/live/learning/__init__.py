"""What lucidd learns from: jobs that ended; and the models beside it, trained in child processes.

Read in this order: ``models``, ``catch_up``, ``model_upkeep``, ``model_timer``, ``child_process``,
``estimate_ranking_log``.
Others import ``models``, ``catch_up``, ``model_upkeep``, ``model_timer``, ``child_process``,
``estimate_ranking_log``.
"""
