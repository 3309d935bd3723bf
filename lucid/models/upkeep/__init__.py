"""Versions of models: when to train, what to serve, and the library that keeps them."""
