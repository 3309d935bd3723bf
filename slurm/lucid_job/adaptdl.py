"""AdaptDL's protocol for jobs that are written for it, unchanged: environment, discovery, hints.

Its agent asks the supervisor where the first replica is (GET /discover/NAMESPACE/JOB/RESTART), and PUTs what it has
learned every 30 s (/hints/NAMESPACE/JOB). The supervisor here is a thread of lucid-run on 127.0.0.1 of each node. Its
address has a random part, so other users of the node cannot speak for the job. Whatever comes, the job goes on.
"""

import contextlib
import io
import json
import math
import os
import pickle
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import lucid_report
from lucid_job import Refused, tell, untrusted

MOST_BODY = 65536
MOST_CLIENTS = 32
SLOW_S = 10.0
"""Seconds that a client may say nothing."""
STEP_MODEL = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_CHECKPOINT = re.compile("checkpoint-([0-9]{1,9})")


def prepared(folder, restarts):
    """Folders below the job's checkpoint folder, and a number for this start that none before it had."""
    made = {"adaptdl": str(Path(folder) / "adaptdl"), "share": str(Path(folder) / "share")}
    try:
        for path in made.values():
            Path(path).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be used: {error.strerror}") from None
    # AdaptDL names its checkpoint by this number, and fails where that name is taken.
    last = max(_checkpoints(made["adaptdl"]), default=-1)
    return dict(made, restart=max(restarts, last + 1), epochs=finished_epochs(made["adaptdl"]))


def environment(own, place, local):
    """Of one process: AdaptDL's variables, and its own GPU alone, as it sees in a pod of AdaptDL's."""
    made = {name: value for name, value in own.items() if not name.startswith("ADAPTDL_")}
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # a script that reads them would look for a second GPU
        made.pop(name, None)
    for name in DEVICES:
        devices = [one for one in made.get(name, "").split(",") if one]
        if len(devices) == place["here"]:
            made[name] = devices[local]
    # The agent's requests go to this node; a site's proxy would not find it.
    for name in ("no_proxy", "NO_PROXY"):
        made[name] = ",".join(filter(None, [made.get(name), "127.0.0.1"]))
    # AdaptDL's checkpoints hold NumPy arrays. From 2.6 on torch.load refuses them, unless told that they are ours.
    made.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    made.update(
        ADAPTDL_CHECKPOINT_PATH=place["adaptdl"],
        ADAPTDL_SHARE_PATH=place["share"],
        ADAPTDL_JOB_ID="slurm/" + (own.get("SLURM_JOB_ID") or "0"),
        ADAPTDL_MASTER_ADDR=own["MASTER_ADDR"],
        ADAPTDL_MASTER_PORT=own["MASTER_PORT"],
        ADAPTDL_REPLICA_RANK=own["RANK"],
        ADAPTDL_NUM_REPLICAS=own["WORLD_SIZE"],
        ADAPTDL_NUM_NODES=str(place["nodes"]),
        ADAPTDL_NUM_RESTARTS=str(place["restart"]),
        ADAPTDL_SUPERVISOR_URL=place["url"],
        ADAPTDL_SCHED_VERSION="0.0.0",  # AdaptDL's word for one that it need not compare with its own
    )
    return made


class Endpoint:
    """AdaptDL's supervisor, for the processes of this node. ``url`` is known at once; ``start`` begins to answer."""

    def __init__(self, place):
        path = "/" + os.urandom(16).hex()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.told = (path, [place["master"], *place["hosts"][1:]], place["epochs"])
        self._server.places = threading.Semaphore(MOST_CLIENTS)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def start(self):
        """Answer until lucid-run ends."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def process_request(self, request, client_address):
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the job may start no more threads
            self.places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request, client_address):
        """A client that went away, or sends rubbish, is nobody's trouble."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SLOW_S

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _words(self):
        """The path's words after the random one; None: it does not begin with that."""
        path, _, _ = self.path.partition("?")
        own = self.server.told[0] + "/"
        return path[len(own) :].split("/") if path.startswith(own) else None

    def do_GET(self):
        words = self._words() or [""]
        if words[0] == "discover":
            self._answer(200, json.dumps(self.server.told[1]).encode())
        else:
            self._answer(200 if words[0] == "healthz" else 404)

    def do_PUT(self):
        """Hints. AdaptDL's agent logs any other status than 200, and goes on."""
        words, length = self._words(), self.headers.get("Content-Length") or ""
        if not words or words[0] != "hints":
            return self._answer(404)
        if not re.fullmatch("[0-9]{1,18}", length) or int(length) > MOST_BODY:
            self.close_connection = True
            return self._answer(413 if length.isdigit() else 411)
        try:
            hints = json.loads(self.rfile.read(int(length)).decode("utf-8"))
        except (ValueError, RecursionError):
            return self._answer(400)
        if not isinstance(hints, dict):
            return self._answer(400)
        told = report_of(hints)
        written = lucid_report.report(self.server.told[2], **told) if told else True
        return self._answer(200 if written else 500)

    do_POST = do_PUT  # noqa: N815


def report_of(hints):
    """What a report tells of an agent's hints; anything that is not as it should be is left out."""
    perf, grad = (
        hints.get(name) if isinstance(hints.get(name), dict) else {} for name in ("perfParams", "gradParams")
    )
    init, most, now = (_number(hints.get(name)) for name in ("initBatchSize", "maxBatchSize", "globalBatchSize"))
    bounds = hints.get("localBszBounds")
    made = {
        "step_model": _numbers([perf.get(name) for name in STEP_MODEL]),
        "gradient": _numbers([grad.get("norm"), grad.get("var")]),
        "batch": now if now and now >= 1 else None,
    }
    if init and init >= 1:
        made["batch_range"] = [int(init), max(int(init), int(most or 0))]
    if isinstance(bounds, list) and len(bounds) == 2:
        least, largest = _number(bounds[0]) or 1, _number(bounds[1]) or (made.get("batch_range") or [0, 0])[1]
        if 1 <= least <= largest:
            made["atomic_range"] = [int(least), int(largest)]
    if isinstance(hints.get("gradientAccumulation"), bool):
        made["accumulation"] = hints["gradientAccumulation"]
    return {name: value for name, value in made.items() if value is not None}


def _number(value):
    """A finite number from 0 up, within what lucidd reads; else None."""
    sound = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e12
    return value if sound and math.isfinite(value) else None


def _numbers(values):
    found = [_number(value) for value in values]
    return None if None in found else [float(value) for value in found]


def _checkpoints(folder):
    """Numbers of AdaptDL's checkpoints."""
    with contextlib.suppress(OSError):
        found = (_CHECKPOINT.fullmatch(path.name) for path in Path(folder).iterdir())
        return [int(one.group(1)) for one in found if one]
    return []


class _OnlyNumbers(pickle.Unpickler):
    def find_class(self, *_):
        raise pickle.UnpicklingError("not a number")


def finished_epochs(folder):
    """Epochs that the last checkpoint of AdaptDL's holds: its hints do not tell them. 0: there is none."""
    numbers = _checkpoints(folder)
    if not numbers:
        return 0
    try:
        path = Path(folder) / f"checkpoint-{max(numbers)}" / ".adaptdl-epoch"
        found = _OnlyNumbers(io.BytesIO(untrusted.read(str(path), os.geteuid()))).load()
    except Exception as error:  # whatever lies there, the job starts
        tell(f"the epochs of AdaptDL's checkpoint cannot be read: {error}")
        return 0
    return found if isinstance(found, int) and 0 <= found < 10**9 else 0
