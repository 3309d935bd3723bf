"""The tables that come with Lucid for a site that has measured none: ``profiles.csv``, ``pairs.csv``, ``share.json``.

They are synthetic, and each row says so: nominal readings through the contention model. Made anew by
``python -m benchmarks.calibrate --synthetic --out lucid/models/packing/synthetic``.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["shipped"]


def shipped(name: str) -> Path:
    """Path of a file that comes with the package."""
    return Path(str(files("lucid.models.packing"))) / "synthetic" / name
