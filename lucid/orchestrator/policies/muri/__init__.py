"""Muri: jobs of equal GPU count take turns on storage, CPU, GPU and network, in groups chosen by matching."""
