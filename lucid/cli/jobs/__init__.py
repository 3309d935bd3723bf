"""Commands about one job, and the queue."""
