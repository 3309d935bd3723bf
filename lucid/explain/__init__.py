"""Decisions in words and as JSON: what the command line, the pages and a replay's report say alike. The only prose
about decisions.

Read in this order: ``reasons``, ``quantities``, ``sharing_reasons``, ``predictions``, ``borrowing``,
``node_states``, ``starts``, ``story``, ``live_story``, ``replayed_story``, ``queue_rows``, ``waste``, ``what_if``,
``how_ended``, ``time_limits``.
"""
