"""What all pages of Lucid that are one file have in common: style, script, charts as inline SVG, words for figures."""
