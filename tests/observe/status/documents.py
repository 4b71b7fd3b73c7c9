"""Documents for tests, made from facts as the server makes them."""

from __future__ import annotations

from typing import Any

from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.status import ModelFacts, ProcessReading, ServerFacts, Temperature, WorkerFacts
from edge_serve.models.run.statistics import record_failure, record_success
from edge_serve.models.versions.lineage import add_up
from edge_serve.observe.metrics.gpu import GpuReading
from edge_serve.observe.metrics.machine import MachineReading
from edge_serve.observe.metrics.source import HttpSeries
from edge_serve.observe.status.document import StatusFacts, build, model_rows
from edge_serve.observe.status.events import StatusEvent
from edge_serve.observe.status.probe import Readings

MS = 1_000_000


def server(**changes: Any) -> ServerFacts:
    """A server that is ready."""
    values: dict[str, Any] = {
        "name": "triton", "started": True, "stopping": False, "ready": True, "uptime_seconds": 3725.0, "pid": 1,
        "host": "cart-7", "protocol": "2.51.0", "doors": {"HTTP": ["127.0.0.1:8000"]},
    }  # fmt: skip
    return ServerFacts(**{**values, **changes})


def served(name: str = "det", version: str = "1", **changes: Any) -> ModelFacts:
    """A version that serves; 8 requests of 2 ms, 2 of 40 ms, 1 failure."""
    stats = ModelStatistics()
    for _ in range(8):
        record_success(stats, 1, (0,), (MS, MS, 2 * MS, 2 * MS), 2 * MS)
    for _ in range(2):
        record_success(stats, 1, (0,), (MS, MS, 2 * MS, 2 * MS), 40 * MS)
    record_failure(stats, "BACKEND", MS)
    stats.pending = 3
    values: dict[str, Any] = {
        "backend": "onnxruntime", "statistics": stats, "load_seconds": 0.5, "memory_bytes": 64 << 20, "pids": (20,),
        "instances": 2, "max_batch_size": 8, "in_flight": 4,
    }  # fmt: skip
    return ModelFacts(name, version, **{**values, **changes})


def facts(**changes: Any) -> StatusFacts:
    """One model that serves in one worker."""
    readings = Readings(
        MachineReading(0.25, 8 << 30, 2 << 30),
        4,
        (1.5, 1.0, 0.5),
        (Temperature("cpu", 48.5),),
        (GpuReading("GPU-1", 0.5, 4 << 30, 1 << 30, 2 << 30, 12.5, temperature=51.0, processes={20: 300 << 20, 7: 1}),),
        {1: ProcessReading(60 << 20, 40 << 20, 3725.0), 20: ProcessReading(90 << 20, 70 << 20, 60.0)},
        {},
        {"edge-serve": "1.2.3", "python": "3.11.7"},
    )
    values: dict[str, Any] = {
        "server": server(),
        "index": [IndexEntry("det", "1", "READY")],
        "models": [served()],
        "workers": [WorkerFacts("onnxruntime", 20, 2, (("det", "1"),))],
        "readings": readings,
        "http": HttpSeries(5, {200: 10, 404: 1}),
        "tensor_memory": (1 << 20, 1 << 30),
        "events": [StatusEvent(1_700_000_000_000, "info", "turnover", "model det is ready", "det", "1")],
        "errors": [StatusEvent(1_700_000_000_000, "error", "worker", "it fell over", count=3)],
    }
    values |= changes
    index, models = values.pop("index"), values["models"]
    values["models"] = list(model_rows(index, models))
    values.setdefault("totals", add_up([ModelStatistics(), *(model.statistics for model in models)]))
    return StatusFacts(1_700_000_000_000, 50_000_000_000, **values)


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of `facts`."""
    return build(facts(**changes))
