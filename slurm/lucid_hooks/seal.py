"""What lucidd tells a node's prolog about a job in slots, sealed by munge so that no user can write it.

A job's Extra is its user's to write, and it is the only text of lucidd's that reaches a prolog. So lucidd, which runs
as a user of its own on a host of the cluster's munge, wraps it in a credential that only root can open. It counts
where munge says that the daemon's user (or root) made it, and it names this job, this start of it and this node: an
older seal, or another job's, counts for nothing. Munge's own limit of minutes is not needed, nor its memory of what
was opened before.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lucid_hooks.processes import Deadline, run_as

__all__ = ["Refused", "Sealed", "opened", "read"]

_PAYLOAD = re.compile(
    r"lucid 1 job=([0-9]{1,10}) restarts=([0-9]{1,5}) node=([A-Za-z0-9_.-]{1,64})"
    r" gpus=([0-9]{1,3}(?:,[0-9]{1,3}){0,63})(?: devices=([0-9]{1,3}(?:,[0-9]{1,3}){0,63}))?"
    r"(?: mem=([0-9]{1,9}))?(?: speed=([0-9]\.[0-9]{2}))?(?: turns=(1))?(?: mps=(0))?"
)
_IN_EXTRA = re.compile(r"(?:^|;)lucid-seal=(MUNGE:[A-Za-z0-9+/=]{16,1000}:)(?:;|$)")
_GENUINE = (0, 15, 16, 17)
"""unmunge: as it should be; expired; from a clock ahead of ours; opened here before. In each case munge has checked
who made it and that nobody changed it."""
_OLDEST_S = 86400
"""Job numbers begin anew where a controller loses its state: a seal of an earlier age must not fit a new job."""


class Refused(Exception):
    """This Extra has a seal that does not count, or none; the message says why."""


@dataclass(frozen=True)
class Sealed:
    """GPUs by the numbers of their device files, the memory fence in MiB and the speed expected beside a partner (as
    text), whether the job takes turns with others on these GPUs, and whether it may have MPS."""

    gpus: Sequence[int]
    mem: str = ""
    speed: str = ""
    turns: bool = False
    mps: bool = True


def read(text: str, job: str, restarts: int, node: str, places: Sequence[int]) -> Sealed:
    """The items of a payload, where it is for this start of this job here and names GPUs that the job has.

    ``places``: the job's GPUs as Slurm names them to a prolog, by their places among the node's; of several it may
    leave some out. Where the numbers of their device files are others, the seal says both.

    Raises:
        Refused: it is not.
    """
    found = _PAYLOAD.fullmatch(text)
    if found is None:
        raise Refused("the seal holds something else")
    if found[1] != job:
        raise Refused(f"the seal is job {found[1]}'s")
    if int(found[2]) != restarts:
        raise Refused(f"the seal is of start {found[2]} of the job, and this is start {restarts}")
    if found[3] != node:
        raise Refused(f"the seal is for node {found[3]}")
    gpus = [int(place) for place in found[4].split(",")]
    if not places:
        raise Refused("the job has no GPUs here")
    if not set(places) <= set(gpus):
        raise Refused(f"the job has GPU {','.join(map(str, places))}, and the seal names {found[4]}")
    numbers = [int(number) for number in found[5].split(",")] if found[5] else gpus
    if len(numbers) != len(gpus):
        raise Refused(f"the seal has {len(gpus)} GPUs and {len(numbers)} device numbers")
    return Sealed(numbers, found[6] or "", found[7] or "", bool(found[8]), not found[9])


def _uid_of(daemon: str) -> int:
    try:
        return int(daemon) if daemon.isdecimal() else pwd.getpwnam(daemon).pw_uid
    except KeyError:
        raise Refused(f"node.conf names {daemon!r} as lucidd's user, and this node knows none of that name") from None


def opened(extra: str, daemon: str, path: str, now_s: float, deadline: Deadline) -> str:
    """The payload of the seal in an Extra, where lucidd's user or root made it.

    Raises:
        Refused: there is no seal, munge does not open it, or somebody else made it.
    """
    found = _IN_EXTRA.search(extra)
    if found is None:
        raise Refused("the job's Extra has no seal of lucidd's")
    words = ["unmunge", "-N", "-k", "STATUS,ENCODE_TIME,UID"]
    answer = run_as(os.geteuid(), words, {"PATH": path}, deadline.part(3.0), found[1] + "\n")
    if answer.code not in _GENUINE:
        raise Refused(f"munge does not open the seal: {' '.join(answer.text.split())[:150] or 'no answer'}")
    head, _, text = answer.text.partition("\n\n")
    facts = dict(line.partition(":")[::2] for line in head.splitlines())
    try:
        maker, made_s = int(facts["UID"]), int(facts["ENCODE_TIME"])
    except (KeyError, ValueError):
        raise Refused("munge's answer is not understood") from None
    if maker not in (0, _uid_of(daemon)):
        raise Refused(f"user {maker} made the seal, and only lucidd may")
    if now_s - made_s > _OLDEST_S:
        raise Refused("the seal is over a day old")
    return text
