"""NVIDIA's Xid errors: whose fault each is, and what ends it.

After NVIDIA's own documents: "Xid Errors" (https://docs.nvidia.com/deploy/xid-errors/), its listing of possible
causes (hardware, driver, application) and its catalog's "resolution buckets" (RESTART_APP, RESET_GPU, RESTART_BM),
and "GPU Debug Guidelines" (https://docs.nvidia.com/deploy/gpu-debug-guidelines/). NVIDIA says there that an Xid is a
starting point: a program's mistake may look like a fault of the hardware, and the other way round. So a GPU is left
out only where the listing names no application among the causes, and the resolution is more than a restart of the
application. A number that is not here is told, and nothing is done.

Compared on 26 November 2026 with the catalog's immediate actions (Ampere and newer, state of October 2025): each
number that is ``bad`` here has RESET_GPU or RESTART_BM there, but for 48, whose action is a workflow, and 54,
CHECK_MECHANICALS. 109 has RESET_GPU, too; it stays unclear here, since NVIDIA's device plugin for Kubernetes counts
it among the faults of applications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["XIDS", "Xid", "xid"]


@dataclass(frozen=True, slots=True)
class Xid:
    """``whose``: application, gpu, driver, or unclear. ``needs``: reset (of the GPU), reboot (of the node), or
    nothing. ``bad``: is a GPU that reported it left out of new starts?"""

    number: int
    words: str
    whose: str
    needs: str = ""
    bad: bool = False


XIDS: Final = {
    one.number: one
    for one in (
        Xid(8, "GPU stopped processing", "unclear"),
        Xid(11, "invalid or corrupted push buffer stream", "unclear"),
        Xid(13, "graphics engine exception", "application"),
        Xid(31, "GPU memory page fault", "application"),
        Xid(32, "invalid or corrupted push buffer stream", "unclear"),
        Xid(38, "driver firmware error", "driver"),
        Xid(43, "GPU stopped processing for a program", "application"),
        Xid(44, "graphics engine fault during context switch", "unclear"),
        Xid(45, "cleanup after earlier errors, or a program that was ended", "application"),
        Xid(46, "GPU stopped processing", "gpu", "reset", True),
        Xid(48, "double bit ECC error", "gpu", "reset", True),
        Xid(54, "auxiliary power is not connected", "gpu", "reboot", True),
        Xid(61, "internal micro-controller warning", "unclear"),
        Xid(62, "internal micro-controller halt", "gpu", "reset", True),
        # the row waits for a reset at a time that suits: the reading of pending rows decides
        Xid(63, "page retirement or row remapping recorded", "gpu", "reset"),
        Xid(64, "page retirement or row remapping failed", "gpu", "reset", True),
        Xid(68, "video processor exception", "application"),
        Xid(69, "graphics engine class error", "application"),
        # seen at both ends of a link: which of the two is to blame it does not say
        Xid(74, "NVLink error", "unclear"),
        Xid(79, "fallen off the bus", "gpu", "reboot", True),
        Xid(92, "high rate of single bit ECC errors", "gpu"),
        # the program that was hit has ended, others go on: the reading of pending rows decides
        Xid(94, "contained ECC error", "gpu"),
        Xid(95, "uncontained ECC error", "gpu", "reset", True),
        Xid(109, "context switch timeout", "unclear"),
        Xid(110, "security fault", "gpu", "reset", True),
        Xid(119, "GSP does not answer", "driver", "reset", True),
        Xid(120, "GSP error", "driver", "reset", True),
        Xid(121, "corrected error of the link to the CPU", "gpu"),
        Xid(140, "unrecovered ECC error", "gpu", "reset", True),
        Xid(143, "GPU could not be initialised", "gpu", "reset", True),
    )
}


def xid(number: int) -> Xid:
    """What is known of this one; of a number that is not listed that nothing is."""
    return XIDS.get(number) or Xid(number, "not in the table of Xids that Lucid has", "unclear")
