"""How busy a cluster or VC will be: the throughput model and seasonal means."""
