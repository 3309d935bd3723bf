"""Replays job traces through the same cycle that drives a live cluster."""
