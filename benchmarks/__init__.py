"""Figures of speed and quality, each with what it is compared with: ``python -m benchmarks``."""
