"""The nouns of scheduling, and nothing that acts: jobs, nodes, snapshots, predictions, reasons, decisions."""
