"""An elastic job with the Trainer of Hugging Face's transformers. Python 3.9 or later; needs lucid_torch.py.

    import lucid_transformers

    arguments = TrainingArguments(
        output_dir=lucid_transformers.folder(), num_train_epochs=30, save_strategy="epoch",
        per_device_train_batch_size=lucid_transformers.share(64),
    )
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[lucid_transformers.Elastic()])
    trainer.train(resume_from_checkpoint=lucid_transformers.last())

The batch script ends with lucid_run.py, as lucid_elastic.py has it. At SIGTERM all processes stop after the same
step, with a checkpoint. The next start goes on at that step, with the samples of the epoch that are left.
"""

import sys

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import lucid_report
import lucid_torch
from lucid_torch import folder, share

__all__ = ["Elastic", "folder", "last", "share"]


def last():
    """Path of this job's newest checkpoint, None before there is one."""
    return get_last_checkpoint(folder()) if folder() else None


class Elastic(TrainerCallback):
    """Stops at SIGTERM, with a checkpoint, and tells Lucid of each epoch."""

    def on_train_begin(self, args, state, control, **named):
        """Before the first step of this run."""
        self.told, self.stop = lucid_torch.Told(), False
        self.clock = lucid_torch.EpochClock(state.epoch or 0.0)

    def on_step_end(self, args, state, control, **named):
        """After each step of the optimizer."""
        if folder() and lucid_torch.agreed(self.told.now):
            self.stop = control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **named):
        """After each epoch, and after the last step of one that was stopped."""
        if not self.stop:
            took = self.clock.took(round(state.epoch))
            batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * lucid_torch.world()
            if lucid_torch.rank() == 0:
                lucid_report.report(round(state.epoch), took, lucid_torch.world(), batch=batch)

    def on_train_end(self, args, state, control, **named):
        """The checkpoint is written."""
        if self.stop:
            sys.exit(lucid_torch.STOPPED)
