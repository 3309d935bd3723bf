"""Measurements of jobs and what follows from them, computed without reading a file or a card."""
