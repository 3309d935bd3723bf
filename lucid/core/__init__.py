"""The values that all parts hand to each other: jobs, nodes, snapshots, decisions, reasons, predictions."""
