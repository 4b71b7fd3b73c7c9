"""Operations while the server starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

import pytest

from edge_serve.errors import Unavailable
from edge_serve.messages.metadata import IndexEntry
from edge_serve.models.control.poller import ModelReload
from edge_serve.service import Service


class Models:
    """A registry with one model in a state."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.scans = 0

    async def scan(self) -> dict[str, object]:
        """Count the reads of the disk."""
        self.scans += 1
        return {}

    def index(self, *, ready_only: bool, found: Mapping[str, object] | None = None) -> Iterator[IndexEntry]:
        """Yield the model."""
        yield IndexEntry("m", "1", self.state)


def _service(models: Models) -> Service:
    return Service(models)  # type: ignore[arg-type]  # the part that is asked


async def _held(service: Service) -> asyncio.Task[list[IndexEntry]]:
    task = asyncio.ensure_future(service.read_repository_index())
    await asyncio.sleep(0.2)
    assert not task.done()
    return task


def test_an_index_is_held_back_until_the_start_loads_or_ends() -> None:
    async def run(state: str, started: bool) -> list[IndexEntry]:
        models = Models("UNAVAILABLE")
        service = _service(models)
        task = await _held(service)
        assert models.scans == 0, "the disk is read for answers only"
        models.state, service.started = state, started
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(run("LOADING", False)) == [IndexEntry("m", "1", "LOADING")]
    assert asyncio.run(run("READY", True)) == [IndexEntry("m", "1", "READY")]


def test_a_stop_ends_the_wait() -> None:
    async def run() -> None:
        service = _service(Models("UNAVAILABLE"))
        task = await _held(service)
        service.stop()
        with pytest.raises(Unavailable, match="Server exiting"):
            await asyncio.wait_for(task, 10)

    asyncio.run(run())


class Reloading:
    """A poller whose reload does not end."""

    async def reload(self, names: Sequence[str], *, unload_first: bool) -> list[ModelReload]:
        """Wait until cancelled."""
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize("begun", [True, False])
def test_a_stop_cancels_a_reload(begun: bool) -> None:
    async def run() -> None:
        service = _service(Models("READY"))
        service.poller, service.started = Reloading(), True  # type: ignore[assignment]  # the part that is asked
        answer = asyncio.get_running_loop().create_future()
        service.reload([], False, answer.set_result)
        if begun:
            await asyncio.sleep(0)
        service.stop()
        error = await asyncio.wait_for(answer, 1)
        assert (type(error), str(error)) == (Unavailable, "Server exiting")

    asyncio.run(run())


def test_an_index_of_ready_models_is_refused_while_starting() -> None:
    with pytest.raises(Unavailable, match="Server not ready"):
        asyncio.run(_service(Models("LOADING")).read_repository_index(ready_only=True))


def test_statistics_of_a_version_without_a_model_are_those_of_all_models() -> None:
    """As in Triton, which ignores the version."""

    class Registry:
        """A registry with two models."""

        def served(self) -> list[SimpleNamespace]:
            """Return them."""
            return [SimpleNamespace(name=name, version="1", statistics=None) for name in ("a", "b")]

    service = Service(Registry())  # type: ignore[arg-type]  # the part that is asked
    service.started = True

    for version in ("", "3", "x"):
        assert [name for name, _, _ in service.model_statistics("", version)] == ["a", "b"]
