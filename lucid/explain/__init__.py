"""Decisions, predictions and stories in words, for commands, pages and reports alike."""
