"""Collecting the document: one look at the machine for many readers, and none that holds them up for long."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from edge_serve.aio.offload import Threads
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.status import ModelFacts, WorkerFacts
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.repository.repository import FoundModel
from edge_serve.observe.metrics.source import HttpSeries
from edge_serve.observe.status import collect
from edge_serve.observe.status.collect import FRESH_NS, Collector, StatusSources, with_draining
from edge_serve.observe.status.probe import Readings
from edge_serve.service import ServiceOptions
from tests.stories import played


class FakeClock:
    """Stands still until told."""

    now = 1_000_000_000_000

    def now_ns(self) -> int:
        return self.now


class FakeProbe:
    """Looks when it is let; `held` until then."""

    def __init__(self) -> None:
        self.looks: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def read(self, pids: Any) -> Readings:
        self.looks.append(list(pids))
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return Readings(cores=len(self.looks))


class FakeRegistry:
    """One model that lies on disk."""

    found: list[Any]

    def __init__(self) -> None:
        self.found = []
        self.load_history = LoadHistory()

    def index(self, *, ready_only: bool, found: dict[str, FoundModel] | None, why: bool = False) -> list[IndexEntry]:
        self.found.append(found)
        return [IndexEntry("m")]

    def served(self) -> list[Any]:
        return []

    each_served = served

    @property
    def unloading(self) -> FakeRegistry:
        return self

    versions: tuple[Any, ...] = ()

    def counters(self, serving: Any) -> list[ModelStatistics]:
        used = ModelStatistics(client_errors=2)
        used.success.add(1000)
        return [ModelStatistics(), used, ModelStatistics(), used]

    def unready_required(self) -> list[Any]:
        return []


class FakeService:
    """Ready."""

    options = ServiceOptions("cart")
    started, stopping = True, False

    def ready(self) -> bool:
        return True


class FakeSource:
    """No requests."""

    def http(self) -> HttpSeries:
        return HttpSeries(1)

    def tensor_memory(self) -> int:
        return 5


class Scene:
    """A collector among fakes."""

    def __init__(self) -> None:
        self.clock, self.probe, self.registry = FakeClock(), FakeProbe(), FakeRegistry()
        self.error: Exception | None = None
        sources = StatusSources(
            service=FakeService(),  # type: ignore[arg-type]  # the part that is asked
            registry=self.registry,  # type: ignore[arg-type]
            statistics=FakeSource(),  # type: ignore[arg-type]
            workers=self.workers,
            doors={"HTTP": ["here"]},
            memory_limit=100,
            safe_mode=lambda: "det crashed",
        )
        self.collector = Collector(sources, self.probe, self.clock)  # type: ignore[arg-type]

    def workers(self) -> list[WorkerFacts]:
        if self.error is not None:
            raise self.error
        return [WorkerFacts("w", 77)]

    async def ask(self) -> dict[str, Any] | EdgeServeError:
        done: asyncio.Future[dict[str, Any] | EdgeServeError] = asyncio.get_running_loop().create_future()
        self.collector.read(done.set_result)
        return await asyncio.wait_for(done, 20)

    async def read(self) -> dict[str, Any]:
        document = await self.ask()
        assert isinstance(document, dict)
        return document


@played
async def test_a_document_contains_the_state_of_each_component() -> None:
    scene = Scene()
    document = await scene.read()

    assert document["server"]["name"] == "cart"
    assert document["server"]["safe_mode"] == "det crashed"
    assert document["server"]["state"] == "safe mode"
    assert document["server"]["doors"] == {"HTTP": ["here"]}
    assert document["models"][0]["name"] == "m"
    assert (document["totals"]["requests"], document["totals"]["client_errors"]) == (2, 4)
    assert document["tensor_memory"] == {"used_bytes": 5, "limit_bytes": 100}
    assert scene.probe.looks[0][1] == 77


def test_requests_of_a_replaced_load_are_counted_with_its_successor() -> None:
    def one(version: str, in_flight: int, oldest: float | None) -> ModelFacts:
        statistics = ModelStatistics()
        return ModelFacts("m", version, "python", statistics, 0, 0, in_flight=in_flight, oldest_batch_seconds=oldest)

    serving = [one("1", 2, None), one("2", 3, 0.5)]
    found = with_draining(serving, [one("1", 1, 7.0), one("2", 1, None), one("3", 4, 9.0), one("3", 1, 8.0)])

    assert [(some.version, some.in_flight, some.oldest_batch_seconds) for some in found] == [
        ("1", 3, 7.0),
        ("2", 4, 0.5),
        ("3", 5, 9.0),
    ]


@played
async def test_readers_within_a_moment_share_one_reading() -> None:
    scene = Scene()
    first = await asyncio.gather(scene.read(), scene.read())
    scene.clock.now += FRESH_NS - 1
    second = await scene.read()
    assert len(scene.probe.looks) == 1
    assert [document["device"]["cores"] for document in (*first, second)] == [1, 1, 1]

    scene.clock.now += 1
    assert (await scene.read())["device"]["cores"] == 2


@played
async def test_a_look_that_hangs_delays_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collect, "PATIENCE_SECONDS", 0.05)
    scene = Scene()
    scene.probe.go.clear()
    documents = await asyncio.gather(scene.read(), scene.read())
    assert [document["device"]["cores"] for document in documents] == [0, 0]
    assert (await scene.read())["device"]["cores"] == 0
    assert len(scene.probe.looks) == 1

    scene.probe.go.set()
    while (await scene.read())["device"]["cores"] == 0:
        await asyncio.sleep(0.01)
    assert "takes longer than 0.05 s" in caplog.text


@played
async def test_a_look_that_fails_hides_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.probe.error = OSError("no /proc")
    document = await scene.read()

    assert document["server"]["name"] == "cart"
    assert document["device"]["cores"] == 0
    assert "the figures of the machine could not be read" in caplog.text


@played
async def test_each_reader_is_refused_when_the_document_fails(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.error = ValueError("a bug")
    for found in await asyncio.gather(scene.ask(), scene.ask()):
        assert isinstance(found, Internal)
    assert "the status document could not be collected" in caplog.text
    scene.error = None
    assert (await scene.read())["server"]["name"] == "cart"


@played
async def test_after_a_look_without_a_thread_the_next_reader_looks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    scene = Scene()
    monkeypatch.setattr("edge_serve.aio.offload._threads", Threads("test", 1))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert (await scene.read())["device"]["cores"] == 0
    assert (await scene.read())["device"]["cores"] == 1
    assert caplog.messages == ["the figures of the machine could not be read"]


@played
async def test_the_loop_does_not_read_the_repository_again() -> None:
    scene = Scene()
    await scene.read()
    assert scene.registry.found == [None], "this probe could not read it, which is not an empty one"
