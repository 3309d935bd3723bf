"""Safety rules that every plan must pass before anything of it is applied, whatever policy made it.

Read in this order: ``check``, ``holdings``, ``policy_rules``, ``pair_rules``, ``group_rules``,
``quota_rules``, ``victim_rules``.
Others import ``check``.
"""
