"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A time limit for each example would make tests hang on how busy the machine is.
settings.register_profile("lucid", deadline=None)
settings.load_profile("lucid")
