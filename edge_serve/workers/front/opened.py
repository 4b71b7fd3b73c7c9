"""An opened model as its driver sees it: its instances, in one worker or in several, and how they come and go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from edge_serve.backends.base import InstanceSpec, ModelSpec, Reply
from edge_serve.errors import Internal
from edge_serve.messages.infer import InferRequest
from edge_serve.records import slotted
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.link import Link, ModelListener
from edge_serve.workers.front.placement import InstanceRecord, ModelPlacement
from edge_serve.workers.front.worker import Worker


@slotted
class PlacedInstances:
    """A worker, and the placement of a model in it."""

    worker: Worker
    placement: ModelPlacement


class InstanceOpener(Protocol):
    """The methods of `workers.Workers` that an opened model uses."""

    async def open_instances(
        self,
        spec: ModelSpec,
        backend: str,
        instances: Mapping[int, InstanceSpec],
        link: Link,
        beside: PlacedInstances | None = None,
        *,
        own_worker: bool = False,
    ) -> list[PlacedInstances]: ...

    async def release(self, worker: Worker) -> None: ...


class OpenedModel:
    """An opened model version. Its instances have numbers: 0, 1, ..., and higher ones if they were added later."""

    def __init__(self, opener: InstanceOpener, link: Link, placed: list[PlacedInstances]) -> None:
        self._opener = opener
        self._link = link
        self._placed = placed
        #: those that were not removed
        self._instances: dict[int, InstanceRecord] = {}
        self._next_number = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._adopt(placed)

    @property
    def numbers(self) -> Collection[int]:
        """The numbers of its instances."""
        return self._instances.keys()

    @property
    def listener(self) -> ModelListener:
        """The listener for replies and losses; may be replaced while no batch is in flight."""
        return self._link.listener

    @listener.setter
    def listener(self, listener: ModelListener) -> None:
        self._link.listener = listener

    @property
    def tests(self) -> bool:
        """Whether the golden test is running: a batch without progress then has the time limit of a load."""
        return self._link.tests

    @tests.setter
    def tests(self, tests: bool) -> None:
        self._link.tests = tests

    def next_numbers(self) -> Iterator[int]:
        """Return numbers that no instance has or had."""
        return itertools.count(self._next_number)

    async def add(self, spec: ModelSpec, instances: Mapping[int, InstanceSpec], listener: ModelListener) -> OpenedModel:
        """Open more instances, by number, beside those that serve. They are a model of their own until `join`.

        Args:
            spec: with the configuration that asks for them; the others have it when they are opened again.

        Raises:
            EdgeServeError: one of them does not open; nothing of them is left.
        """
        link = replace(self._link, listener=listener)
        first = self._placed[0]
        placed = await self._opener.open_instances(
            spec, first.placement.backend, instances, link, first, own_worker=True
        )
        return OpenedModel(self._opener, link, placed)

    def join(self, added: OpenedModel) -> None:
        """Make instances that `add` has opened instances of this model, with its listener."""
        added._link.listener = self._link.listener
        for one in self._placed:
            one.placement.spec = added._placed[0].placement.spec
        self._placed += added._placed
        self._adopt(added._placed)

    def _adopt(self, placed: list[PlacedInstances]) -> None:
        for one in placed:
            self._instances.update(one.placement.instances)
        self._next_number = max(self._next_number, *(number + 1 for number in self._instances))

    async def remove(self, instance: int) -> None:
        """Close one instance; its batch, if any, is not answered any more. No effect once the model is closed."""
        if self._closed or self._instances.pop(instance, None) is None:
            return
        one = next(one for one in self._placed if instance in one.placement.instances)
        if len(one.placement.serving()) > 1:
            await one.worker.close_instance(one.placement, instance)
            return
        self._placed.remove(one)
        for other in self._placed:
            if other.placement.beside is one.placement:
                other.placement.beside = None
        await one.worker.close(one.placement)
        await self._opener.release(one.worker)

    @property
    def complete(self) -> bool:
        """Whether every instance has a worker; one that is being restarted, or does not open again, has none."""
        return all(one.placement.is_open for one in self._placed)

    @property
    def timeout(self) -> float:
        """The model's `execution_timeout_ms` in seconds; 0 = none."""
        return self._link.timeout

    @property
    def restarts(self) -> int:
        """How often its workers were started again since the model was opened."""
        return sum([worker.restarts for worker in self._workers()])

    def trouble(self) -> str:
        """Return recent failures of the model's workers, and loads that are overdue there; "" = none."""
        found = dict.fromkeys(text for one in self._placed for text in (one.placement.trouble, one.worker.trouble()))
        return "; ".join(filter(None, found))

    def restart(self, reason: str) -> None:
        """Restart the model's workers. Other models in the same workers are restarted too."""
        for one in self._placed:
            for channel in one.placement.channels():
                channel.restart(reason)

    def memory_bytes(self) -> int:
        """Return the resident memory of its workers; its share of one that has other models."""
        return sum(worker.process.memory_bytes() // worker.shares() for worker in self._workers())

    def own_memory_bytes(self) -> int:
        """Return the resident memory of the workers that have no other model."""
        return sum(worker.process.memory_bytes() for worker in self._workers() if worker.shares() == 1)

    def pids(self) -> list[int]:
        """Return the process IDs of its workers, for logs and tests."""
        return [worker.process.pid for worker in self._workers()]

    def _workers(self) -> list[Worker]:
        if len(self._placed) == 1:
            return [self._placed[0].worker]
        return list(dict.fromkeys(one.worker for one in self._placed))

    def _channel_of(self, instance: int) -> Channel | None:
        one = self._instances.get(instance)
        return one.channel if one is not None else None

    def execute(self, instance: int, batch_id: int, requests: Sequence[InferRequest], each: bool = False) -> None:
        """Run a batch on an idle instance, or (`each`) its requests one after the other.

        Never blocks and never raises; the listener hears of it exactly once, after this has returned."""
        channel = self._channel_of(instance)
        if channel is None:
            self._loop.call_soon(self._refuse, instance, batch_id, len(requests))
        else:
            channel.execute(batch_id, requests, each)

    def _refuse(self, instance: int, batch_id: int, count: int) -> None:
        text = f"instance {instance} of model '{self._link.name}' has no worker now; it is being restarted, try again"
        error = Internal(text)
        if self._channel_of(instance) is None:
            self._link.listener.on_lost({instance: error})
        else:  # it came back meanwhile, and may have its next batch
            replies = [Reply(error=error) for _ in range(count)]
            self._link.listener.on_reply(instance, BatchReply(batch_id, 0, 0, 0, 0, replies, last=True))

    def seats(self, instance: int) -> int:
        """Return how many batches an instance takes at once: one that runs, and perhaps one that is next."""
        channel = self._channel_of(instance)
        return 1 if channel is None else channel.seats

    def running_since_ns(self) -> int | None:
        """Return the time at which the oldest batch without an answer was sent; None = no batch runs."""
        channels = [one.channel for one in self._instances.values()]
        times = [channel.running_since_ns() for channel in channels if channel is not None]
        return min((time for time in times if time is not None), default=None)

    def cancel(self, instance: int, batch_id: int, index: int) -> None:
        """Notify the worker that the client of a running request has disconnected. The batch is still answered."""
        channel = self._channel_of(instance)
        if channel is not None:
            channel.cancel(batch_id, index)

    def set_paused(self, instance: int, batch_id: int, index: int, paused: bool) -> None:
        """Pause or resume the stream of a decoupled request whose client reads too slowly.

        The caller must resume each stream that it paused, except where the worker has died.
        """
        channel = self._channel_of(instance)
        if channel is not None:
            channel.set_paused(batch_id, index, paused)

    async def refusal(self, timeout: float) -> str:
        """Return why an instance has no worker or says that it is not ready; "" = all are ready."""
        answers = await asyncio.gather(*(one.worker.refusal(one.placement, timeout) for one in self._placed))
        return next(filter(None, answers), "")

    async def close(self) -> None:
        """Finalize the model and give its memory back. Batches in flight are not answered any more."""
        self._closed = True
        await asyncio.gather(*(one.worker.close(one.placement) for one in self._placed))
        await asyncio.gather(*(self._opener.release(one.worker) for one in self._placed))
