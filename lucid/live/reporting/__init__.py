"""What lucidd tells of itself: its status, its counters, its log, and what anybody may read.

Read in this order: ``status``, ``counters``, ``public_view``, ``private_data``, ``log``, ``waste_inputs``,
``doctor_finding``.
"""
