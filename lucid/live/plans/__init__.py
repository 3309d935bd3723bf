"""lucidd's last plan as it is stored, planned again, and when it has the waiting jobs start.

Read in this order: ``stored_plan``, ``replan``, ``expected_starts``, ``stored_starts``, ``start_log``,
``policy_memory``, ``plan_recording``, ``limit_replay``, ``plain_settings``.
"""
