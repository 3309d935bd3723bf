"""Elastic jobs and jobs that take turns: who opted in, what they report, and how one is resized.

Read in this order: ``opt_in``, ``resizable_jobs``, ``training_reports``, ``reports_folder``, ``report_check``,
``step_time_models``, ``resize``, ``interleaved_jobs``.
Others import ``opt_in``, ``resizable_jobs``, ``training_reports``, ``reports_folder``, ``resize``,
``interleaved_jobs``.
"""
