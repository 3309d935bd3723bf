"""Who is served first: the queue's order, fair shares, quotas, and the starvation bound.

Read in this order: ``queue_order``, ``precedence``, ``starvation_bound``, ``quotas``, ``site_factor``,
``estimate_ranking``.
"""
