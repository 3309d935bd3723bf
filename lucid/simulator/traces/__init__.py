"""Readers, writers and generators of job traces."""
