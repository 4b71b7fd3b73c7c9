"""A source with two models that have seen work, one of them with a cache, a label to escape and tags."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.extras.response_cache import ResponseCache
from edge_serve.models.run.statistics import new_statistics, record_batch, record_failure, record_success
from edge_serve.observe.metrics.page import Page
from edge_serve.observe.metrics.source import CustomFamily, HttpSeries, ModelSeries, Readiness, RunningBuild

MS = 1_000_000


@dataclass
class FakeVersion:
    """Implements metrics.source.LoadedVersion."""

    load_seconds: float = 0.0
    failed_self_tests: int = 0
    engine_build_seconds: float | None = None
    gpu_memory: Mapping[str, int] = field(default_factory=dict)


@dataclass
class FakeSource:
    """Implements metrics.source.StatisticsSource."""

    series: list[ModelSeries] = field(default_factory=list)
    families: list[CustomFamily] = field(default_factory=list)
    ready: list[Readiness] = field(default_factory=list)
    builds: list[RunningBuild] = field(default_factory=list)
    response_cache: ResponseCache | None = None

    def models(self) -> Iterable[ModelSeries]:
        return self.series

    def readiness(self) -> Iterable[Readiness]:
        return self.ready

    def engine_builds(self) -> Iterable[RunningBuild]:
        return self.builds

    def http(self) -> HttpSeries:
        return HttpSeries(connections=3, requests={200: 7, 404: 1})

    def tensor_memory(self) -> int:
        return 8192

    def pinned_memory(self) -> tuple[int, int]:
        return 1 << 28, 1 << 23

    def cache(self) -> ResponseCache | None:
        return self.response_cache

    def custom(self) -> Iterable[CustomFamily]:
        return self.families


@dataclass
class FakeClock:
    ns: int = 100 * MS

    def now_ns(self) -> int:
        return self.ns


def busy_statistics() -> ModelStatistics:
    """Two requests in one batch, 3 and 30 ms; one refused."""
    stats = new_statistics(summaries=True, histograms=True)
    for start in (0, 27 * MS):
        record_success(stats, 2, (start,), (28 * MS, 28 * MS + 1000, 29 * MS, 29 * MS + 500), 30 * MS)
    record_batch(stats, 4, (28 * MS, 28 * MS + 1000, 29 * MS, 29 * MS + 500), now_ms=1234)
    record_failure(stats, "REJECTED", 5 * MS)
    stats.pending = 2
    return stats


@pytest.fixture
def source() -> FakeSource:
    return FakeSource(
        [
            ModelSeries("plain", "1", {}, busy_statistics(), FakeVersion(0.25), worker_restarts=1, memory_bytes=4096),
            ModelSeries(
                'odd"\\\nname',
                "3",
                {"team": "blue"},
                busy_statistics(),
                FakeVersion(1.5, gpu_memory={"GPU-1": 700}),
                cache_enabled=True,
                gpu_uuid="GPU-1",
            ),
        ]
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def rendered(page: Page) -> bytes:
    """The whole page."""
    return b"".join(asyncio.run(page.render()))
