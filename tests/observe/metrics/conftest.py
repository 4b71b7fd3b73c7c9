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
from edge_serve.observe.metrics.source import (
    CustomFamily,
    HttpSeries,
    ModelSeries,
    Readiness,
    RunningBuild,
    StatisticsSource,
)

MS = 1_000_000


@dataclass
class FakeVersion:
    """Implements metrics.source.LoadedVersion."""

    load_seconds: float = 0.0
    failed_self_tests: int = 0
    engine_build_seconds: float | None = None
    gpu_memory: Mapping[str, int] = field(default_factory=dict)


class FakeSource(StatisticsSource):
    """A source whose values are those of its attributes."""

    def __init__(
        self,
        series: Iterable[ModelSeries] = (),
        families: Iterable[CustomFamily] = (),
        response_cache: ResponseCache | None = None,
    ) -> None:
        self.series = list(series)
        self.families = list(families)
        self.ready: list[Readiness] = []
        self.builds: list[RunningBuild] = []
        super().__init__(
            models=lambda: self.series,
            readiness=lambda: self.ready,
            engine_builds=lambda: self.builds,
            http=lambda: HttpSeries(connections=3, requests={200: 7, 404: 1}),
            tensor_memory=lambda: 8192,
            pinned_memory=lambda: (1 << 28, 1 << 23),
            cache=lambda: response_cache,
            custom=lambda: self.families,
        )


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
