"""What the tuner beside lucidd has found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lucid.places import Placed

__all__ = ["latest_report", "reports_folder"]


def reports_folder(settings: Placed) -> Path:
    """Where lucidd keeps the tuner's reports, a folder each, named by the time (UTC) at which the search began."""
    return Path(settings.daemon.state_dir) / "tuner"


def latest_report(settings: Placed) -> tuple[Path, dict[str, Any]] | None:
    """Folder and summary (``worth_it``, ``verdict``) of the newest report; ``None`` where there is none."""
    if not os.access(reports_folder(settings), os.R_OK | os.X_OK):
        return None  # not there, or not for this user
    for folder in sorted(reports_folder(settings).glob("*/summary.json"), reverse=True):
        try:
            found = json.loads(folder.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return folder.parent, found
    return None
