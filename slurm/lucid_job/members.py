"""Who shares a set of GPUs of this node, and whose turn it is on each resource. docs/decisions/0041-turns.md has the
rules and why no job waits for ever.

Each member has one small file in the folder and holds its flock as long as it lives. It writes there its stage times
and how far it is. All members work out the same order from the same files; there is no daemon. The folder's own lock
(flock of the directory, which nobody but root can replace) makes looking and entering one step. Whoever waits holds
nothing. Anybody may write into the folder, so nothing that stands there is trusted further than it is checked here.
"""

import binascii
import collections
import contextlib
import fcntl
import itertools
import math
import os
import re
import stat
import struct
import time

from lucid_job import untrusted

RESOURCES = ("storage", "cpu", "gpu", "network")
MOST = 4
"""Members that take turns; as many as there are resources."""
FLOOR_S = 5.0
"""No member is given up for being slow before so many seconds."""
CEILING_S = 300.0
"""After so many seconds without a sign, any member is."""
PERIODS = 4
"""A member that gives no sign for so many rounds of the group is given up until it moves again."""
LONGEST_S = 3600.0
"""No stage takes longer; a file that says so is not believed."""
MOST_ENTRIES = 256
MOST_OF_A_USER = 8
_NAME = re.compile(r"turn\.(0|[1-9][0-9]{0,9})\.[0-9]{1,19}\.[0-9a-f]{16}\Z")
_FORM = struct.Struct("<8s4ddQBBB")
_SUM = struct.Struct("<I")
_MAGIC = b"lturns-1"
_SIZE = _FORM.size + _SUM.size
_LAST_ROUND = 1 << 62
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0001, 0.002
_COARSE_S = 0.05
"""The clock of a folder's change time is this coarse, at the worst: a change just after a look may not show."""

State = collections.namedtuple("State", "times stamp round point inside away")
"""``times``: seconds in each stage, alone. ``stamp``: last sign, monotonic s. ``round`` and ``point``: the stages of
earlier rounds and those before ``point`` in this one are behind the member. ``inside``: it is in stage ``point``.
``away``: it said that nobody should wait for it."""


class Unusable(Exception):
    """The folder cannot be used for turns now; the message says why."""


def pack(name, state):
    """A member's file. Its check sum is over its name too, so that a copy under another name is not believed."""
    body = _FORM.pack(_MAGIC, *state.times, state.stamp, state.round, state.point, state.inside, state.away)
    return body + _SUM.pack(binascii.crc32(name.encode() + body))


def unpack(name, content, now):
    """The state that a file tells; None where anything about it is not as a member writes it."""
    if len(content) != _SIZE:
        return None
    body = content[: _FORM.size]
    if _SUM.unpack(content[_FORM.size :])[0] != binascii.crc32(name.encode() + body):
        return None
    magic, *times, stamp, number, point, inside, away = _FORM.unpack(body)
    if magic != _MAGIC or not all(0 <= value <= LONGEST_S for value in times):  # not NaN either
        return None
    if not math.isfinite(stamp) or stamp > now + 1 or number > _LAST_ROUND or point > len(RESOURCES):
        return None
    return State(tuple(times), stamp, number, point, bool(inside), bool(away))


def best_order(stages):
    """Indices of the members in the order in which they enter a round, and that round's period in s.

    The period of an order is the sum over the four steps of a round of the longest stage in that step. The first
    order with the shortest period counts. In a full group only the cycle matters, so its first member stands still.
    """
    count, steps = len(stages), len(RESOURCES)
    best = None
    for order in itertools.permutations(range(count)):
        if count == steps and order[0] != 0:
            break
        period = sum(
            max(stages[member][(step - place) % steps] for place, member in enumerate(order)) for step in range(steps)
        )
        if best is None or period < best[1]:
            best = order, period
    return best


class Member:
    """One registration: its name, its owner's uid, its open file, and what it told last."""

    def __init__(self, name, uid, fd):
        self.name, self.uid, self.fd = name, uid, fd
        self.state = None
        self.dead = False

    def look(self, now):
        """Is it alive, and does its file make sense? Reads its state anew."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # its process lives
        else:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            self.dead = True
            return False
        for _ in range(3):  # a reader may meet a write half done
            self.state = unpack(self.name, os.pread(self.fd, _SIZE + 1, 0), now)
            if self.state is not None:
                return True
        return False


class Group:
    """This process's membership in a folder. ``floor_s``: seconds of patience at the least."""

    def __init__(self, path, job, floor_s=FLOOR_S):
        """Opens the folder. Raises Unusable, or OSError where it is not there."""
        self._path, self._floor_s = path, floor_s
        self._job = job if re.match(r"[0-9]{1,19}\Z", job) else "0"  # only a person who looks there reads it
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self._folder)
        if found.st_uid not in (0, os.getuid()) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            os.close(self._folder)
            raise Unusable("others could replace this job's file in " + path)
        self._me = None
        self._others = {}
        self._listed = None
        self._best = (None, None)
        self.count = 1
        """Members that take turns, this one included, as last seen; 0 where there are too many for this one."""

    def join(self, times):
        """Register with the stage times; takes the round after everybody's. Raises Unusable, OSError."""
        uid = os.getuid()
        for _ in range(3):
            tail = binascii.hexlify(os.urandom(8)).decode()
            name = f"turn.{uid}.{self._job}.{tail}"
            hidden = ".new." + tail
            fd = os.open(
                hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=self._folder
            )
            me = Member(name, uid, fd)
            try:
                os.fchmod(fd, 0o644)  # whatever the job's umask is, the others have to read it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with self._locked():
                    self._list()
                    now = time.monotonic()
                    rounds = [one.state.round for one in self._active(now)]
                    self._sweep(uid)
                    me.state = State(times, now, max(rounds) + 1 if rounds else 1, 0, False, False)
                    if os.pwrite(fd, pack(name, me.state), 0) != _SIZE:
                        raise OSError("no space")
                    os.rename(hidden, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(hidden, dir_fd=self._folder)
                os.close(fd)
                if isinstance(error, BlockingIOError):  # somebody was faster to lock our file
                    continue
                raise
            self._me, self._listed, self.count = me, None, min(len(rounds) + 1, MOST)
            return
        raise Unusable("somebody else locks this job's file")

    def leave(self):
        """Unregister, and close everything. The others see it at once."""
        with contextlib.suppress(OSError):
            if self._me is not None:
                os.unlink(self._me.name, dir_fd=self._folder)
        self.forget()

    def forget(self):
        """Close everything and change nothing: for a forked child, whose parent goes on as the member."""
        fds = [one.fd for one in self._others.values() if one is not None]
        fds += [self._folder] if self._me is None else [self._folder, self._me.fd]
        self._others, self._me = {}, None
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    @property
    def times(self):
        """Stage times as told, s; what is set is told with the next change."""
        return self._me.state.times

    @times.setter
    def times(self, times):
        self._me.state = self._me.state._replace(times=times)

    def enter(self, resource, limit_s):
        """Wait for the turn on a resource (its number), and take it. Raises Unusable after ``limit_s`` seconds of
        waiting, or where the folder has become unusable; then nothing is held."""
        state = self._me.state
        number = state.round + 1 if resource < state.point else state.round
        self._tell(round=number, point=resource, inside=False, away=False)
        try:
            self._wait(resource, limit_s)
        except BaseException:  # a signal, too
            with contextlib.suppress(OSError):
                self._tell(inside=False, away=True)
            raise

    def _wait(self, resource, limit_s):
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        first = True
        while True:
            if first or self._free(resource):
                with self._locked():
                    if first:
                        self._catch_up()
                    if self._free(resource):
                        self._tell(inside=True)
                        return
            first = False
            now = time.monotonic()
            if now - began > limit_s:
                raise Unusable(f"waited {now - began:.1f} s for a turn")
            if now - self._me.state.stamp > self._floor_s / 10:
                self._tell()  # waiting, not stuck
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)

    def exit(self):
        """Out of the stage: the turn is the next one's."""
        self._tell(point=self._me.state.point + 1, inside=False)

    def step(self, away=False):
        """The rest of this round is behind this member."""
        state = self._me.state
        self._tell(round=state.round + (state.point > 0), point=0, inside=False, away=away)

    def _tell(self, **changes):
        self._me.state = self._me.state._replace(stamp=time.monotonic(), **changes)
        os.pwrite(self._me.fd, pack(self._me.name, self._me.state), 0)

    @contextlib.contextmanager
    def _locked(self):
        """The folder's lock. Raises Unusable if somebody keeps it."""
        end = time.monotonic() + self._floor_s
        while True:
            try:
                fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Unusable("somebody keeps the folder locked") from None
                time.sleep(_FIRST_PAUSE_S)
        try:
            yield
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _catch_up(self):
        """Whoever was given up for a while goes on with the others' round; they do not wait for its old ones."""
        top = max([one.state.round for one in self._active(time.monotonic())], default=0)
        if top > self._me.state.round + 1:
            self._tell(round=top)

    def _free(self, resource):
        """Is it this member's turn on a resource?"""
        self._list()
        now = time.monotonic()
        members = _fair([*self._active(now), self._me])
        if self._me not in members:
            self.count = 0
            return True  # more than can take turns: it shares without
        self.count = len(members)
        place = members.index(self._me)
        key = [(one.name, one.state.times) for one in members]
        if key != self._best[0]:
            self._best = key, best_order([one.state.times for one in members])[0]
        order = self._best[1]
        number, mine = self._me.state.round, order.index(place)
        for at, index in enumerate(order):
            other = members[index].state
            if at == mine:
                continue
            if other.inside and other.point == resource:
                return False
            if (other.round, other.point) <= (number if at < mine else number - 1, resource):
                return False
        return True

    def _active(self, now):
        """The other members whose turn is waited for."""
        alive = [one for one in self._others.values() if one is not None and one.look(now)]
        round_s = sum(sum(one.state.times) for one in ([*alive, self._me] if self._me else alive))
        patience_s = min(max(self._floor_s, PERIODS * round_s), max(CEILING_S, self._floor_s))
        return [one for one in alive if not one.state.away and now - one.state.stamp <= patience_s]

    def _list(self):
        """Open new registrations and drop those that left, if the folder has changed."""
        changed = os.fstat(self._folder).st_mtime_ns
        if changed == self._listed:
            return
        names, counts = [], {}
        with os.scandir(self._path) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_ENTRIES:
                    raise Unusable("too many files in " + self._path)
                if _NAME.match(entry.name):
                    names.append(entry.name)
        if self._me is not None and self._me.name not in names:
            raise Unusable("this job's file has gone from " + self._path)
        found = {}
        for name in sorted(names):
            uid = name.split(".")[1]
            counts[uid] = counts.get(uid, 0) + 1
            if counts[uid] > MOST_OF_A_USER or (self._me is not None and name == self._me.name):
                continue
            found[name] = self._others.pop(name) if name in self._others else self._open(name, int(uid))
        for gone in self._others.values():
            if gone is not None:
                os.close(gone.fd)
        self._others = found
        fresh = abs(time.time() - changed / 1e9) < _COARSE_S
        self._listed = None if fresh else changed

    def _sweep(self, uid):
        """Remove what this user's killed jobs left here."""
        for one in self._others.values():
            if one is not None and one.dead and one.uid == uid:
                with contextlib.suppress(OSError):
                    os.unlink(one.name, dir_fd=self._folder)

    def _open(self, name, uid):
        """The registration of this name; None where it is not a plain file of its owner."""
        try:
            fd, found = untrusted.opened(name, uid, dir_fd=self._folder)
        except (OSError, untrusted.Refused):
            return None
        if found.st_size != _SIZE:
            os.close(fd)
            return None
        return Member(name, uid, fd)


def _fair(members):
    """At most MOST of them, by name; each user's first one before any user's second."""
    members = sorted(members, key=lambda one: one.name)
    if len(members) <= MOST:
        return members
    counts = collections.Counter()
    ranked = []
    for one in members:
        ranked.append((counts[one.uid], one.name, one))
        counts[one.uid] += 1
    return sorted((one for _, _, one in sorted(ranked)[:MOST]), key=lambda one: one.name)
