"""An MPS daemon of one's own around a calibration."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lucid.errors import ConfigError

__all__ = ["sharing_environment"]

_CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def sharing_environment(sharing: str, gpu: str) -> Iterator[dict[str, str]]:
    """The environment for jobs that share ``gpu`` (a UUID) by ``mps`` or ``time-slicing``.

    For MPS a control daemon runs as long as the block does.

    Raises:
        ConfigError: there is no MPS here, or its daemon does not start.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    environment["CUDA_VISIBLE_DEVICES"] = gpu
    if sharing != "mps":
        # a directory without a daemon: a site's own daemon at the default place is not joined by accident
        with tempfile.TemporaryDirectory() as nothing:
            yield {**environment, "CUDA_MPS_PIPE_DIRECTORY": nothing}
        return
    if shutil.which(_CONTROL) is None:
        raise ConfigError(f"--sharing mps: {_CONTROL} is not installed; take --sharing time-slicing")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pipe", "log"):
            (Path(folder) / name).mkdir()
            environment[f"CUDA_MPS_{name.upper()}_DIRECTORY"] = str(Path(folder) / name)
        done = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr or done.stdout).strip()[:200]
            raise ConfigError(f"--sharing mps: the daemon did not start ({words}); take --sharing time-slicing")
        try:
            yield environment
        finally:
            subprocess.run([_CONTROL], input="quit\n", env=environment, capture_output=True, text=True, check=False)
