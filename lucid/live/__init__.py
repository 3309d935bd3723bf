"""What the daemon does beside the cycle: models, samples, and what it missed while it was down."""
