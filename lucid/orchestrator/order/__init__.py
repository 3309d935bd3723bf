"""Who is served first: the queue's order, fair shares, quotas, and the starvation bound."""
