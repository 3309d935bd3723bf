"""Records of lucidd's plans, each with everything that it was made from; and planning them again.

A record can be planned again anywhere (``replan``) and must come to the same bytes: it holds the snapshot with its
predictions, memory, forecast and shares, the predictor's answers on pairs, and the policy with its settings. For a
partition whose plan was kept from an earlier cycle it holds the state when that plan was made."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import to_builtins

import lucid
from lucid.config.load import Settings, stored_policy
from lucid.config.policy import PolicySettings
from lucid.core.decision import PartitionPlan, Plan
from lucid.core.job import Pending, Running
from lucid.core.ports import Applied, PairSpeeds, Recorder
from lucid.core.prediction import Prediction
from lucid.core.snapshot import ArrivalForecast, Partition, Snapshot
from lucid.errors import StoreError
from lucid.files import write_atomic
from lucid.orchestrator.planner import Context, PolicyHost, isolated, make_policies
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.registry import import_policy
from lucid.store.recorder import Recorders
from lucid.store.values import value_from_json, value_to_json

_T = TypeVar("_T")
_LOG = logging.getLogger("lucidd")
_FORMAT = 1
_SUFFIX = ".plan.gz"
_MIB = 1 << 20
EVERY_S = 30.0
"""At most one plan in so many seconds is recorded, with all that it was made from."""
_COST = 100.0
"""Recording takes at most one part in so many of the daemon's time."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One record. ``plans``: bytes of each partition's plan as it was made; ``context``: which of ``contexts`` it was
    made from. ``code``: version and digest of the deciding code that made it. ``own``: by partition, the policy of
    those that have another than ``policy``."""

    at_s: float
    code: str
    policy: str
    settings: PolicySettings
    contexts: tuple[Context, ...]
    context: Mapping[str, int]
    plans: Mapping[str, bytes]
    own: Mapping[str, str] = field(default_factory=dict)


@cache
def lucid_version() -> str:
    """The version, and a digest of the source of everything that decides: two that agree decide alike."""
    root, digest = Path(lucid.__file__).parent, hashlib.sha256()
    for room in ("core", "binder", "orchestrator", "profiler", "systems"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.read_bytes())
    try:
        version = metadata.version("lucid-scheduler")
    except metadata.PackageNotFoundError:
        version = "source"
    return f"{version}+{digest.hexdigest()[:12]}"


def plan_bytes(part: PartitionPlan) -> bytes:
    """A partition's whole plan as bytes: decisions with their reasons in order, actions, wake time, memory."""
    data = {
        "decisions": [[job_id, value_to_json(decision)] for job_id, decision in part.decisions.items()],
        "actions": [[action.job_id, value_to_json(action.decision)] for action in part.actions],
        "wake_s": part.wake_s,
        "memory": value_to_json(part.memory),
        **({"error": part.error} if part.error else {}),
    }
    return json.dumps(data, separators=(",", ":")).encode()


# -- writing ---------------------------------------------------------------------------------------------------


def record_bytes(
    plan: Plan,
    made_from: Mapping[str, Context],
    policy: str,
    settings: PolicySettings,
    own: Mapping[str, str] | None = None,
) -> bytes:
    """A record, compressed. Partitions and predictions that contexts share are written once. ``own``: as in
    ``PlanRecord``.

    Raises:
        StoreError: the policy's memory is of a kind that cannot be written."""
    contexts = list({id(context): context for context in made_from.values()}.values())
    partitions, predictions = _Once(_partition_json), _Once[Prediction](value_to_json)
    numbers = {id(context): i for i, context in enumerate(contexts)}
    data = {
        "format": _FORMAT,
        "at_s": plan.now_s,
        "code": lucid_version(),
        "policy": policy,
        **({"own": dict(own)} if own else {}),
        "settings": to_builtins(settings),
        "contexts": [_context_json(context, partitions, predictions) for context in contexts],
        "partitions": partitions.written,
        "predictions": predictions.written,
        "context": {name: numbers[id(made_from[name])] for name in plan.partitions},
        "plans": {name: plan_bytes(part).decode() for name, part in plan.partitions.items()},
    }
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)


class _Once(Generic[_T]):
    """Writes each object once, and gives its number."""

    def __init__(self, write: Callable[[_T], Any]) -> None:
        self._write = write
        self._numbers: dict[int, tuple[int, _T]] = {}
        self.written: list[Any] = []

    def __call__(self, item: _T) -> int:
        known = self._numbers.get(id(item))
        if known is None:
            known = self._numbers[id(item)] = (len(self.written), item)
            self.written.append(self._write(item))
        return known[0]


def _partition_json(part: Partition) -> dict[str, Any]:
    return {
        "name": part.name,
        "profiling": part.profiling,
        "acting": part.acting,
        **({"quotas": dict(part.quotas)} if part.quotas else {}),
        **({"fitting": dict(part.fitting)} if part.fitting else {}),
        "nodes": value_to_json(part.nodes),
        "pending": value_to_json(part.pending),
        "running": value_to_json(part.running),
    }


def _context_json(context: Context, partitions: _Once[Partition], predictions: _Once[Prediction]) -> dict[str, Any]:
    snapshot = context.snapshot
    parts = snapshot.partitions.values()
    jobs = [*(e.job.id for p in parts for e in p.pending), *(e.job.id for p in parts for e in p.running)]
    known = snapshot.predictions
    return {
        "now_s": snapshot.now_s,
        "partitions": [partitions(part) for part in snapshot.partitions.values()],
        "predictions": [[job_id, predictions(known[job_id])] for job_id in jobs if job_id in known],
        "ended": value_to_json(snapshot.ended),
        "memory": value_to_json(dict(snapshot.memory)),
        "forecast": value_to_json(snapshot.arrivals),
        "fair_share": value_to_json(dict(snapshot.fair_share)),
        **({"trust": value_to_json(dict(snapshot.trust))} if snapshot.trust else {}),
        "predictor": context.predictor,
        "answers": [list(map(value_to_json, (a, b, said))) for (a, b), said in context.answers.items()],
    }


# -- reading ---------------------------------------------------------------------------------------------------


def read_record(path: Path) -> PlanRecord:
    """Read a record.

    Raises:
        StoreError: the file cannot be read, or is no record of this format."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        if data["format"] != _FORMAT:
            raise StoreError(f"{path}: a record of format {data['format']}, this version reads {_FORMAT}")
        own = data.get("own", {})
        for name in (data["policy"], *own.values()):
            import_policy(name)  # its classes may be in the record
        partitions = [_partition(part) for part in data["partitions"]]
        predictions = [value_from_json(item) for item in data["predictions"]]
        return PlanRecord(
            data["at_s"],
            data["code"],
            data["policy"],
            stored_policy(data["settings"], str(path)),
            tuple(_context(item, partitions, predictions) for item in data["contexts"]),
            data["context"],
            {name: text.encode() for name, text in data["plans"].items()},
            own,
        )
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: not a record of a plan ({error!r})") from None


def _partition(data: Mapping[str, Any]) -> Partition:
    pending: tuple[Pending, ...] = value_from_json(data["pending"])
    running: tuple[Running, ...] = value_from_json(data["running"])
    acting = data.get("acting", True)
    nodes, quotas = value_from_json(data["nodes"]), data.get("quotas", {})
    fitting = {asked: tuple(names) for asked, names in data.get("fitting", {}).items()}
    return Partition(data["name"], nodes, pending, running, data["profiling"], acting, quotas, fitting)


def _context(data: Mapping[str, Any], partitions: Sequence[Partition], predictions: Sequence[Prediction]) -> Context:
    snapshot = Snapshot(
        data["now_s"],
        {partitions[i].name: partitions[i] for i in data["partitions"]},
        value_from_json(data["ended"]),
        {job_id: predictions[i] for job_id, i in data["predictions"]},
        value_from_json(data["memory"]),
        _arrivals(value_from_json(data["forecast"])),
        value_from_json(data.get("fair_share", {"map": []})),
        value_from_json(data.get("trust", {"map": []})),
    )
    said = {(value_from_json(a), value_from_json(b)): value_from_json(answer) for a, b, answer in data["answers"]}
    return Context(snapshot, data["predictor"], said)


def _arrivals(found: ArrivalForecast | Mapping[str, float]) -> ArrivalForecast:
    """The forecast of a record; records of 0.6 and before hold the rates alone."""
    return found if isinstance(found, ArrivalForecast) else ArrivalForecast("", found)


# -- again -----------------------------------------------------------------------------------------------------


class RecordedPredictor:
    """Answers as the predictor of a context did; questions that were not asked then have no answer. ``unknown``
    counts these."""

    def __init__(self, context: Context) -> None:
        self.name = context.predictor
        self._answers = context.answers
        self.unknown = 0

    def pair_speed(self, a: Any, b: Any) -> PairSpeeds:
        """The answer of that time."""
        self.unknown += (a, b) not in self._answers
        return self._answers.get((a, b))

    def predict(self, job: Any, profile: Any, now_s: float) -> Prediction:  # noqa: ARG002 - the port's signature
        """Refuse: predictions of jobs are in the snapshot."""
        raise StoreError(f"job {job.id}: the policy asked for a prediction that is not in the snapshot")

    def learn(self, ended: Any) -> None:
        """Do nothing: it only remembers."""


def record_policy(record: PlanRecord, context: Context) -> tuple[Policy, RecordedPredictor]:
    """The policy that planned one of the record's contexts, and the predictor that it asks. It raises for no single
    partition.

    Raises:
        ConfigError: it is not known here."""
    predictor = RecordedPredictor(context)
    return isolated(make_policies(record.policy, record.own, record.settings, predictor)), predictor


def replan(record: PlanRecord) -> dict[str, bytes]:
    """The record's plan made anew, by partition: equal to ``record.plans`` if nothing that decides has changed.

    Raises:
        ConfigError: its policy is not known here."""
    found: dict[str, bytes] = {}
    for number, context in enumerate(record.contexts):
        host = PolicyHost(  # as in lucidd: partitions that could not be planned come out as they did there
            lambda heard: make_policies(record.policy, record.own, record.settings, heard),
            RecordedPredictor(context),
            forgot=lambda _memory, _error: None,
        )
        plan = host.plan(context.snapshot)
        for name, of in record.context.items():
            if of == number and name in plan.partitions:
                found[name] = plan_bytes(plan.partitions[name])
    return found


# -- a folder of them ------------------------------------------------------------------------------------------


class PlanRecorder:
    """A ``Recorder`` that keeps records in a folder: of cycles in which something was planned anew, at most one in
    ``every_s`` seconds, and all together at most ``most_mib``. Trouble with the disk is logged once, and never ends a
    cycle."""

    def __init__(
        self,
        folder: Path,
        policy: PolicyHost,
        settings: PolicySettings,
        every_s: float,
        most_mib: float,
    ) -> None:
        self._folder, self._policy, self._settings = folder, policy, settings
        self._every_s = every_s
        self._most = int(most_mib * _MIB)
        self._next_s = float("-inf")
        self._last: dict[str, PartitionPlan] = {}
        self._trouble = ""
        self._total = sum(path.stat().st_size for path in record_files(folder))

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:  # noqa: ARG002
        """Keep a record of this cycle, if one is due."""
        new = any(self._last.get(name) is not part for name, part in plan.partitions.items())
        if not new or plan.now_s < self._next_s:
            return
        began = time.perf_counter()
        try:
            self._write(plan)
            self._last, self._trouble = dict(plan.partitions), ""
        except (OSError, StoreError) as error:
            if str(error) != self._trouble:
                _LOG.warning("plan not recorded", extra={"facts": {"why": str(error)}})
            self._trouble = str(error)
        self._next_s = plan.now_s + max(self._every_s, _COST * (time.perf_counter() - began))

    def _write(self, plan: Plan) -> None:
        data = record_bytes(plan, self._policy.made_from(), self._policy.name, self._settings, self._policy.own_names)
        path = self._folder / f"{plan.now_s:017.3f}{_SUFFIX}"
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, mode=0o600)
        self._total += len(data)
        if self._total > self._most:
            sizes = [(old, old.stat().st_size) for old in record_files(self._folder)]  # others may have dropped some
            self._total = sum(size for _, size in sizes)
            for old, size in sizes[:-1]:
                if self._total <= self._most:
                    break
                old.unlink(missing_ok=True)
                self._total -= size


def record_files(folder: Path) -> list[Path]:
    """The records in a folder, oldest first."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def prune_records(folder: Path, before_s: float) -> int:
    """Drop records of plans made before then; returns how many went."""
    old = [path for path in record_files(folder) if float(path.name.removesuffix(_SUFFIX)) < before_s]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def records_folder(settings: Settings) -> Path:
    """The folder of lucidd's records of its plans."""
    return Path(settings.daemon.state_dir) / "plans"


def with_records(settings: Settings, policy: PolicyHost, rules: PolicySettings, recorder: Recorder) -> Recorder:
    """A recorder that also keeps records of the plans of ``policy``, where ``daemon.record_mib`` allows any.
    ``rules``: its settings."""
    daemon = settings.daemon
    if not daemon.record_mib:
        return recorder
    kept = PlanRecorder(records_folder(settings), policy, rules, EVERY_S, daemon.record_mib)
    return Recorders(recorder, kept)
