"""The simulated cluster: nodes, running jobs, training, lending."""
