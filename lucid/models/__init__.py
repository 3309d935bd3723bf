"""Models of durations, packing and submissions: features, training, evaluation, versions on disk."""
