"""Predictors of run time, share score, pair speed and cluster throughput: readable tables, scored by numpy."""
