"""What the daemon does beside the cycle: models, and what it missed while it was down."""
