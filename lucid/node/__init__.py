"""``lucid-sampler``: reads the GPUs and processes of one node, and writes small files for lucidd."""
