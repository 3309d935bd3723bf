"""What lucidd keeps on disk: its store, records of plans, and nouns as JSON."""
