"""A model in a real worker, and a listener that remembers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edge_serve.backends.base import InstanceSpec, ModelSpec, Reply
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, Lease, Parameter
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.batch import Answers, encode_reply
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.link import ModelListener
from edge_serve.workers.front.workers import Hooks, OpenedModel, ProcessLimits, Workers
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.layout import TensorLayout

#: nothing here takes longer unless it is broken
PATIENCE = 20.0

#: the source of the backend
ECHO = Path(__file__).parents[1] / "backends/echo.py"

Result = TypeVar("Result")


class Recorder(ModelListener):
    """A listener: what happened, in order."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[tuple[str, int, Any]] = asyncio.Queue()

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        self._events.put_nowait(("reply", instance, reply))

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        for instance, error in lost.items():
            self._events.put_nowait(("lost", instance, error))

    def on_back(self, instance: int) -> None:
        self._events.put_nowait(("back", instance, None))

    def on_partial(
        self, instance: int, batch_id: int, index: int, reply: Reply | None, final: bool, lease: Lease | None
    ) -> None:
        self._events.put_nowait(("partial", instance, (batch_id, index, reply, final, lease)))

    async def next(self) -> tuple[str, int, Any]:
        """The next event."""
        return await asyncio.wait_for(self._events.get(), PATIENCE)

    async def reply(self, instance: int = 0) -> BatchReply:
        """The next event, which must be a reply of `instance`."""
        kind, where, reply = await self.next()
        assert (kind, where) == ("reply", instance), (kind, where, reply)
        assert isinstance(reply, BatchReply)
        return reply

    async def lost(self, instance: int = 0) -> EdgeServeError:
        """The next event, which must be the loss of `instance`."""
        kind, where, error = await self.next()
        assert (kind, where) == ("lost", instance), (kind, where, error)
        assert isinstance(error, EdgeServeError)
        return error

    async def back(self, instance: int = 0) -> None:
        """The next event, which must be the return of `instance`."""
        assert (await self.next())[:2] == ("back", instance)

    def idle(self) -> bool:
        """Nothing happened that was not asked for."""
        return self._events.empty()


def config(dims: int = 16, datatype: str = "TYPE_INT32", decoupled: bool = False, **parameters: str) -> dict[str, Any]:
    """Two tensors in, two out, batches of up to 8."""
    return {
        "name": "echo",
        "max_batch_size": 8,
        "input": [{"name": f"INPUT{i}", "data_type": datatype, "dims": [dims]} for i in range(2)],
        "output": [{"name": f"OUTPUT{i}", "data_type": datatype, "dims": [dims]} for i in range(2)],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def request(values: Any = range(16), deadline_ns: int = 0, **parameters: Parameter) -> InferRequest:
    """One row of INT32 values, and the same plus one."""
    row = np.asarray(values, dtype=np.int32).reshape(1, -1)
    inputs = [InferTensor(f"INPUT{i}", DataType.INT32, row.shape, (row + i).tobytes()) for i in range(2)]
    return InferRequest("echo", inputs=inputs, parameters=parameters, deadline_ns=deadline_ns)


def values(reply: Reply, output: int = 0) -> list[int]:
    """Elements of an output."""
    assert reply.error is None, reply.error
    elements: list[int] = reply.outputs[output].array().ravel().tolist()
    return elements


def reply_frame(layout: TensorLayout, batch_id: int, replies: Sequence[Reply], room: OutputRoom, **how: Any) -> bytes:
    """A REPLY frame as a worker writes it; `how` has `wanted`, and the marks."""
    answers = Answers(layout, room, len(replies))
    answers.add(replies, how.get("wanted") or [None] * len(replies))
    return encode_reply(answers, batch_id, how.get("marks", (1, 2, 3)), lambda: 4)


class Served:
    """An opened model with its surroundings."""

    def __init__(self, workers: Workers, model: OpenedModel, listener: Recorder, arena: Arena, budget: Budget) -> None:
        self.workers = workers
        self.model = model
        self.listener = listener
        self.arena = arena
        self.budget = budget
        self._batches = 0
        self._closed = False

    def send(self, *requests: InferRequest, instance: int = 0) -> int:
        """Execute a batch; its id."""
        self._batches += 1
        self.model.execute(instance, self._batches, requests)
        return self._batches

    async def close(self) -> None:
        """Close the model. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await self.model.close()

    async def ask(self, *requests: InferRequest, instance: int = 0) -> BatchReply:
        """Execute a batch and wait for its reply."""
        batch_id = self.send(*requests, instance=instance)
        reply = await self.listener.reply(instance)
        assert reply.batch_id == batch_id
        return reply


async def survives(served: Served) -> None:
    """The instance comes back and answers."""
    await served.listener.back()
    assert values((await served.ask(request())).replies[0]) == list(range(16))


def spec(directory: Path, model_config: dict[str, Any]) -> ModelSpec:
    """Version 1 of a model in `directory`, with the backend `tests/backends/echo.py`."""
    (directory / "1").mkdir(exist_ok=True)
    shutil.copy(ECHO, directory / "backend.py")
    return ModelSpec("echo", 1, directory, directory / "1", model_config)


@asynccontextmanager
async def serving(
    directory: Path,
    model_config: dict[str, Any] | None = None,
    *,
    instances: int = 1,
    limits: ProcessLimits | None = None,
    hooks: Hooks | None = None,
    budget: int = 256 << 20,
    backend: str = "echo",
) -> AsyncIterator[Served]:
    """A model in a worker; at the end everything is closed, and nothing may be left."""
    workers = Workers(limits, hooks=hooks)
    account = Budget(budget)
    arena = Arena("echo", account)
    listener = Recorder()
    try:
        model = await workers.open(
            spec(directory, model_config or config()),
            backend,
            [InstanceSpec(f"echo_{i}") for i in range(instances)],
            listener,
            arena,
        )
        served = Served(workers, model, listener, arena, account)
        yield served
        await served.close()
        assert account.used == 0, "a slot was never given back"
        assert workers.workers() == 0
    finally:
        await workers.stop()
        arena.close()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` with a limit."""

    async def limited() -> Result:
        return await asyncio.wait_for(work, 2 * PATIENCE)

    return asyncio.run(limited())
