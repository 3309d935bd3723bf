"""How long a job runs: the duration model, its training and its evaluation."""
