"""The source of a scrape: the values on the metrics page. A request pays nothing for it.

`StatisticsSource` has the functions, which `server.py` passes. A metric reads an attribute of a version through
`LoadedVersion`. `Served.series` in `models/versions/served.py` computes the other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Protocol

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.records import slotted


@slotted
class CustomSample:
    """One series of a Python model's MetricFamily; a histogram has bounds and counts per bucket (+Inf last)."""

    labels: Mapping[str, str]
    value: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@slotted
class CustomFamily:
    """kind: counter, gauge or histogram."""

    name: str
    description: str
    kind: str
    samples: list[CustomSample] = field(default_factory=list)


class LoadedVersion(Protocol):
    """The attributes of `models.versions.served.Served` that metrics read as they are."""

    @property
    def load_seconds(self) -> float: ...

    @property
    def failed_self_tests(self) -> int:
        """Requests of the server's own that the model failed, although it had answered them before."""

    @property
    def engine_build_seconds(self) -> float | None:
        """Seconds that the load built an engine, 0 if it was in the cache; None = the version has no such engine."""

    @property
    def gpu_memory(self) -> Mapping[str, int]:
        """GPU -> bytes of its memory that the load took, where that was measured."""


class CacheSeries(Protocol):
    """The attributes of `models.extras.response_cache.ResponseCache` that metrics read as they are."""

    size: int
    used: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int

    def __len__(self) -> int:
        """Return how many responses are stored."""


@slotted
class ModelSeries:
    """One served version.

    Attributes:
        tags: metric_tags of the configuration.
        memory_bytes: resident memory of its workers (its share where a worker is shared).
        in_flight: requests accepted and not answered.
        oldest_batch_seconds: age of the oldest batch that runs; 0 = none does.
        gpu_uuid: the GPU of its instances when it is one; namespace: with `--model-namespacing`.
    """

    name: str
    version: str
    tags: Mapping[str, str]
    statistics: ModelStatistics
    loaded: LoadedVersion
    cache_enabled: bool = False
    worker_restarts: int = 0
    memory_bytes: int = 0
    in_flight: int = 0
    oldest_batch_seconds: float = 0.0
    gpu_uuid: str = ""
    namespace: str | None = None


@slotted
class Readiness:
    """Whether a version can answer.

    Attributes:
        version: "" = no version of the model could be tried.
        namespace: with `--model-namespacing`.
    """

    name: str
    version: str
    ready: bool
    namespace: str | None = None


@slotted
class RunningBuild:
    """A TensorRT engine that a load is building.

    Attributes:
        seconds: since the load asked for it.
        namespace: with `--model-namespacing`.
    """

    name: str
    version: str
    seconds: float
    namespace: str | None = None


@slotted
class HttpSeries:
    """The doors: open connections, requests answered by status, and what was refused, by reason."""

    connections: int = 0
    requests: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


@slotted
class StatisticsSource:
    """The functions of the running server that return everything a scrape shows.

    Attributes:
        readiness: every version that serves or should serve: those that failed to load too, and not those that were
            unloaded.
        tensor_memory: bytes of request bodies and tensors in memory now.
        pinned_memory: bytes that workers may register with GPUs, and bytes that they have registered.
        cache: the response cache; None if the server has none.
    """

    models: Callable[[], Iterable[ModelSeries]]
    readiness: Callable[[], Iterable[Readiness]]
    engine_builds: Callable[[], Iterable[RunningBuild]]
    http: Callable[[], HttpSeries]
    tensor_memory: Callable[[], int]
    pinned_memory: Callable[[], tuple[int, int]]
    cache: Callable[[], CacheSeries | None]
    custom: Callable[[], Iterable[CustomFamily]]
