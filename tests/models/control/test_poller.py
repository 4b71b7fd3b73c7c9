"""Looks at the repositories and what follows from them, with a registry that only remembers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from edge_serve.models.control.poller import Poller
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.repository.repository import Repository
from tests.models.control.test_polling import model


class FakeRegistry:
    """Remembers what it was told; `told` is set each time."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.told = asyncio.Event()
        self.error: Exception | None = None
        self.load_history = LoadHistory()

    def knows(self, name: str) -> bool:
        return name != "stranger"

    @contextlib.contextmanager
    def unloading_first(self, names: Iterable[str]) -> Iterator[None]:
        yield

    def find_rebound(self) -> list[str]:
        return []

    async def load_all(self, names: Iterable[str], *, own_worker: bool) -> list[str]:
        assert own_worker
        self._tell("load", *names)
        if self.error is not None:
            raise self.error
        return []

    async def unload(self, name: str) -> None:
        self._tell("unload", name)

    def _tell(self, *call: str) -> None:
        self.calls.append(call)
        self.told.set()

    async def next(self) -> tuple[str, ...]:
        await asyncio.wait_for(self.told.wait(), 10)
        self.told.clear()
        return self.calls[-1]


def poller(registry: FakeRegistry, root: Path, interval: float | None = 0.01) -> Poller:
    return Poller(Repository([root]), cast(Registry, registry), interval)


def test_changes_are_followed_while_it_runs(tmp_path: Path) -> None:
    async def story() -> None:
        model(tmp_path, "a", 1)
        registry = FakeRegistry()
        subject = poller(registry, tmp_path)
        await subject.begin()
        running = asyncio.create_task(subject.run())

        model(tmp_path, "b", 1)
        assert await registry.next() == ("load", "b")
        shutil.rmtree(tmp_path / "b")
        while registry.calls[-1] != ("unload", "b"):
            await registry.next()
        running.cancel()

    asyncio.run(story())


def test_a_model_that_was_never_loaded_is_not_unloaded(tmp_path: Path) -> None:
    async def story() -> None:
        model(tmp_path, "stranger", 1)
        registry = FakeRegistry()
        subject = poller(registry, tmp_path)
        await subject.begin()
        running = asyncio.create_task(subject.run())

        shutil.rmtree(tmp_path / "stranger")
        model(tmp_path, "b", 1)
        await registry.next()
        running.cancel()

        assert registry.calls == [("load", "b")]

    asyncio.run(story())


def test_a_repository_that_vanishes_for_a_while_unloads_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        root = tmp_path / "models"
        model(root, "a", 1)
        registry = FakeRegistry()
        subject = poller(registry, root)
        await subject.begin()
        running = asyncio.create_task(subject.run())

        root.rename(tmp_path / "away")
        while "cannot be followed" not in caplog.text:
            await asyncio.sleep(0.005)
        (tmp_path / "away").rename(root)
        model(root, "b", 1)
        assert await registry.next() == ("load", "b")
        running.cancel()
        assert registry.calls == [("load", "b")]
        assert caplog.text.count("cannot be followed") == 1

    asyncio.run(story())


def test_polling_goes_on_after_a_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        registry = FakeRegistry()
        registry.error = RuntimeError("a fault of ours")
        subject = poller(registry, tmp_path)
        await subject.begin()
        running = asyncio.create_task(subject.run())

        for name in ("a", "b"):
            model(tmp_path, name, 1)
            assert await registry.next() == ("load", name)
        running.cancel()

    asyncio.run(story())
    assert "a fault of ours" in caplog.text


def test_without_an_interval_it_looks_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_serve.models.control.poller.SETTLE_WHEN_ASKED", 0.02)

    async def story() -> None:
        registry = FakeRegistry()
        subject = poller(registry, tmp_path, None)
        await subject.begin()
        running = asyncio.create_task(subject.run())
        model(tmp_path, "a", 1)
        await asyncio.sleep(0.05)
        assert registry.calls == []

        subject.ask()
        assert await registry.next() == ("load", "a")
        running.cancel()

    asyncio.run(story())
