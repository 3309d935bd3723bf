"""What other systems' published simulators do otherwise than ours, for parity with their figures only."""
