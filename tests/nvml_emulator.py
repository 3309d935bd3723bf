"""The emulated libnvidia-ml.so.1: built once by ``cc``, driven by a state file. See tests/assets/nvml/nvml.c.

Also for the Slurm testbed: ``build(folder)`` and put the folder first in LD_LIBRARY_PATH of whatever is to see the
emulated GPUs, with LUCID_NVML_STATE naming the file that ``Board.write`` replaces.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "assets" / "nvml" / "nvml.c"
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 3, 4, 9, 15, 999


def build(folder: Path) -> Path:
    """Compile the library into ``folder`` (skips the test where there is no C compiler)."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LIBRARY
    strict = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    subprocess.run([compiler, *strict, f"-Wl,-soname,{LIBRARY}", "-o", path, SOURCE], check=True)
    return path


def load(path: Path) -> None:
    """Make this process use the library: what has this soname already is what nvidia-ml-py will find."""
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def uuid_of(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


@dataclass
class Proc:
    pid: int
    mem: float | None = None
    sm: float | None = None
    mem_util: float = 0.0


@dataclass
class Gpu:
    util: float = 0.0
    mem_util: float = 0.0
    mem_used: float = 512.0
    mem_total: float = 24576.0
    gpm: tuple[float, float, float] | None = None
    mig: bool = False
    xid: int = 0
    ecc: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    throttle: int = 0
    """Bits of the reasons for low clocks: 64 heat, 128 power brake."""
    energy: float | None = None
    """Joules since the driver was loaded; ``None``: the card does not count."""
    procs: list[Proc] = field(default_factory=list)
    minor: int | None = None
    """The number of its device file; ``None``: as it stands among the others."""


@dataclass
class Board:
    """The GPUs of one machine; ``write`` makes the library see what stands here."""

    path: Path
    gpus: dict[int, Gpu] = field(default_factory=dict)
    generation: int = 1
    fail: dict[tuple[str, int | None], int] = field(default_factory=dict)

    def write(self) -> None:
        lines = ["driver 550.54.15", f"generation {self.generation}"]
        for index, gpu in self.gpus.items():
            line = (
                f"gpu {index} uuid={uuid_of(index)} name=Emulated mem_total={gpu.mem_total} mem_used={gpu.mem_used}"
            )
            line += (
                f" util={gpu.util} mem_util={gpu.mem_util} mig={int(gpu.mig)} xid={gpu.xid} throttle={gpu.throttle}"
            )
            line += f" ecc={gpu.ecc} remap_pending={int(gpu.remap_pending)} remap_failed={int(gpu.remap_failed)}"
            line += "" if gpu.minor is None else f" minor={gpu.minor}"
            line += "" if gpu.energy is None else f" energy={gpu.energy}"
            if gpu.gpm is not None:
                line += " gpm=1 sm={} occ={} dram={}".format(*gpu.gpm)
            lines.append(line)
            for proc in gpu.procs:
                line = f"proc {index} pid={proc.pid}"
                line += "" if proc.mem is None else f" mem={proc.mem}"
                line += "" if proc.sm is None else f" sm={proc.sm} mem_util={proc.mem_util}"
                lines.append(line)
        for (function, gpu_index), code in self.fail.items():
            lines.append(f"fail {function} {code}" + ("" if gpu_index is None else f" {gpu_index}"))
        temporary = self.path.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.path)


def smi(minors: Mapping[str, int]) -> str:
    """The program ``nvidia-smi`` of a machine: minor numbers by UUID, in the driver's order. It knows ``-q``
    alone, whose lines are those of public logs, shortened; of MIG mode it says nothing."""
    cards = "".join(
        f"GPU 00000000:{0x10 + place:02X}:00.0\n"
        "    Product Name                          : NVIDIA A100-SXM4-40GB\n"
        "    MIG Mode\n        Current                           : Disabled\n"
        "    Serial Number                         : 1324000000000\n"
        f"    GPU UUID                              : {uuid}\n"
        f"    Minor Number                          : {minor}\n"
        "    VBIOS Version                         : 92.00.45.00.03\n"
        f"    PCI\n        Bus Id                            : 00000000:{0x10 + place:02X}:00.0\n"
        "    Processes                             : None\n\n"
        for place, (uuid, minor) in enumerate(minors.items())
    )
    head = f"\n==============NVSMI LOG==============\n\nAttached GPUs                             : {len(minors)}\n"
    return f"#!/bin/sh\n[ \"$*\" = -q ] || exit 0\ncat <<'EOF'\n{head}{cards}EOF\n"


def node_environment(library: Path, state: Path) -> dict[str, str]:
    """Environment of a child process that is to see the emulated GPUs and this checkout's lucid."""
    root = str(Path(__file__).parent.parent)
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        "LUCID_NVML_STATE": str(state),
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
