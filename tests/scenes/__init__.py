"""Builders and scenes of one kind in one place, for the tests that need them."""
