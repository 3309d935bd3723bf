"""The profiling stage: which jobs are profiled, where, for how long, and what the samples mean."""
