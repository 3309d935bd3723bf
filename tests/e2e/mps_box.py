"""Nodes with MPS: a stand-in for NVIDIA's daemon, and for nvidia-smi."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from box import Box

from nvml_emulator import smi as nvidia_smi

FAKE = Path(__file__).parents[1] / "assets/mps/nvidia-cuda-mps-control"


def install_mps(box: Box) -> Path:
    """NVIDIA's programs, and no setting that names them; what the daemons did stands in the folder returned."""
    folder = box.root / "tmp/fake-mps"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "log").touch()
    (folder / "log").chmod(0o666)  # daemons of several users write there
    bin_ = box.root / "usr/bin"
    shutil.copy(FAKE, bin_ / "nvidia-cuda-mps-control.py")
    control = bin_ / "nvidia-cuda-mps-control"
    control.write_text('#!/bin/sh\nFAKE_MPS=/tmp/fake-mps exec python3 /usr/bin/nvidia-cuda-mps-control.py "$@"\n')
    smi = bin_ / "nvidia-smi"
    smi.write_text(nvidia_smi({f"GPU-aa{minor}": minor for minor in (2, 3, 0, 1)}))  # as on hosts of AMD
    for path in (control, smi):
        path.chmod(0o755)
    return folder


@contextmanager
def mps_on(box: Box) -> Iterator[Path]:
    """The nodes have MPS; what its daemons did stands in the folder returned."""
    folder = install_mps(box)
    conf = box.root / "etc/slurm/lucid/node.conf"
    conf.write_text("mps /etc/slurm/lucid/mps\nlimit 15\n")
    yield folder
    bin_ = box.root / "usr/bin"
    for name in ("nvidia-cuda-mps-control", "nvidia-smi", "nvidia-cuda-mps-control.py"):
        (bin_ / name).unlink()
    conf.unlink()
