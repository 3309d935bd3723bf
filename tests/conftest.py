"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# A time limit for each example would make tests hang on how busy the machine is.
# LUCID_SAME_EXAMPLES=1 tries the same examples in every run: what a mutant is judged by must not be luck.
settings.register_profile("lucid", deadline=None, derandomize=os.environ.get("LUCID_SAME_EXAMPLES") == "1")
settings.load_profile("lucid")

# pytest-xdist tells its workers a width of 80 columns: stories would be folded there, and not in a run without it.
os.environ.pop("COLUMNS", None)
