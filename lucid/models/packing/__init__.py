"""Which jobs may share GPUs, by measured profiles and pairs."""
