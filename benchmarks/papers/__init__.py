"""What the papers claim, beside what comes out here: ``python -m benchmarks.papers``, and docs/papers.md.

It is here and not in ``lucid``: a site has no use for the experiments of papers, nor for the packages that they are
compared with, and the traces that they were published on cannot be shipped.

row.py says what a row is, page.py keeps rows and writes the pages, replays.py replays; the other files have the rows
of a system each.
"""
