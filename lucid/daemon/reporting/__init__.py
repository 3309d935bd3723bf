"""What lucidd publishes, and what commands and pages read of it."""
