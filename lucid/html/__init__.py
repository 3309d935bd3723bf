"""What all pages that are one file share: style, script, charts as inline SVG, words for figures."""
