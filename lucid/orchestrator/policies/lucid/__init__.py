"""Lucid's own policy: profiled first, ordered by estimate x GPUs, packed in pairs, placed consolidated."""
