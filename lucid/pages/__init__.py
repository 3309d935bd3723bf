"""What all pages of Lucid that are one file have in common: style, script, charts as inline SVG, words for figures.

A page opens from disk without a network, in light and dark, on a phone, on paper. ``lucid.pages.page`` writes one.
"""
