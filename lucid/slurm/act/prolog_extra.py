"""Items in a job's Extra that tell a node's prolog about a job in slots, and the seal that makes them count.

``lucid-gpus=1,3;lucid-mem=9312;lucid-speed=0.93;lucid-seal=MUNGE:…:``. The plain items are for people: the device
numbers of the job's GPUs on the node, its memory fence under MPS in MiB, and its expected speed beside its partner.
``lucid-turns=1``: it takes turns on its GPUs, and the prolog makes a folder for that. A user can write Extra, so the
prolog trusts the seal alone (slurm/lucid_hooks/seal.py): a munge credential that only root opens, of the same items
and of the job, the start and the node that they are for. A user's own Extra is never changed, nor sent anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lucid.errors import ActionRefused
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.job import SlurmJob

_BATCH = "lucid-batch="
_OURS = re.compile(r"lucid-[a-z]+=[0-9A-Za-z.,:+/=]+(;lucid-[a-z]+=[0-9A-Za-z.,:+/=]+)*")


def batch_item(gpus: int, batch: tuple[int, int]) -> str:
    """The Extra that gives a job at its next start the batch chosen for it on so many GPUs: samples per GPU and pass,
    and passes per step. slurm/lucid_run.py reads it; an item that a user writes concerns that user's job alone."""
    return f"{_BATCH}{gpus}:{batch[0]}x{batch[1]}"


def is_batch_item(extra: str) -> bool:
    """Whether the Extra is such an item. It stays until the next resize: on other GPUs it says nothing."""
    return extra.startswith(_BATCH) and free_extra(extra)


def free_extra(extra: str) -> bool:
    """Whether Lucid may write a job's Extra: it is empty, or holds only Lucid's items."""
    return not extra or _OURS.fullmatch(extra) is not None


@dataclass(frozen=True, slots=True)
class Items:
    """The items of one start of a job in slots on one node: GPUs as Slurm counts them there, memory fence in MiB,
    expected speed."""

    node: str
    gpus: tuple[int, ...]
    mem_mib: int | None = None
    speed: float | None = None
    turns: bool = False
    mps: bool = True
    """Whether MPS is wanted at all."""
    numbers: tuple[int, ...] = ()
    """The device file numbers of the same GPUs, where they differ from ``gpus``."""

    def plain(self) -> str:
        """The items as people read them."""
        text = f"lucid-gpus={','.join(map(str, self.numbers or self.gpus))}"
        text += "" if self.mem_mib is None else f";lucid-mem={self.mem_mib}"
        return text + ("" if self.speed is None else f";lucid-speed={self.speed:.2f}") + ";lucid-turns=1" * self.turns

    def payload(self, number: int, restarts: int) -> str:
        """The text that is sealed for the start of Slurm's job ``number`` after so many restarts."""
        text = f"lucid 1 job={number} restarts={restarts} node={self.node} gpus={','.join(map(str, self.gpus))}"
        text += f" devices={','.join(map(str, self.numbers))}" if self.numbers else ""
        text += "" if self.mem_mib is None else f" mem={self.mem_mib}"
        text += "" if self.speed is None else f" speed={min(self.speed, 9.99):.2f}"
        return text + " turns=1" * self.turns + " mps=0" * (not self.mps)


def own_number(record: SlurmJob) -> int | None:
    """Slurm's number of the job; ``None`` for a task that Slurm has not separated from its array yet."""
    array, _, task = record.id.partition("_")
    return None if task and record.number == int(array) else record.number


def sealed(client: CommandClient, record: SlurmJob, number: int, items: Items) -> tuple[str, str]:
    """The whole Extra of the job's next start, and an empty text; or an empty Extra, and why it cannot be sealed."""
    try:
        return f"{items.plain()};lucid-seal={client.seal(items.payload(number, record.restarts))}", ""
    except ActionRefused as error:
        return "", str(error)
