"""``make guard``: hot figures as multiples of fixed loops, held against what is recorded in the repository."""
