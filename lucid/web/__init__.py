"""The pages of a cluster: cluster, queue, job, people."""
