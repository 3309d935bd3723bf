"""An elastic job with Lightning. Python 3.9 or later; needs lucid_torch.py.

    import lucid_lightning

    loader = DataLoader(data, batch_size=lucid_lightning.share(64), shuffle=True)
    trainer = Trainer(max_epochs=30, callbacks=[lucid_lightning.Elastic(64)], **lucid_lightning.sizes())
    trainer.fit(model, loader, ckpt_path=lucid_lightning.last())

The batch script ends with lucid_run.py, as lucid_elastic.py has it. At SIGTERM all processes stop after the same
step, with a checkpoint. The next start goes on at that step; within the epoch the order of samples is drawn anew.
"""

import os
import sys
from pathlib import Path

import lightning
from lightning.pytorch.plugins.environments import LightningEnvironment

import lucid_report
import lucid_torch
from lucid_torch import share

__all__ = ["Elastic", "last", "share", "sizes"]
NAME = "lucid.ckpt"


def sizes():
    """Arguments of Trainer: processes and nodes of this start, not those that Lightning reads from Slurm."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return {}
    cuda = lightning.pytorch.accelerators.CUDAAccelerator.is_available()
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    return {
        "accelerator": "cuda" if cuda else "cpu", "devices": here, "num_nodes": lucid_torch.world() // here,
        "strategy": "ddp" if lucid_torch.world() > 1 else "auto", "plugins": [LightningEnvironment()],
    }  # fmt: skip


def last():
    """Path of this job's checkpoint, None before there is one: for ``Trainer.fit(ckpt_path=…)``."""
    path = Path(lucid_torch.folder() or os.devnull) / NAME
    return str(path) if path.is_file() else None


class Elastic(lightning.Callback):
    """Stops at SIGTERM, with a checkpoint, and tells Lucid of each epoch. ``batch``: samples of a step, in all."""

    def __init__(self, batch):
        self.batch = batch

    def on_train_start(self, trainer, module):
        """Lightning's handlers of signals are set before this."""
        self.told = lucid_torch.Told()
        steps = trainer.num_training_batches
        self.clock = lucid_torch.EpochClock(trainer.current_epoch + (trainer.fit_loop.batch_idx + 1) % steps / steps)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        """After each step."""
        if lucid_torch.folder() and lucid_torch.agreed(self.told.now):
            trainer.save_checkpoint(str(Path(lucid_torch.folder()) / NAME))
            sys.exit(lucid_torch.STOPPED)

    def on_train_epoch_end(self, trainer, module):
        """After each epoch."""
        took = self.clock.took(trainer.current_epoch + 1)
        if lucid_torch.rank() == 0:
            lucid_report.report(trainer.current_epoch + 1, took, lucid_torch.world(), batch=self.batch)
