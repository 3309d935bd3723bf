"""The users of a campaign: they submit, cancel and release in time, each under their own name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from campaign.facts import Order, Task
from campaign.site import Site
from campaign.stream import FOLDER, script

_AT_ONCE = 3
_MOST = 40
"""With so many jobs that have not ended users wait before they submit more: a slow machine gets fewer jobs, not a
queue that never empties."""


class People:
    """One thread that keeps the times, and a few that run the commands: Slurm may be slow to answer."""

    def __init__(self, site: Site, orders: Iterable[Order], note: Callable[..., None]) -> None:
        self._site, self._note = site, note
        self._orders = iter(orders)
        self.by_token: dict[str, Order] = {}
        """Every order that was given to sbatch."""
        self.tasks: dict[str, Task] = {}
        """Those that sbatch took, by key."""
        self.refused: dict[str, str] = {}
        self.unsaid: set[str] = set()
        """Orders to which sbatch gave no answer: Slurm may have taken them all the same."""
        self.ended: Callable[[], int] = lambda: 0
        """How many of the tasks have ended, as far as anybody knows."""
        self._jobs: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        """Who got a number last, by token: a slurmctld that was killed gives those that it forgot out again."""
        self._asked_s: dict[str, float] = {}
        self._cancels: list[tuple[str, str, float]] = []
        """Number, user and time of each scancel."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="user")
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._live, name="users", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing more is submitted; what users meant to do later they do now: whoever held a job lets it go."""
        self._stop.set()
        self._thread.join(30)
        self._pool.shutdown(wait=True)
        for _, do in self._later:
            do()

    def ask(self, orders: Iterable[Order]) -> None:
        """These are submitted now, beside those of the stream; nothing is once the stream has stopped."""
        for order in orders:
            with suppress(RuntimeError):  # the pool has been closed
                self._pool.submit(self._submit, order)

    def accept(self, token: str, job: str, at_s: float) -> None:
        """Slurm has it, whatever sbatch said."""
        with self._lock:
            self.unsaid.discard(token)
            self._jobs[token], self._owners[job] = job, token
            order, asked_s = self.by_token[token], self._asked_s.get(token, at_s)
            for key in order.keys:
                task = self.tasks.setdefault(key, Task(order, key, at_s, job))
                # a scancel meant for the number's last owner, while sbatch had not answered yet
                for number, user, cancelled_s in self._cancels:
                    if (number, user) == (job, order.user) and cancelled_s >= asked_s:
                        task.cancelled_s = cancelled_s
        self._then(order, job)

    def saw(self, job: str, token: str) -> None:
        """Slurm shows that the number belongs to this order, or to a task of it."""
        if token in self.by_token:
            self._owners[job] = token

    def refuse(self, token: str, why: str) -> None:
        """Slurm has refused it, and sbatch never heard of that."""
        with self._lock:
            self.unsaid.discard(token)
            self.refused[token] = why
        self._note("refused", token=token, said=why)

    def _live(self) -> None:
        order = next(self._orders, None)
        paused_s, before_s = 0.0, 0.0
        while not self._stop.wait(0.1):
            at_s = time.monotonic() - self._began
            if len(self.tasks) - self.ended() > _MOST:
                paused_s += at_s - before_s
            before_s = at_s
            while order is not None and order.at_s <= at_s - paused_s:
                self._pool.submit(self._submit, order)
                order = next(self._orders, None)
            with self._lock:
                due = [do for when, do in self._later if when <= at_s]
                self._later = [(when, do) for when, do in self._later if when > at_s]
            for do in due:
                self._pool.submit(do)

    def _submit(self, order: Order) -> None:
        if self._stop.is_set():
            return
        options = order.options
        if order.after:
            before = self._jobs.get(order.after, "")
            if not before:
                options = tuple(word for word in options if "{after}" not in word and "invalid-dep" not in word)
                order = replace(order, after="", ends=order.ends - {"CANCELLED"})
            options = tuple(word.replace("{after}", before) for word in options)
        self.by_token[order.token], self._asked_s[order.token] = order, time.time()
        words = ["sbatch", "--parsable", "-D", "/tmp", "-o", f"{FOLDER}/out/{order.token}", *options]
        done = self._site.run(*words, user=order.user, limit_s=90, feed=script(order))
        said = done.stdout.strip().partition(";")[0]
        if done.returncode == 0 and said.isdigit():
            self.accept(order.token, said, time.time())
        elif "nable to contact" in done.stderr or "timed out" in done.stderr or done.returncode == 124:
            self.unsaid.add(order.token)
        else:
            self.refused[order.token] = done.stderr.strip()[-200:]
            self._note("refused", token=order.token, options=" ".join(options), said=done.stderr.strip()[-200:])

    def _then(self, order: Order, job: str) -> None:
        now = time.monotonic() - self._began
        with self._lock:
            if order.cancel_after_s is not None:
                self._later.append((now + order.cancel_after_s, lambda: self._cancel(order, job)))
            if order.release_after_s is not None:
                self._later.append((now + order.release_after_s, lambda: self._release(order, job)))

    def _cancel(self, order: Order, job: str, tries: int = 4) -> None:
        for key in order.keys:  # also if the answer gets lost: Slurm may have taken it all the same
            self.tasks[key].cancelled_s = time.time()
        if self._owners[job] != order.token:
            return
        done = self._site.run("scancel", job, user=order.user, limit_s=40)
        with self._lock:
            self._cancels.append((job, order.user, time.time()))
            now = self.by_token[self._owners[job]]
            for key in now.keys if now.user == order.user else ():
                self.tasks[key].cancelled_s = time.time()
        if done.returncode and tries > 1 and not self._stop.wait(4):
            self._cancel(order, job, tries - 1)

    def _release(self, order: Order, job: str, tries: int = 12) -> None:
        if self._owners[job] != order.token:
            return
        done = self._site.run("scontrol", "release", job, user=order.user, limit_s=40)
        if done.returncode and tries > 1:
            time.sleep(4)
            self._release(order, job, tries - 1)
