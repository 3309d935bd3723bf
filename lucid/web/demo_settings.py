"""The configuration of the demonstration, apart from its replay: the pages' process needs no simulator."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PROFILING", "VCS", "write_settings"]

PROFILING = "profiling"
"""As the simulator calls that partition."""
VCS = {"vision": 6, "language": 4, "speech": 3, "robotics": 2, "shared": 2}
"""Fewer nodes than the preset has, so that jobs queue and share."""


def write_settings(folder: Path) -> Path:
    """The configuration of the demonstration, in its own folder."""
    lines = ["[daemon]", f'state_dir = "{folder}"', f'heartbeat = "{folder}/heartbeat"']
    lines += [f'profiling_partition = "{PROFILING}"', "share_across_users = true", "[daemon.partitions]"]
    lines += [f'{name} = "pack"' for name in VCS]
    lines += ["[policy.profiling]", 'restarts = "allowed"', "[models]", "every_h = 0", "[web]"]
    lines += ['anonymous = "everything"', ""]
    path = folder / "lucid.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
