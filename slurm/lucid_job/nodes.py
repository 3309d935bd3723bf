"""A job of several nodes: srun starts lucid_run.py on each of them, and each joins the first one over TCP."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from lucid_job import Refused, tell
from lucid_job.ranks import CHECKPOINTED, GRACE_S, STALE, gpus_here, number, run_here, together

JOIN = "LUCID_RUN_JOIN"
JOIN_S = 120.0
"""Seconds within which all nodes must have started."""
MOST_LINE = 65536


class Line:
    """A connection between the first node and another, of lines of JSON."""

    def __init__(self, connection):
        self._connection, self._left = connection, b""
        connection.setblocking(True)
        connection.settimeout(10.0)
        self.host = connection.getpeername()[0]

    def fileno(self):
        """For select."""
        return self._connection.fileno()

    def send(self, **said):
        """False where the other is gone."""
        try:
            self._connection.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            return False
        return True

    def lines(self):
        """What has come, whole lines only; None: the other is gone, or does not speak so."""
        try:
            data = self._connection.recv(MOST_LINE)
            *whole, self._left = (self._left + data).split(b"\n")
            found = [json.loads(line.decode()) for line in whole]
        except (OSError, ValueError, RecursionError):
            return None
        known = all(isinstance(line, dict) for line in found) and len(self._left) < MOST_LINE
        return found if data and known else None

    def close(self):
        """End it."""
        self._connection.close()


def order(joined, own_name):
    """The nodes' ranks: this node first, for it is MASTER_ADDR, then as Slurm counts them."""
    names = sorted(joined, key=lambda index: (joined[index][1]["name"] != own_name, index))
    first, places = 0, []
    for place, index in enumerate(names):
        places.append((index, {"node": place, "first": first, "here": joined[index][1]["gpus"]}))
        first += joined[index][1]["gpus"]
    return first, places


def gather(listener, token, count, signals, srun):
    """Wait until every node has said how many GPUs it has; (connection, what it said) by Slurm's number of the node.

    Raises:
        Refused: not within JOIN_S, or srun ended before.
    """
    joined, asking, until = {}, [], time.monotonic() + JOIN_S
    while len(joined) < count and not signals.told:
        if srun.poll() is not None or time.monotonic() > until:
            raise Refused(f"{len(joined)} of {count} nodes have started; srun says above why")
        for ready in select.select([listener, signals.fd, *asking], [], [], 1.0)[0]:
            signals.taken()
            if ready is listener:
                with contextlib.suppress(OSError):
                    asking.append(Line(listener.accept()[0]))
                if len(asking) > 64 + count:  # strangers
                    asking.pop(0).close()
            elif ready in asking:
                lines = ready.lines()
                if lines == []:
                    continue  # not yet a whole line
                said = lines[0] if lines else {}
                asking.remove(ready)
                index, gpus = said.get("node"), said.get("gpus")
                sound = said.get("token") == token and isinstance(index, int)
                if sound and index not in joined and isinstance(gpus, int) and 0 < gpus < 1024:
                    joined[index] = ready, said
                else:
                    ready.close()
    for left in asking:
        left.close()
    return joined


def over_nodes(place, command_line, signals, nodes, program):
    """Start every node's processes through srun, and stay until all have ended; their status."""
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(nodes + 16)
    listener.setblocking(False)
    token = os.urandom(16).hex()
    environ = {name: value for name, value in os.environ.items() if name not in STALE}
    environ[JOIN] = f"{token} {listener.getsockname()[1]} {socket.gethostname()}"
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--export=ALL"]
    words += ["--cpu-bind=none", "--mpi=none", "--input=none", "--kill-on-bad-exit=0", "--wait=0"]
    words += [sys.executable, program, *(["--adaptdl"] if command_line.adaptdl else []), "--"]
    try:
        srun = subprocess.Popen(words + command_line.command, env=environ)
    except OSError as error:
        raise Refused(f"srun cannot be started: {error.strerror}") from None
    try:
        joined = gather(listener, token, nodes, signals, srun)
    except Refused:
        srun.kill()
        raise
    finally:
        listener.close()
    if signals.told:  # before anything had begun: the nodes see the connection close, and end
        for line, _ in joined.values():
            line.close()
        srun.wait()
        return CHECKPOINTED
    world, places = order(joined, os.environ.get("SLURMD_NODENAME"))
    hosts = [joined[index][0].host for index, own in places for _ in range(own["here"])]
    lines = [joined[index][0] for index, _ in places]
    for line, (_, own) in zip(lines, places):  # noqa: B905 - strict is of Python 3.10
        line.send(**dict(place, world=world, nodes=nodes, hosts=hosts, **own))
    statuses = mind_nodes(lines, signals)
    with contextlib.suppress(subprocess.TimeoutExpired):
        srun.wait(GRACE_S)
    if srun.poll() is None:
        srun.kill()
    return together(statuses)


def mind_nodes(lines, signals):
    """Pass signals on to the nodes until each has told its status."""
    statuses, stopped = [], False
    while lines:
        ready = select.select([signals.fd, *lines], [], [], 1.0)[0]
        for which in signals.taken():
            for line in lines:
                line.send(signal=int(which))
        for line in [line for line in lines if line in ready]:
            said = line.lines()
            ended = None if said is None else next((int(one["ended"]) for one in said if "ended" in one), -1)
            if ended == -1:
                continue
            if ended is None:
                tell(f"a node was lost ({line.host}); the others are stopped")
            lines.remove(line)
            line.close()
            statuses.append(1 if ended is None else ended)
            if statuses[-1] == CHECKPOINTED or (statuses[-1] and not stopped):
                for other in lines:
                    other.send(
                        **({"signal": int(signal.SIGTERM)} if statuses[-1] == CHECKPOINTED else {"stop": True})
                    )
                stopped = stopped or statuses[-1] != CHECKPOINTED
    return statuses


def join(command_line, signals):
    """On each node, started by srun: tell the first node of the GPUs here, take the ranks, run them."""
    token, port, host = os.environ[JOIN].split()
    connection, failed = None, "no address"
    for address in (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), host):
        try:
            connection = connection or (address and socket.create_connection((address, int(port)), 20.0))
        except OSError as error:
            failed = f"{address}: {error}"
    if not connection:
        raise Refused(f"this node does not reach the job's first one, {failed}")
    master, line = connection.getpeername()[0], Line(connection)
    name = os.environ.get("SLURMD_NODENAME")
    line.send(token=token, node=number(os.environ, "SLURM_NODEID"), name=name, gpus=gpus_here(os.environ))
    until = time.monotonic() + JOIN_S + 30
    while time.monotonic() < until:
        ready = select.select([line, signals.fd], [], [], 1.0)[0]
        signals.taken()
        said = line.lines() if line in ready else []
        if said is None:
            return CHECKPOINTED if signals.told else 1
        if not said:
            continue
        place = dict(said[0], master=master)
        status = 2
        try:
            status = run_here(place, command_line, signals, line, said[1:])
        finally:
            line.send(ended=status)
        return status
    raise Refused(f"the job's first node said nothing for {JOIN_S + 30:g} s")
