"""A plain PyTorch training that goes on with any number of GPUs. Python 3.6 or later.

    import lucid_elastic

    job = lucid_elastic.Job(model, optimizer, loader)
    model, loader = job.model, job.loader
    for epoch in job.epochs(30):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

The batch script ends with ``exec python3 /etc/slurm/lucid/lucid_run.py --checkpoints DIR python3 train.py``: one
process for each GPU. Each of them takes its share of the loader's batch, so that a step is what it was on one GPU. At
SIGTERM all stop after the same step, the first writes a checkpoint, and the next start goes on from there, with the
samples of the epoch that are left. After each epoch Lucid is told. Without lucid_run.py all of it does nothing.

Import it before CUDA is used: each process sees its own GPU alone, as "cuda".
"""

import atexit
import os
import sys
import time
from pathlib import Path

import lucid_torch
from lucid_torch import STOPPED, Told, folder, rank, world

CHECKPOINT = "lucid_elastic.pt"
CHECKPOINT_S = 60.0
"""Seconds between the checkpoints that are written at the end of an epoch."""


def _one_gpu():
    """Leave this process the GPU of its local rank alone. Lightning and transformers choose it by themselves."""
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if len(seen) > 1 and os.environ.get("LOCAL_WORLD_SIZE") == str(len(seen)):
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[int(os.environ["LOCAL_RANK"])]


_one_gpu()


class _Training(lucid_torch.Training):
    """As it is, but the optimizer's own methods lie behind those of the job."""

    def __init__(self, model, optimizer, *rest, **named):
        super().__init__(model, optimizer, *rest, **named)
        self.begun, self._own = None, (optimizer.step, optimizer.zero_grad)

    def begin(self, samples, last):
        """A pass begins."""
        self.begun = self.one_pass(samples, last), last
        self.begun[0].__enter__()

    def end(self):
        """It has ended; whether a step follows."""
        if self.begun is None:
            raise RuntimeError("optimizer.step() was called twice for a batch, or outside of the job's loader")
        (one, last), self.begun = self.begun, None
        one.__exit__(None, None, None)
        return last

    def clear(self, *rest, **named):
        """The optimizer's zero_grad: not between the passes of a step."""
        if not self._passes:
            self._own[1](*rest, **named)

    def _apply(self):
        self._own[0]()
        self._own[1]()


class Job:
    """See the module's text.

    ``model`` and ``optimizer``: the model is on its device. ``loader``: a DataLoader over a data set with a length,
    in order or shuffled; its batch size is that of a step, over all GPUs. ``keep``: what else has state_dict and
    load_state_dict and belongs into a checkpoint, such as a scheduler of the learning rate. ``largest``: samples that
    a GPU holds in a pass; a larger share is taken in several, and ``optimizer.step()`` steps after the last one.
    ``grow``: up to so many samples a step may have; under the policy pollux Lucid chooses how many at each
    start, and ``rule`` multiplies the learning rate, as in ``lucid_torch.Training``. The job's comment says it, too:
    ``lucid:elastic=1-8,batch=256:4096``.
    """

    def __init__(self, model, optimizer, loader, keep=(), largest=None, grow=None, rule="adascale"):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self._torch, self._plain, self._keep, self._optimizer = torch, model, list(keep), optimizer
        self.model, self.epoch, self.done, self.loss, self._saved = model, 0, 0, None, time.monotonic()
        self.seed = int(os.environ.get("SLURM_JOB_ID") or torch.initial_seed() % 2**31)  # the same in all processes
        self._over = False
        """All processes have come to the end, or to the same step."""
        self._path = Path(folder()) / CHECKPOINT if folder() else None
        if world() > 1:
            cuda = next(model.parameters()).is_cuda
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("nccl" if cuda else "gloo")
                atexit.register(self._leave)
            self.model = DistributedDataParallel(model)  # all begin with the first one's parameters
        batch = loader.batch_size or 1
        atomic = (1, largest or grow or batch)
        self.training = (
            _Training(self.model, optimizer, batch, grow, atomic, rule)
            if grow
            else _Training(self.model, optimizer, batch)
        )
        self.loader = Loader(self, loader, largest)
        self._load()
        self._told = Told() if self._path is not None else None
        optimizer.step, optimizer.zero_grad = self._step, self.training.clear

    @property
    def first(self):
        """The process that prints and writes."""
        return rank() == 0

    def epochs(self, total):
        """Those that are left of so many, counted from 0. ``job.loss = …`` in one of them is reported with it."""
        while self.epoch < total:
            yield self.epoch
            self.epoch, self.done = self.epoch + 1, 0
            self.training.epoch(self.epoch, self.loss)
            if time.monotonic() - self._saved >= CHECKPOINT_S or self.epoch == total:
                self._save()
        self._over = True

    def _step(self, closure=None):
        if closure is not None:
            raise TypeError("a step with a closure (LBFGS) cannot be shared out among GPUs")
        if self.training.end():
            stop = self.training.step(self._told is not None and self._told.now)
            self.done += self.loader.taken
            if stop:
                self._save()
                self._over = True
                sys.exit(STOPPED)

    def _leave(self):
        """Leave together, and after gloo's threads: a process that ends before them is aborted with status 134.

        Measured on three processes: about every third of 20 to 30 runs was aborted without this, 2 of 20 without
        the sleep, none with both. A process that failed waits for nobody: the others are still inside a step.
        """
        if self._over:
            self._torch.distributed.barrier()
        self._torch.distributed.destroy_process_group()
        time.sleep(0.5)

    def _save(self):
        if self._path is None or not self.first:
            return
        state = {
            "model": self._plain.state_dict(), "optimizer": self._optimizer.state_dict(),
            "training": dict(self.training.state_dict(), epochs=self.epoch + self.done / self.loader.samples),
            "keep": [one.state_dict() for one in self._keep],
            "seed": self.seed, "epoch": self.epoch, "done": self.done,
        }  # fmt: skip
        made = self._path.with_name(CHECKPOINT + ".new")
        with made.open("wb") as file:
            self._torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._path)
        self._saved = time.monotonic()

    def _load(self):
        if self._path is None or not self._path.exists():
            return
        state = self._torch.load(str(self._path), map_location="cpu")
        self._plain.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.training.load_state_dict(state["training"])
        for one, kept in zip(self._keep, state["keep"]):  # noqa: B905 - strict is of Python 3.10
            one.load_state_dict(kept)
        self.seed, self.epoch, self.done = state["seed"], state["epoch"], state["done"]


class Loader:
    """This process's share of a loader's batches, from the first sample of the epoch that is left.

    ``taken``: samples of the step at hand, over all processes. ``samples``: of an epoch.
    """

    def __init__(self, job, loader, largest=None):
        from torch.utils.data import RandomSampler, SequentialSampler

        known = isinstance(loader.sampler, (RandomSampler, SequentialSampler))
        if not known or getattr(loader.sampler, "replacement", False) or not loader.batch_size:
            raise ValueError(
                "the loader's samples cannot be shared out: give DataLoader a data set with a length, batch_size, "
                "and shuffle or not; no sampler, batch_sampler or IterableDataset"
            )
        self._job, self._from, self._largest, self._batch = job, loader, largest, loader.batch_size
        if lucid_torch.chosen_batch() == (job.training.batch_size, job.training.passes):
            self._largest, self._batch = (
                job.training.batch_size,
                job.training.batch_size * job.training.passes * world(),
            )
        self._shuffled = isinstance(loader.sampler, RandomSampler)
        self.samples, self.taken = len(loader.dataset), 0

    def __len__(self):
        """Passes in a whole epoch."""
        return sum(len(step) for _, step in self._steps(0))

    def _steps(self, done):
        """Samples that are done before each step, and how many each process takes in each of its passes."""
        batch, last = self._batch, self.samples
        while done < last:
            asked = min(batch, last - done)
            if asked < batch and self._from.drop_last:
                return
            share = asked // world()
            if not share:  # fewer samples than processes
                return
            passes = -(-share // self._largest) if self._largest else 1
            yield done, [share // passes] * passes
            done += asked

    def __iter__(self):
        import torch
        from torch.utils.data import DataLoader

        job, old, made = self._job, self._from, []
        order = range(self.samples)
        if self._shuffled:
            order = torch.randperm(
                self.samples, generator=torch.Generator().manual_seed(job.seed + job.epoch)
            ).tolist()
        for done, step in self._steps(job.done):
            for number, share in enumerate(step):
                begin = done + (number * world() + rank()) * share
                asked = min(self._batch, self.samples - done)
                made.append((order[begin : begin + share], number == len(step) - 1, asked))
        named = {"prefetch_factor": old.prefetch_factor} if old.num_workers else {}
        fresh = DataLoader(
            old.dataset, batch_sampler=[list(own) for own, *_ in made], num_workers=old.num_workers,
            collate_fn=old.collate_fn, pin_memory=old.pin_memory, timeout=old.timeout,
            worker_init_fn=old.worker_init_fn, multiprocessing_context=old.multiprocessing_context, **named,
        )  # fmt: skip
        for (own, last, asked), data in zip(made, fresh):  # noqa: B905 - strict is of Python 3.10
            self.taken = asked
            job.training.begin(len(own), last)
            yield data
            if job.training.begun is not None:
                raise RuntimeError("each batch of the job's loader needs one optimizer.step()")
