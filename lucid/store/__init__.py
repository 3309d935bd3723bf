"""lucidd's memory on disk: SQLite, notes of jobs, plan records."""
