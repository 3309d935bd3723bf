"""What an MPS daemon and its clients are told for one GPU set: the same plan in the words of MPS version 2 or 3.

Version 3 (driver r615, CUDA 13.4) reads a TOML file of named servers and namespaces when it starts. A namespace is
one job's: its memory limit and its share of SMs are kept by the server, and the job reaches it by its own folder.
Only keys that NVIDIA documents are written: ``schema_version``; of a server ``allowed_devices``, ``uid``,
``pinned_memory_limit``, ``active_thread_percentage``; of a namespace the last two. Static SM partitions are not used:
a pair's jobs take turns on idle SMs. https://docs.nvidia.com/deploy/mps/latest/mpsv3-configuration-file.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SERVER", "Limits", "commands_to_join", "exports", "namespace_of", "render"]

SERVER = "lucid"
"""The one server of a daemon."""


@dataclass(frozen=True)
class Limits:
    """Of one job on each of its GPUs: memory in MiB, SMs in percent; ``None`` is no limit."""

    mem_mib: int | None = None
    threads_percent: int | None = None


def namespace_of(job: str) -> str:
    """Names are lowercase letters, digits and underscores, up to 64."""
    return "job_" + re.sub(r"[^a-z0-9]", "_", job.lower())[:56]


def _limits(limits: Limits) -> list[tuple[str, str]]:
    # A namespace inherits nothing: one without limits of its own gets the whole GPU.
    found = [] if limits.mem_mib is None else [("pinned_memory_limit", f"{limits.mem_mib}M")]
    return [*found, ("active_thread_percentage", str(limits.threads_percent or 100))]


def render(gpus: Sequence[str], uid: int, job: str, limits: Limits) -> str:
    """The TOML file of a daemon whose first client is this job. The server's own limits, which hold for clients
    that name no namespace, are the same."""
    devices = ",".join(gpus)
    lines = ['schema_version = "1.0"', "", f"[servers.{SERVER}]", f'allowed_devices = "{devices}"', f"uid = {uid}"]
    lines += [f'{key} = "{value}"' for key, value in _limits(limits)]
    lines += ["", f"[servers.{SERVER}.namespaces.{namespace_of(job)}]"]
    lines += [f'{key} = "{value}"' for key, value in _limits(limits)]
    return "\n".join(lines) + "\n"


def commands_to_join(job: str, limits: Limits) -> list[list[str]]:
    """What to call for a further job: the daemon reads its file only once."""
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in _limits(limits)]
    name = namespace_of(job)
    return [
        ["namespace", "create", name, f"--server={SERVER}"],
        ["namespace", "set", name, f"--server={SERVER}", *flags],
    ]


def exports(protocol: int, gpus: Sequence[str], pipe: str, log: str, job: str, limits: Limits) -> list[str]:
    """Lines for the job's task prolog. Server and clients see the same GPUs in the same order, so ordinals agree."""
    if protocol == 3:
        pipe = f"{pipe}/{SERVER}/{namespace_of(job)}"
    lines = [
        f"export CUDA_VISIBLE_DEVICES={','.join(gpus)}",
        f"export CUDA_MPS_PIPE_DIRECTORY={pipe}",
        f"export CUDA_MPS_LOG_DIRECTORY={log}",
    ]
    if protocol == 3:  # the namespace keeps the limits; a client's own that names a GPU it does not see drops them
        return lines
    if limits.mem_mib is not None:
        fence = ",".join(f"{i}={limits.mem_mib}M" for i in range(len(gpus)))
        lines.append(f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={fence}")
    if limits.threads_percent is not None:
        lines.append(f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limits.threads_percent}")
    return lines
