"""Commands that replay, read, convert and make traces."""
