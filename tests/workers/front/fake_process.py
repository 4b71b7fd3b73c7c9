"""Models in a worker whose processes answer as a test asks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.errors import Internal
from edge_serve.workers.front import worker as worker_module
from edge_serve.workers.front.process import ProcessLimits, ProcessLost
from edge_serve.workers.front.workers import Hooks, OpenedModel, Workers
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.memory.arena_exports import ArenaExports
from tests.workers.harness import Recorder, config


class FakeProcess:
    """The part of `Process` that a worker uses.

    Attributes:
        started: set = it has said hello.
        hangs: the models that it does not open.
        overdue: those among them whose limit passes again and again.
        stuck: it closes no model in time.
        asked: the questions that it got, as kind and content.
        descriptors: those that came with the questions, duplicated as the kernel does.
    """

    def __init__(self, number: int, started: bool, hangs: set[str], overdue: set[str]) -> None:
        self.pid = number
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.exports = ArenaExports(self.send)
        self.started = asyncio.Event()
        if started:
            self.started.set()
        self.hangs = hangs
        self.overdue = overdue
        self.stuck = False
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.descriptors: list[int] = []

    async def load(
        self,
        kind: int,
        question: dict[str, Any],
        name: str,
        find_fds: Callable[[], Sequence[int]],
        goes_on: Callable[[str], bool],
    ) -> dict[str, Any]:
        """Open a model."""
        await self._outlive(self.started.wait())
        self.descriptors += map(os.dup, find_fds())
        self.asked.append((kind, question))
        while name in self.hangs:
            await self._outlive(asyncio.sleep(0.001))
            if name in self.overdue and not goes_on(reason := f"model '{name}' did not load within 1 s"):
                self.kill(f"was killed: {reason}")
                raise Internal(reason)
        return {}

    async def _outlive(self, waiting: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(waiting)
        first: list[asyncio.Future[Any]] = [task, self.exited]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        if self.exited.done():
            raise Internal(self.exited.result())

    async def ask(self, kind: int, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Close a model, or one of its instances."""
        if self.exited.done():
            raise ProcessLost(self.exited.result())
        self.asked.append((kind, question))
        if self.stuck:
            raise asyncio.TimeoutError
        return {}

    def of_kind(self, kind: int) -> list[dict[str, Any]]:
        """Return the questions of this kind."""
        return [question for asked, question in self.asked if asked == kind]

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Discard a control frame."""

    def time(self) -> float:
        """Return the time of the loop."""
        return asyncio.get_running_loop().time()

    def loss(self, name: str, text: str) -> Internal:
        """Return the error of a model that was in the process."""
        return Internal(text)

    def kill(self, reason: str, grace: float = 0.0, guilty: str = "") -> None:
        """End: the front end learns that a little later."""
        asyncio.get_running_loop().call_soon(self._on_exit, reason)

    def _on_exit(self, reason: str) -> None:
        if not self.exited.done():
            self.exited.set_result(reason)
        while self.descriptors:
            os.close(self.descriptors.pop())

    def close(self) -> None:
        """End, as at the end of the control channel."""
        self.kill("ended")

    async def wait(self, timeout: float) -> None:
        """Wait for the end."""
        await self.exited


@dataclass
class FakeModel:
    """An opened model with its surroundings."""

    model: OpenedModel
    listener: Recorder
    arena: Arena

    async def close(self) -> None:
        """Close the model, and then its memory. A second call does nothing."""
        if self.arena.fd >= 0:
            await self.model.close()
            self.arena.close()


class Scene:
    """Models that share a worker.

    Attributes:
        processes: of the worker, in their order.
        started: the next processes say hello at once.
        hangs: the models that its processes do not open.
        overdue: those among them whose limit passes again and again.
    """

    def __init__(self, limits: ProcessLimits | None = None, hooks: Hooks | None = None) -> None:
        self.processes: list[FakeProcess] = []
        self.started = True
        self.hangs: set[str] = set()
        self.overdue: set[str] = set()
        self.models: list[FakeModel] = []
        self.workers = Workers(limits, hooks=hooks)

    def start_process(self, *_: object, **__: object) -> FakeProcess:
        """Start the next process."""
        self.processes.append(FakeProcess(len(self.processes) + 1, self.started, self.hangs, self.overdue))
        return self.processes[-1]

    async def open(self, name: str, instances: int = 1) -> FakeModel:
        """Open a model in the worker."""
        spec = ModelSpec(name, 1, Path(name), Path(name, "1"), config())
        made, arena = [InstanceSpec(f"{name}_{i}") for i in range(instances)], Arena(name, Budget(1 << 24))
        listener = Recorder()
        model = await self.workers.open(spec, "echo", made, listener, arena)
        self.models.append(FakeModel(model, listener, arena))
        return self.models[-1]


@asynccontextmanager
async def fake_processes(
    monkeypatch: pytest.MonkeyPatch, limits: ProcessLimits | None = None, hooks: Hooks | None = None
) -> AsyncIterator[Scene]:
    """Let workers start fake processes; at the end everything is closed."""
    scene = Scene(limits, hooks)
    monkeypatch.setattr(worker_module, "Process", scene.start_process)
    try:
        yield scene
    finally:
        for one in scene.models:
            await one.close()
        await scene.workers.stop()
