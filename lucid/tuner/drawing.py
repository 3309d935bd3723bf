"""Figures inside self-contained pages: SVG that comes out the same every time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

__all__ = ["HEIGHT_IN", "Drawing", "drawn", "hours"]

HEIGHT_IN = 3.2
_WIDTH_IN = 8.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure of a page, and what stands under it."""

    svg: str
    words: str


def drawn(draw: Callable[[Figure], None], words: str, height_in: float = HEIGHT_IN) -> Drawing:
    """What ``draw`` puts into a figure of so many inches."""
    with matplotlib.rc_context({"svg.hashsalt": "lucid", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        draw(figure)
        text = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a name may be in any script
            figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return Drawing(svg[svg.index("<svg") :], words)


def hours(seconds: float) -> str:
    """As a page shows a time."""
    return f"{seconds / 3600:.2f} h"
