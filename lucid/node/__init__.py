"""What runs on the nodes, beside the jobs: the sampler."""
