"""Predictors of run time, share score, pair speed and cluster throughput."""
