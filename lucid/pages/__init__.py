"""What all of Lucid's one-file pages share: style, script, charts as inline SVG, words for figures."""
