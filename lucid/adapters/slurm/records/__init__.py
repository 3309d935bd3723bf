"""What Slurm's answers say, as values of our own. Pure, but for what is asked again now and then.

Read in this order: ``jobs_and_nodes``, ``request``, ``from_json``, ``json_values``, ``lenient_json``,
``field_parsers``, ``unreadable``, ``configuration``, ``network_topology``, ``reservations``, ``preemption``,
``fair_shares``, ``qos_priorities``.
"""
