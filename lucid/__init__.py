"""Lucid: non-intrusive, explainable scheduling of deep-learning jobs on GPU clusters."""
