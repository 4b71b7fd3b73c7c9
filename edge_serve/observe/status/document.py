"""The status document: values of the server in, JSON-able values out. Pure. docs/status.md describes its members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import Any

from edge_serve.messages.line import failed_line, shortened
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import LATENCY_BUCKETS, ModelStatistics
from edge_serve.messages.status import (
    BUSY_SECONDS,
    ModelFacts,
    ProcessReading,
    ServerFacts,
    Temperature,
    WorkerFacts,
)
from edge_serve.observe.metrics.gpu import GpuReading
from edge_serve.observe.metrics.source import HttpSeries
from edge_serve.observe.metrics.updates import Updates
from edge_serve.observe.status.events import StatusEvent
from edge_serve.observe.status.probe import Readings
from edge_serve.records import frozen

#: raised when a member changes its meaning or is removed; new ones may be added at any time
SCHEMA = 2

Document = dict[str, Any]

#: reason of the failures that Triton counts as answers: the model itself put an error into the response
MODEL = "MODEL"
#: conditions of a model that keep the server from being ready
_TROUBLE = frozenset(("loading", "restarting", "unready", "failed"))
_SERVING = frozenset(("ready", "busy"))
#: members of `Updates` that the document has as they are
_OF_UPDATES = (
    "problem", "state", "agent", "last_check", "last_success", "error", "error_reason", "clock_unset", "paused",
    "rollbacks",
)  # fmt: skip
_WITH_FIGURES = frozenset(("ready", "busy", "unready", "restarting", "unloading"))


@frozen
class StatusFacts:
    """The values that the document is made from.

    Attributes:
        time_ms: milliseconds since the epoch; clock_ns: of the monotonic clock, for differences between two documents.
        models: rows of `model_rows`.
        totals: what all versions have counted since the start, those that were unloaded or replaced included.
        tensor_memory: (bytes in use, bytes there may be).
    """

    time_ms: int
    clock_ns: int
    server: ServerFacts
    models: Sequence[Document] = ()
    totals: ModelStatistics = field(default_factory=ModelStatistics)
    workers: Sequence[WorkerFacts] = ()
    readings: Readings = field(default_factory=Readings)
    http: HttpSeries = field(default_factory=HttpSeries)
    tensor_memory: tuple[int, int] = (0, 0)
    events: Iterable[StatusEvent] = ()
    errors: Iterable[StatusEvent] = ()


def build(facts: StatusFacts) -> Document:
    """Return the document."""
    processes = facts.readings.processes
    troubles = troubles_of(facts.server.required, facts.models)
    return {
        "schema": SCHEMA,
        "time_ms": facts.time_ms,
        "clock_ns": facts.clock_ns,
        "server": _server(facts.server, troubles, processes.get(facts.server.pid, ProcessReading())),
        "versions": dict(facts.readings.versions),
        "models": list(facts.models),
        "totals": _totals(facts.totals) | {"client_errors": facts.totals.client_errors},
        "duration_bounds_seconds": list(LATENCY_BUCKETS),
        "workers": [
            _worker(worker, processes.get(worker.pid, ProcessReading()), facts.readings.gpus)
            for worker in facts.workers
        ],
        "http": {
            "connections": facts.http.connections,
            "requests": {str(code): count for code, count in sorted(facts.http.requests.items())},
        },
        "tensor_memory": {"used_bytes": facts.tensor_memory[0], "limit_bytes": facts.tensor_memory[1]},
        "device": _device(facts.readings),
        "updates": _updates(facts.readings.updates),
        "system": asdict(facts.readings.system) if facts.readings.system is not None else None,
        "events": [_plain(event) for event in facts.events],
        "errors": [_plain(event) for event in facts.errors],
    }


def _server(server: ServerFacts, troubles: Troubles, reading: ProcessReading) -> Document:
    state, reason = state_of(server, troubles)
    return {
        "name": server.name,
        "host": server.host,
        "pid": server.pid,
        "state": state,
        "reason": reason,
        "ready": server.ready,
        "protocol": server.protocol,
        "uptime_seconds": round(server.uptime_seconds, 1),
        "waiting_for": list(troubles.waiting),
        "failed": list(troubles.failed),
        "safe_mode": server.safe_mode,
        "explicit": server.explicit,
        "rss_bytes": reading.rss_bytes,
        "pss_bytes": reading.pss_bytes,
        "doors": {name: list(addresses) for name, addresses in server.doors.items()},
    }


@frozen
class Troubles:
    """The models that keep the server from being ready.

    Attributes:
        waiting: names of those that may become ready by themselves, or are not there at all.
        failed: model that failed to load -> why.
        serving: how many models serve.
    """

    waiting: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    serving: int = 0


def troubles_of(required: Sequence[str], rows: Iterable[Document]) -> Troubles:
    """Find them in the rows of all versions; `required` as in `ServerFacts`."""
    conditions: dict[str, set[str]] = {name: set() for name in required}
    reasons: dict[str, tuple[str, str]] = {}
    for row in rows:
        name, condition = row["name"], row["condition"]
        conditions.setdefault(name, set()).add(condition)
        if condition == "failed":
            reasons.setdefault(name, (row["version"], row["reason"]))
    counted = [name for name in required or conditions if conditions[name] & _TROUBLE]
    absent = [name for name in required if not conditions[name] & (_SERVING | _TROUBLE)]
    failed = {}
    for name in counted:
        if name in reasons:
            version, reason = reasons[name]
            failed[name] = f"version {version}: {reason}" if conditions[name] & _SERVING else reason
    waiting = [name for name in (*counted, *absent) if name not in failed]
    return Troubles(waiting, failed, sum(not found.isdisjoint(_SERVING) for found in conditions.values()))


def state_of(server: ServerFacts, troubles: Troubles) -> tuple[str, str]:
    """Return the state of the whole server in a word, and why: starting, ready, not ready, safe mode, stopping."""
    if server.stopping:
        busy = f"waiting for {server.unanswered}" if server.unanswered else "requests that were accepted are answered"
        return "stopping", busy
    if server.safe_mode:
        return "safe mode", f"{server.safe_mode}; 'edge-serve safe-mode --leave' loads what is left out"
    failed = [failed_line(troubles.failed, server.required, troubles.serving)] if troubles.failed else []
    names = ", ".join(troubles.waiting)
    if not server.started:
        loading = [f"loading {names}"] if names else []
        return "starting", "; ".join([*failed, *loading]) or "looking for models"
    if server.ready:
        return "ready", ""
    if server.unreadable:
        return "not ready", shortened(server.unreadable)
    why = {name: f" ({shortened(reason)})" for name, reason in server.lacking}
    names = ", ".join(f"{name}{why.get(name, '')}" for name in troubles.waiting)
    waiting = [f"waiting for {names}"] if names else []
    return "not ready", "; ".join([*failed, *waiting]) or "a model that counts is not ready"


def model_rows(index: Iterable[IndexEntry], served: Iterable[ModelFacts]) -> Iterator[Document]:
    """Yield every version of the index, those that serve with their figures; versions in no index come last."""
    known = {model.key: model for model in served}
    for entry in index:
        yield _model(entry, known.pop((entry.namespace, entry.name, entry.version), None))
    for model in known.values():
        yield _model(IndexEntry(model.name, model.version, "READY", namespace=model.namespace), model)


def _model(entry: IndexEntry, model: ModelFacts | None) -> Document:
    condition, reason = condition_of(entry, model)
    row: Document = {
        "name": entry.name,
        "version": entry.version,
        "state": entry.state,
        "condition": condition,
        "reason": reason,
    }
    if entry.namespace:
        row["namespace"] = entry.namespace
    if model is not None and condition in _WITH_FIGURES:
        row |= {
            "backend": model.backend,
            "instances": model.instances,
            "max_batch_size": model.max_batch_size,
            "decoupled": model.decoupled,
            "load_seconds": round(model.load_seconds, 3),
            "revision": model.revision,
            "memory_bytes": model.memory_bytes,
            "workers": list(model.pids),
            "pending": model.statistics.pending,
            "in_flight": model.in_flight,
            "oldest_batch_seconds": _rounded(model.oldest_batch_seconds),
            "client_errors": model.statistics.client_errors,
            "last_inference_ms": model.statistics.last_inference_ms,
            "totals": _totals(model.statistics),
        }
        if model.gpu_memory_bytes:
            row["gpu_memory_bytes"] = model.gpu_memory_bytes
    return row


def condition_of(entry: IndexEntry, model: ModelFacts | None) -> tuple[str, str]:
    """Return the state of a version and the reason: ready, busy, unready, restarting, loading, failed, unloading,
    unloaded."""
    if entry.state == "READY":
        seconds = (model.oldest_batch_seconds or 0.0) if model is not None else 0.0
        if model is None or (model.healthy and seconds <= BUSY_SECONDS):
            return "ready", ""
        if model.healthy:
            return "busy", f"a batch has been running for {seconds:.0f} s; requests in flight: {model.in_flight}"
        if not model.complete:
            return "restarting", entry.reason or "its worker is started again"
        return "unready", model.refusal
    if entry.state in ("LOADING", "UNLOADING"):
        return entry.state.lower(), entry.reason
    if entry.dismissed:
        return "unloaded", f"it failed to load, and no longer counts: {entry.reason}"
    if not entry.state or entry.reason == "unloaded":
        return "unloaded", "" if entry.state else "never loaded"
    return "failed", entry.reason


def _totals(of: ModelStatistics) -> Document:
    """Return the counters since the version was loaded, durations in nanoseconds."""
    return {
        "requests": of.success.count,
        "failures": {**of.failures, MODEL: of.model_errors},
        "inferences": of.inference_count,
        "executions": of.execution_count,
        "request_ns": of.success.ns,
        "queue_ns": of.queue.ns,
        "compute_input_ns": of.compute_input.ns,
        "compute_infer_ns": of.compute_infer.ns,
        "compute_output_ns": of.compute_output.ns,
        "cache_hits": of.cache_hit.count,
        "cache_misses": of.cache_miss.count,
        "duration_counts": list(of.request_seconds.counts),
        "compute_counts": list(of.compute_seconds.counts),
    }


def _worker(worker: WorkerFacts, reading: ProcessReading, gpus: Iterable[GpuReading]) -> Document:
    on_gpus = [gpu.processes[worker.pid] for gpu in gpus if worker.pid in gpu.processes]
    return {
        "label": worker.label,
        "pid": worker.pid,
        "lost": worker.lost,
        "restarts": worker.restarts,
        "models": [f"{name}:{version}" for name, version in worker.models],
        **_plain(reading),
        **({"gpu_memory_bytes": sum(on_gpus)} if on_gpus else {}),
    }


def _device(readings: Readings) -> Document:
    return {
        "cores": readings.cores,
        "cpu_utilization": _rounded(readings.machine.cpu_utilization),
        "load": list(readings.load),
        "memory_total_bytes": readings.machine.memory_total,
        "memory_used_bytes": readings.machine.memory_used,
        "temperatures": [_plain(one) for one in readings.temperatures],
        "gpus": [_gpu(gpu) for gpu in readings.gpus],
    }


def _gpu(reading: GpuReading) -> Document:
    document = _plain(reading)
    del document["processes"]  # those of workers are shown there, and others do not concern a client
    document["throttling"] = None if reading.throttling is None else list(reading.throttling)
    return document


def _updates(updates: Updates | None) -> Document | None:
    """Return the status of updates; None if there is no agent on this device."""
    if updates is None:
        return None
    return {
        "age_seconds": round(updates.age_seconds, 1),
        **{name: getattr(updates, name) for name in _OF_UPDATES},
        "bundles": [asdict(one) for one in updates.bundles],
    }


def _plain(value: StatusEvent | Temperature | GpuReading | ProcessReading) -> Document:
    """Return the fields of a value, as `dataclasses.asdict`, which copies deeply and takes ten times as long."""
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
