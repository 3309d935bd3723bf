"""Any frozen value of Lucid as JSON and back, exactly, where the reader does not know its class.

Used for the memory of policies and for records of plans (``lucid.core.codec`` is for known classes): dataclasses,
named tuples, enums, arrays, and their containers. A tuple is a JSON list; a value for which JSON has no form is an
object with one key that names its kind. Fields with their default value are left out. Reading gives back equal values
of the same types, floats to the last bit."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import lru_cache
from importlib import import_module
from typing import Any

from msgspec import NODEFAULT, Struct, structs

from lucid.core.codec import has_fields
from lucid.errors import StoreError

_OWN = "lucid."
_WRITTEN_AS = {
    "lucid.core.reasons.queue:Victim": "lucid.core.reason.preemption:Victim",
    "lucid.core.reasons.queue:Claims": "lucid.core.reason.preemption:Claims",
    "lucid.core.reasons.queue:HeldBy": "lucid.core.reason.preemption:HeldBy",
    "lucid.core.snapshot:ArrivalForecast": "lucid.core.arrivals:ArrivalForecast",
    "lucid.core.gpu:GpuCard": "lucid.core.readings:GpuCard",
    "lucid.core.gpu:GpuProcess": "lucid.core.readings:GpuProcess",
    "lucid.core.gpu:GpuReading": "lucid.core.readings:GpuReading",
    "lucid.core.gpu:GpuLost": "lucid.core.readings:GpuLost",
    "lucid.core.gpu:GpuCondition": "lucid.core.readings:GpuCondition",
    "lucid.orchestrator.policies.muri.interleave:Overhead": "lucid.systems.muri.interleave:Overhead",
    "lucid.orchestrator.policies.rounds.goodput:Observations": "lucid.systems.pollux.fit:Observations",
    "lucid.orchestrator.policies.rounds.goodput:FitResult": "lucid.systems.pollux.fit:FitResult",
    "lucid.orchestrator.policies.rounds.marginal:Claim": "lucid.systems.optimus.baseline:Claim",
    "lucid.core.decision:EndProfiling": "lucid.core.decision:Release",
    "lucid.orchestrator.capacity.reservations:KeptNodes": "lucid.orchestrator.fences:KeptNodes",
    "lucid.orchestrator.policies.rounds.optimus:_Memory": "lucid.orchestrator.policies.optimus:_Memory",
    "lucid.orchestrator.policies.rounds.pollux:_Memory": "lucid.orchestrator.policies.pollux:_Memory",
    "lucid.orchestrator.policies.lucid.plan:LucidMemory": "lucid.orchestrator.policies.lucid_plan:LucidMemory",
    "lucid.orchestrator.policies.muri.seen:SlowGroup": "lucid.orchestrator.policies.muri_watch:SlowGroup",
    "lucid.orchestrator.policies.muri.seen:TurnsSeen": "lucid.orchestrator.policies.muri_watch:TurnsSeen",
    "lucid.orchestrator.policies.shadow:Kept": "lucid.orchestrator.policies.plain:Kept",
    "lucid.orchestrator.policies.shadow:Shadow": "lucid.orchestrator.policies.plain:Shadow",
}
"""Names in records of 0.1 of classes that have moved or were renamed since, so that every 0.x reads what another
wrote, also where two hosts of different versions share a store. A new class has its own name, and no row here."""
_WRITTEN_IN = {
    "lucid.core.reasons.queue": "lucid.core.reason.queue",
    "lucid.core.reasons.sharing": "lucid.core.reason.sharing",
    "lucid.core.reasons.profiling": "lucid.core.reason.profiling",
    "lucid.core.gpu": "lucid.core.gpu_health",
    "lucid.binder.candidates": "lucid.binder.calm",
    "lucid.binder.parting": "lucid.binder.unpack",
    "lucid.binder.rules": "lucid.binder.comparisons",
    "lucid.orchestrator.capacity.preemption": "lucid.orchestrator.capacity.victims",
    "lucid.orchestrator.capacity.reservations": "lucid.orchestrator.capacity.node_reservations",
    "lucid.orchestrator.forecast.ranges": "lucid.orchestrator.forecast.start_times",
    "lucid.orchestrator.policies.lucid.plan": "lucid.orchestrator.policies.lucid.before_queue",
    "lucid.orchestrator.policies.muri.grouping": "lucid.systems.muri.grouping",
    "lucid.orchestrator.policies.muri.interleave": "lucid.systems.muri.stages",
    "lucid.orchestrator.policies.muri.live": "lucid.orchestrator.policies.muri.live_groups",
    "lucid.orchestrator.policies.muri.placement": "lucid.orchestrator.policies.muri.group_placement",
    "lucid.orchestrator.policies.muri.policy": "lucid.orchestrator.policies.muri.muri_policy",
    "lucid.orchestrator.policies.rounds.data_sharing": "lucid.orchestrator.policies.elastic.data_sharing",
    "lucid.orchestrator.policies.rounds.expansion": "lucid.systems.elastic.allocation",
    "lucid.orchestrator.policies.rounds.genetic": "lucid.systems.pollux.search",
    "lucid.orchestrator.policies.rounds.goodput": "lucid.systems.pollux.goodput",
    "lucid.orchestrator.policies.rounds.marginal": "lucid.systems.optimus.allocate",
    "lucid.orchestrator.policies.rounds.optimus_models": "lucid.systems.optimus.fit",
    "lucid.orchestrator.policies.rounds.population": "lucid.systems.pollux.population",
    "lucid.orchestrator.policies.rounds.speedup": "lucid.systems.pollux.speedup",
    "lucid.orchestrator.policies.shadow": "lucid.orchestrator.policies.shadow.advance",
    "lucid.profiler.shape": "lucid.profiler.shares",
    "lucid.profiler.summary": "lucid.profiler.series",
}
"""Modules whose classes records know under another module's name; ``_WRITTEN_AS`` goes before this table."""
_READ_AS = {written: name for name, written in _WRITTEN_AS.items()}
_READ_IN = {written: name for name, written in _WRITTEN_IN.items()}
_PLAIN = (bool, int, float, str, type(None))


def value_to_json(value: Any) -> Any:
    """The value as ``json.dumps`` takes it.

    Raises: StoreError: a value of a kind that cannot be written."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return [value_to_json(item) for item in value]
    if has_fields(kind):
        found = {"is": _name(kind)}
        for name, default in _defaults(kind):
            item = getattr(value, name)
            if default is NODEFAULT or type(item) is not type(default) or item != default:
                found[name] = value_to_json(item)
        return found
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"row": _name(kind), "of": [value_to_json(item) for item in value]}
    if isinstance(value, Enum):
        return {"enum": _name(kind), "of": value.value}
    if isinstance(value, Mapping):
        return {"map": [[value_to_json(key), value_to_json(item)] for key, item in value.items()]}
    if kind is list:
        return {"list": [value_to_json(item) for item in value]}
    if kind in (set, frozenset):
        return {kind.__name__: sorted((value_to_json(item) for item in value), key=repr)}
    np = sys.modules.get("numpy")  # who never loaded it has no array
    if np is not None and isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "type": value.dtype.str, "shape": list(value.shape)}
    if np is not None and isinstance(value, np.generic):
        return {"number": value.item(), "type": value.dtype.str}
    raise StoreError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be recorded")


def value_from_json(data: Any) -> Any:
    """The value that ``value_to_json`` wrote.

    Raises: StoreError: it names a class that is not there (any more), or that is not one of values."""
    if type(data) in _PLAIN:
        return data
    if isinstance(data, list):
        return tuple(value_from_json(item) for item in data)
    try:
        return _object_from(data)
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise StoreError(f"a recorded value cannot be read ({error!r}): another version of Lucid wrote it") from None


def _object_from(data: dict[str, Any]) -> Any:
    if "is" in data:
        given = {name: value_from_json(item) for name, item in data.items() if name != "is"}
        return _class(data["is"])(**given)
    if "row" in data:
        return _class(data["row"])(*(value_from_json(item) for item in data["of"]))
    if "enum" in data:
        return _class(data["enum"])(data["of"])
    if "map" in data:
        return {value_from_json(key): value_from_json(item) for key, item in data["map"]}
    if "list" in data:
        return [value_from_json(item) for item in data["list"]]
    if "array" in data:
        import numpy as np  # most records hold no array, and commands that read one do not wait for numpy

        flat = np.frombuffer(base64.b64decode(data["array"]), dtype=np.dtype(data["type"]))
        return flat.reshape(data["shape"]).copy()
    if "number" in data:
        import numpy as np

        return np.dtype(data["type"]).type(data["number"])
    kind = set if "set" in data else frozenset
    return kind(value_from_json(item) for item in data[kind.__name__])


_fields: dict[Any, tuple[tuple[str, Any], ...]] = {}


def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    known = _fields.get(kind)
    if known is None:
        of = structs.fields(kind) if issubclass(kind, Struct) else fields(kind)
        known = _fields[kind] = tuple((f.name, NODEFAULT if f.default is MISSING else f.default) for f in of)
    return known


def _name(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    return _WRITTEN_AS.get(name) or f"{_WRITTEN_IN.get(kind.__module__, kind.__module__)}:{kind.__qualname__}"


@lru_cache(maxsize=256)
def _class(name: str) -> Any:
    """The class of a name: of a module of Lucid, or of one that is loaded already (a policy of another package)."""
    module, _, path = _READ_AS.get(name, name).partition(":")
    module = _READ_IN.get(module, module)
    if module.startswith(_OWN):
        import_module(module)
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not (has_fields(found) or issubclass(found, tuple | Enum)):
        raise TypeError(f"{name} is not a class of values that a record may hold")
    return found
