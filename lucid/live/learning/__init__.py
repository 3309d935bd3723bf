"""What lucidd learns from: jobs that ended; and the models and the tuner beside it, in child processes.

Read in this order: ``models``, ``catch_up``, ``model_upkeep``, ``model_timer``, ``child_process``,
``tuning``, ``tuner_reports``, ``estimate_ranking_log``.
Others import ``models``, ``catch_up``, ``model_upkeep``, ``model_timer``, ``child_process``, ``tuning``,
``tuner_reports``, ``estimate_ranking_log``.
"""
