"""Searches settings on the past of a cluster, judges them on later days, and proposes them."""
