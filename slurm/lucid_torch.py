"""Gradient statistics, learning rate and step times of a PyTorch training, reported to Lucid. Python 3.6 or later.

    sys.path.insert(0, "/etc/slurm/lucid")
    import lucid_torch

    training = lucid_torch.Training(model, optimizer, batch=256, largest=4096, atomic=(16, 512))
    for epoch in range(epochs):
        for number, (x, y) in enumerate(loader):
            last = number % passes == passes - 1
            with training.one_pass(len(x), last):
                loss_of(model(x), y).backward()
            if last:
                training.step()
        training.epoch(epoch + 1, validation_loss)

``lucid_elastic.py`` does all this for a plain training loop. ``model`` is DistributedDataParallel where there is more
than one process. ``step`` averages over the passes, so the loss is not divided by their number. It multiplies the
learning rate for this one step, and calls the optimizer's ``step`` and ``zero_grad``. All processes do the same
passes with as many samples. The statistics are of the plain gradient: neither Adam's preconditioning nor GradScaler's
factor is taken into account.
"""

import contextlib
import math
import os
import signal
import sys
import time

import lucid_report

STOPPED = 128 + signal.SIGTERM
"""Status of a process that was told to stop, and wrote its checkpoint."""
RULES = ("adascale", "linear", "sqrt")
MEMORY = 0.999
"""What a step with the initial batch leaves of the means before it."""


def world():
    """Processes of this job, 1 where nobody counted them."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank():
    """This process's number, from 0 on."""
    return int(os.environ.get("RANK") or 0)


def share(batch):
    """This process's part of a total batch, at least one sample."""
    return max(batch // world(), 1)


def folder():
    """Where this job's checkpoints lie, found again after each restart; None without lucid_run.py --checkpoints."""
    return os.environ.get("LUCID_CHECKPOINTS")


def chosen_batch():
    """Samples a GPU a pass, and passes a step, that Lucid chose for this job on so many GPUs; None if it did not."""
    gpus, _, chosen = os.environ.get("LUCID_BATCH", "").partition(":")
    samples, _, passes = chosen.partition("x")
    if gpus != str(world()) or not (samples.isdigit() and passes.isdigit() and int(samples) and int(passes)):
        return None
    return int(samples), int(passes)


def agreed(stop):
    """Whether any process says stop: the same in all of them. All call it, after the same step."""
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return bool(stop)
    said = torch.tensor([float(stop)], device="cuda" if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(said)
    return float(said) > 0


class Told:
    """Whether this process was told to stop, by SIGTERM."""

    def __init__(self):
        self.now, self._pid = False, os.getpid()
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_):
        if os.getpid() != self._pid:  # a loader's worker, which was forked
            os._exit(STOPPED)
        self.now = True


class Statistics:
    """Running means of the gradient's squared norm and variance at the initial batch size."""

    def __init__(self, sqr=0.0, var=0.0, weight=0.0):
        self.sqr, self.var, self.weight = sqr, var, weight

    def add(self, count, local, total, scale):
        """A step of ``count`` gradients: mean of squared norms, squared norm of the mean, batch over initial."""
        sqr, var = (count * total - local) / (count - 1), (local - total) * scale / (count - 1)
        if not (math.isfinite(sqr) and math.isfinite(var)):
            return  # a step that mixed precision leaves out, too
        keep = MEMORY**scale
        self.sqr = keep * self.sqr + (1 - keep) * sqr
        self.var = keep * self.var + (1 - keep) * var
        self.weight = keep * self.weight + (1 - keep)

    def value(self):
        """Squared norm and variance; None before the first step."""
        if not self.weight:
            return None
        return [max(self.sqr / self.weight, 0.0), max(self.var / self.weight, 1e-6)]


def learning_rate_factor(rule, scale, gradient=None):
    """By which the learning rate is multiplied for a batch of ``scale`` times the initial one.

    "linear": as much; "sqrt": its root; "adascale": its gain by the gradient's statistics, 1 before there are any.
    """
    if rule == "linear":
        return scale
    if rule == "sqrt":
        return math.sqrt(scale)
    sqr, var = gradient or (1.0, 0.0)
    denominator = var / scale + sqr
    return (var + sqr) / denominator if denominator > 0 else 1.0


class EpochClock:
    """What the epochs of this run take, of which the first may have been begun in another one."""

    def __init__(self, epochs=0.0):
        self.epochs, self._since = float(epochs), time.monotonic()

    def took(self, epochs):
        """Seconds of a whole epoch, now that so many are done; None where less than half of one was seen."""
        share, took = epochs - self.epochs, time.monotonic() - self._since
        self.epochs, self._since = float(epochs), time.monotonic()
        return took / share if 0.5 <= share <= 1 else None


class Training:
    """See the module's text.

    ``batch``: the initial total batch size, samples; ``largest``: up to which it may grow, None for a batch that
    never does, whose gradients are not measured; ``atomic``: fewest and most samples a GPU a pass; ``rule``: of the
    learning rate, one of RULES, or None.

    ``batch_size``: samples that each process takes a pass, and ``passes`` of a step: what Lucid chose for this start
    where the batch may grow (policy pollux), else this process's part of ``batch``.
    """

    def __init__(self, model, optimizer, batch, largest=None, atomic=None, rule="adascale"):
        import torch

        if rule not in (*RULES, None):
            raise ValueError("rule {!r}: known are {} and None".format(rule, ", ".join(RULES)))
        self._torch, self._model, self._optimizer = torch, model, optimizer
        self._batch, self._largest, self._atomic, self._rule = int(batch), largest, atomic, rule
        self.batch_size, self.passes = self._sizes()
        self._parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        self._cuda = any(one.is_cuda for one in self._parameters)
        self.statistics, self.factor, self._clock = Statistics(), 1.0, EpochClock()
        self._before, self._times, self._current = None, {}, 0
        self._begin_step()
        for one in self._parameters:
            one.register_hook(self._seen)

    def _sizes(self):
        few, many = self._atomic or (1, self._largest or self._batch)
        chosen = None if self._largest is None else chosen_batch()
        if chosen and few <= chosen[0] <= many:
            step = chosen[1] * world()
            if self._batch <= chosen[0] * step < self._largest + step:  # it is rounded up to whole samples
                return chosen
        passes = -(-share(self._batch) // many)
        return share(self._batch) // passes, passes

    @property
    def world(self):
        """Processes."""
        distributed = self._torch.distributed
        return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1

    def state_dict(self):
        """For a checkpoint."""
        return dict(vars(self.statistics), epochs=self._clock.epochs)

    def load_state_dict(self, state):
        """From a checkpoint."""
        state = dict(state)
        self._clock = EpochClock(state.pop("epochs", 0.0))
        self.statistics = Statistics(**state)

    @contextlib.contextmanager
    def one_pass(self, samples, last=True):
        """A forward and a backward pass on ``samples`` samples; ``last``: an optimizer's step follows."""
        began = self._now()
        alone = getattr(self._model, "no_sync", None)
        self._inside = True
        try:
            with alone() if alone and not last else contextlib.ExitStack():
                yield
        finally:
            self._inside = False
        ended = self._now()
        self._passes += 1
        self._samples += int(samples)
        # From the last gradient of this process on, it has only waited for the others'.
        computed = min(max(self._last_gradient() - began, 0.0), ended - began)
        self._took.append((int(samples), ended - began, computed, last))

    def step(self, stop=False):
        """The optimizer's step, with the learning rate for this batch; the statistics take it in.

        Returns whether any process said ``stop``: all processes learn of it after the same step.
        """
        world, scale = self.world, self.world * self._samples / self._batch
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        for gradient in gradients:
            gradient.div_(self._passes)
        local, stop = self._over_all(self._local, stop)
        if self._largest is not None:
            self._measure(gradients, local / (world * self._passes), scale)
        self.factor = learning_rate_factor(self._rule, scale, self.statistics.value()) if self._rule else 1.0
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor
        try:
            self._apply()
        finally:
            for group, rate in zip(self._optimizer.param_groups, rates):  # noqa: B905 - strict is of Python 3.10
                group["lr"] = rate
        self._keep_times(world)
        self._current = world * self._samples
        self._begin_step()
        return stop

    def epoch(self, epochs, loss=None):
        """After each epoch, in every process; the first one reports. True where that was written."""
        took = self._clock.took(epochs)
        distributed = self._torch.distributed
        if self.world > 1 and distributed.get_rank() != 0:
            return False
        return lucid_report.report(
            epochs,
            took,
            self.world,
            None if loss is None else float(loss),
            self._current or None,
            gradient=self.statistics.value(),
            profile=self.profile(),
            batch_range=[self._batch, self._largest or self._batch],
            atomic_range=list(self._atomic) if self._atomic else None,
            accumulation=True,
        )

    def profile(self):
        """Rows of step times: nodes, GPUs, samples a GPU a pass, seconds of a pass without a step, and with one."""
        found = self._times.items()
        return [[*key, one[0] / one[1], one[2] / one[3]] for key, one in found if one[1] and one[3]]

    def _begin_step(self):
        self._passes, self._samples, self._took, self._local = 0, 0, [], 0.0
        self._inside, self._mark = False, None

    def _seen(self, gradient):
        if not self._inside:
            return  # a gradient that the program takes for itself
        if self._largest is not None:
            # Of this process alone: hooks come before the processes' gradients are averaged.
            self._local = self._local + gradient.detach().double().pow(2).sum()
        if self._cuda:
            self._mark = self._torch.cuda.Event(enable_timing=True)
            self._mark.record()
        else:
            self._mark = time.monotonic()

    def _now(self):
        if self._cuda:
            self._torch.cuda.synchronize()
            self._end = self._torch.cuda.Event(enable_timing=True)
            self._end.record()
            self._end.synchronize()
        return time.monotonic()

    def _last_gradient(self):
        """When this process had its last gradient, by its own clock, s."""
        if self._mark is None:
            return time.monotonic()
        if self._cuda:
            return time.monotonic() - self._mark.elapsed_time(self._end) / 1e3
        return self._mark

    def _apply(self):
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _over_all(self, local, stop):
        """The sum over all processes, and whether one of them says stop."""
        if self.world == 1:
            return float(local), bool(stop)
        sums = self._torch.zeros(2, dtype=self._torch.float64, device=self._parameters[0].device)
        sums[0], sums[1] = local, float(stop)
        self._torch.distributed.all_reduce(sums)
        return float(sums[0]), float(sums[1]) > 0

    def _measure(self, gradients, local, scale):
        total = float(sum(one.double().pow(2).sum() for one in gradients))
        count = self.world * self._passes
        if count == 1:
            self._compare_with_last(gradients, total, scale)
            return
        if self._before is not None:
            self.statistics, self._before = Statistics(), None  # two steps' difference is biased: begin anew
        self.statistics.add(count, local, total, scale)

    def _compare_with_last(self, gradients, total, scale):
        """One gradient tells no variance: it is compared with the step's before."""
        now = [one.detach().clone() for one in gradients]
        if self._before is not None and len(self._before[0]) == len(now):
            before, before_total = self._before
            mean = float(sum(((a.double() + b.double()) / 2).pow(2).sum() for a, b in zip(before, now)))  # noqa: B905
            self.statistics.add(2, (total + before_total) / 2, mean, 2 * scale)
        self._before = now, total

    def _keep_times(self, world):
        """Times of this step's passes. The first step of a size counts for nothing: it warms up."""
        try:
            nodes = int(os.environ.get("LUCID_NODES") or os.environ.get("SLURM_JOB_NUM_NODES") or 1)
        except ValueError:
            nodes = 1
        key = (nodes, world, max(one[0] for one in self._took))
        if key not in self._times:
            if len(self._times) >= lucid_report.MOST_PROFILE:
                self._times.pop(next(iter(self._times)))
            self._times[key] = [0.0, 0, 0.0, 0]
            return
        sums = self._times[key]
        for _, took, computed, last in self._took:
            sums[0] += computed if last else took
            sums[1] += 1
            if last:
                sums[2] += took
                sums[3] += 1


if __name__ == "__main__":
    sys.exit("lucid_torch.py is imported by a training program; see its text")
