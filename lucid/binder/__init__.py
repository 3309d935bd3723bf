"""Which jobs may share GPUs, which partner a job gets, and when a pair is parted."""
