"""``lucidd``: the loop round the cycle. ``process`` is the process, ``build`` makes the parts, ``loop`` repeats."""
