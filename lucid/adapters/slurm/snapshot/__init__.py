"""From records and notes to the snapshot that a policy plans from. Looks, and changes nothing.

Read in this order: ``observation``, ``builder``, ``reuse_unchanged``, ``node_polling``, ``node_constraints``,
``power_saving``, ``boot_times``, ``reservation_windows``, ``lending_pool``, ``placement_clashes``, ``failed_pairs``.
Others import ``observation``, ``builder``, ``node_polling``, ``power_saving``, ``boot_times``,
``reservation_windows``, ``lending_pool``, ``failed_pairs``.
"""
