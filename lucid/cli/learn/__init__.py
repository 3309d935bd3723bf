"""What learns from the past of a cluster: models, settings, and the report of the week.

Read in this order: ``models``, ``models_show``, ``models_evaluate``, ``past_jobs``, ``tune``, ``past_week``,
``week_report``.
Others import ``models``, ``tune``, ``week_report``.
"""
