"""What plain Slurm order would have done by now, from which the starvation bound counts.

Read in this order: ``plain_order``, ``advance``, ``by_vc``.
"""
