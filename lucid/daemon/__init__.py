"""``lucidd``: the loop around the cycle. ``process`` is its process, ``build`` makes its parts, ``loop`` turns it."""
