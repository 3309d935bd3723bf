"""lucid-turns: jobs that share GPUs take turns on storage, CPU, GPU and network. Python 3.6 or later, no dependency.

    sys.path.insert(0, "/etc/slurm/lucid")
    import lucid_turns

    turns = lucid_turns.Turns()
    for batch in batches:
        with turns.storage():
            load()
        with turns.cpu():
            preprocess()
        with turns.gpu():
            forward_and_backward()      # ends with torch.cuda.synchronize(), or the turn ends before the work does
        with turns.network():
            all_reduce()
        turns.step()                    # one iteration done

It measures how long each stage takes and reports that to Lucid. In a job that shares its GPUs with others that do the
same ($LUCID_TURNS names their folder), one job at a time is in a stage, in the order with the shortest round. A stage
may be left out; going back to an earlier one begins another round. A stage within a stage takes no turn of its own.
Stages of another thread or process than the one that made the Turns do nothing. It never fails the job: what cannot
be done is told on stderr, once.
"""

import collections
import os
import sys
import threading
import time
import weakref

import lucid_report
from lucid_job import members

FREE = 2
"""First iterations, without turns: a program warms up there. The first is not measured either."""
KEPT = 16
"""Iterations of which the median counts."""
EVERY = 4
"""Medians are taken anew after so many iterations."""
CHANGED = 0.2
"""Stage times that changed by less than this share are not told anew."""
REPORT_S = 30.0
"""Least seconds between two reports."""
AWAY_S, LONGEST_AWAY_S = 60.0, 3600.0
"""Seconds without turns after they went wrong: twice as long each time."""
_ALLOWED = 8
"""Rounds of equal jobs that one wait may take."""


def leads(environ=None):
    """Does this process take turns for its job, and why not? ("" if it does.) One process a job; one node a job."""
    environ = os.environ if environ is None else environ
    for name in ("LUCID_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if environ.get(name, "1") != "1":
            return "the job has several nodes"
    for name in ("SLURM_LOCALID", "LOCAL_RANK", "SLURM_PROCID", "RANK"):
        if environ.get(name, "0") != "0":
            return "another process of the job does"
    return ""


class Turns:
    """The turns of one job; see the module. ``folder``: $LUCID_TURNS unless given. ``patience_s``: seconds for which
    a member that gives no sign is waited for at the least; the same in all jobs."""

    def __init__(self, folder=None, patience_s=members.FLOOR_S, report=True):
        self._folder = folder or os.environ.get("LUCID_TURNS") or ""
        self._patience_s, self._pid = patience_s, os.getpid()
        self._idle = leads()
        if self._idle:
            self._folder = ""
        rank = os.environ.get("SLURM_PROCID", "0"), os.environ.get("RANK", "0"), os.environ.get("LOCAL_RANK", "0")
        self._report = report and rank == ("0", "0", "0")
        self._held = []
        self._thread, self._open, self._told = threading.get_ident(), False, False
        self._failures, self._again_s = 0, 0.0
        self._rows = collections.deque(maxlen=KEPT)
        self._waits = collections.deque(maxlen=_ALLOWED)
        self._spent = [0.0] * len(members.RESOURCES)
        self._waited_s, self._began_s = 0.0, time.monotonic()
        self._rounds, self._of = collections.deque(maxlen=KEPT), 0
        self._reported, self._reported_s = None, float("-inf")
        self.iterations = 0
        """Iterations done."""
        self.stages = None
        """Seconds in each stage and of an iteration, alone: medians. None before they are known."""
        self.in_turns = None
        """Seconds of an iteration beside others, waiting included, and how many jobs take turns: a median. None while
        this job takes no turns with others, or not for long enough."""
        self.waited_s = 0.0
        """Seconds waited for turns so far."""
        weakref.finalize(self, _leave, self._held, self._pid)  # at the end of the process, too
        mine = weakref.ref(self)
        if hasattr(os, "register_at_fork"):  # Python 3.7; before, a child keeps its parent's sign of life
            os.register_at_fork(after_in_child=lambda: _forked(mine))

    def storage(self):
        """The stage that reads or writes files."""
        return _Stage(self, 0)

    def cpu(self):
        """The stage that computes on CPUs."""
        return _Stage(self, 1)

    def gpu(self):
        """The stage that computes on GPUs; the work has to be done when it ends, not only queued."""
        return _Stage(self, 2)

    def network(self):
        """The stage that sends and receives."""
        return _Stage(self, 3)

    @property
    def _group(self):
        return self._held[0] if self._held else None

    @property
    def members(self):
        """Jobs that take turns together, this one included; 0 while this one takes none."""
        return 0 if self._group is None else self._group.count

    def step(self):
        """One iteration is done."""
        if self._open or not self._mine():
            return
        now = time.monotonic()
        self.iterations += 1
        if self.iterations > 1:
            self._rows.append((*self._spent, max(now - self._began_s - self._waited_s, 0.0)))
        if self._group is not None:
            self._waits.append(self._waited_s)
        self._saw_round(now - self._began_s)
        self._spent = [0.0] * len(members.RESOURCES)
        self._waited_s, self._began_s = 0.0, now
        if self._rows and (len(self._rows) < EVERY or self.iterations % EVERY == 0):
            names = enumerate((*members.RESOURCES, "iteration"))
            self.stages = {name: _median([row[at] for row in self._rows]) for at, name in names}
        self._guarded(self._stepped)
        self._tell_lucid(now)

    def _saw_round(self, took_s):
        if self.members != self._of:  # somebody came or went within it
            self._rounds.clear()
            self._of, self.in_turns = self.members, None
        elif self._of > 1:
            self._rounds.append(took_s)
            if len(self._rounds) >= 2 * EVERY and self.iterations % EVERY == 0:
                self.in_turns = _median(self._rounds), self._of

    def pause(self):
        """The others do not wait for this job until its next stage: for what takes long, such as a validation."""
        if self._group is not None and not self._open and self._mine():
            self._guarded(lambda: self._group.step(away=True))

    def close(self):
        """No more turns. The end of the process does the same."""
        _leave(self._held, self._pid)
        self._folder = ""

    def _mine(self):
        return os.getpid() == self._pid and threading.get_ident() == self._thread

    def _times(self):
        return tuple(min(self.stages[name], members.LONGEST_S) for name in members.RESOURCES)

    def _stepped(self):
        if self._group is not None:
            self._group.step()
            if _differ(self._group.times, self._times()):
                self._group.times = self._times()
            allowed_s = (2 * self._group.count - 1) * len(self._waits) * self.stages["iteration"]
            if len(self._waits) == _ALLOWED and sum(self._waits) > max(allowed_s, 2 * self._patience_s):
                raise members.Unusable(
                    "{:.1f} s waited in {} iterations of {:.3f} s".format(
                        sum(self._waits), _ALLOWED, self.stages["iteration"]
                    )
                )
        elif self._folder and self.iterations >= FREE and time.monotonic() >= self._again_s:
            try:
                group = members.Group(self._folder, os.environ.get("SLURM_JOB_ID", "0"), self._patience_s)
            except FileNotFoundError:
                self._folder = ""  # no turns here
                return
            try:
                group.join(self._times())
            except BaseException:
                group.forget()
                raise
            self._held.append(group)
            self._waits.clear()

    def _enter(self, resource):
        """Take a turn; the time since which the stage runs, None where it is no stage of its own."""
        if self._open or not self._mine():
            return None
        self._open = True
        try:
            if self._group is not None:
                began = time.monotonic()
                limit_s = max(2 * self._patience_s, _ALLOWED * self._group.count * self.stages["iteration"])
                try:
                    self._guarded(lambda: self._group.enter(resource, limit_s))
                finally:
                    waited = time.monotonic() - began
                    self._waited_s += waited
                    self.waited_s += waited
        except BaseException:  # a signal while waiting
            self._open = False
            raise
        return time.monotonic()

    def _exit(self, resource, began):
        if os.getpid() != self._pid:  # forked within the stage
            return
        self._spent[resource] += time.monotonic() - began
        try:
            if self._group is not None:
                self._guarded(self._group.exit)
        finally:
            self._open = False

    def _guarded(self, call):
        """Turns that go wrong are left for a while; the job goes on."""
        try:
            call()
        except (OSError, members.Unusable) as error:
            _leave(self._held, self._pid)
            away_s = min(AWAY_S * 2**self._failures, LONGEST_AWAY_S)
            self._failures = min(self._failures + 1, 10)
            self._again_s = time.monotonic() + away_s
            if not self._told:
                self._told = True
                sys.stderr.write(f"lucid-turns: goes on without turns, at first for {away_s:.0f} s: {error}\n")

    def _tell_lucid(self, now):
        if not self._report or len(self._rows) < EVERY or now - self._reported_s < REPORT_S:
            return
        in_turns = list(self.in_turns or ())
        values = (*self.stages.values(), *in_turns)
        if self._reported is not None and not _differ(self._reported, values):
            return
        self._reported, self._reported_s = values, now
        if lucid_report.job_of() and not lucid_report.report(stages=self.stages, in_turns=in_turns):
            self._report = False


class _Stage:
    """A context: one stage of one iteration."""

    def __init__(self, turns, resource):
        self._turns, self._resource = turns, resource
        self._began = None

    def __enter__(self):
        self._began = self._turns._enter(self._resource)
        return self

    def __exit__(self, *error):
        if self._began is not None:
            self._turns._exit(self._resource, self._began)
        return False


def _median(values):
    """Without the module statistics, which a small Python lacks."""
    values, half = sorted(values), len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _differ(before, after):
    pairs = zip(before, after)  # noqa: B905 - strict= needs Python 3.10
    return len(before) != len(after) or any(abs(a - b) > CHANGED * max(a, b) and abs(a - b) > 1e-3 for a, b in pairs)


def _leave(held, pid):
    """The member's end; not its forked child's."""
    while held and os.getpid() == pid:
        held.pop().leave()


def _forked(turns):
    """A child takes no turns: it closes what it has of its parent's, so that it is no sign of the parent's life."""
    mine = turns()
    while mine is not None and mine._held:
        mine._held.pop().forget()
