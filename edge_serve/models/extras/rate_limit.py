"""Delays batches until the rate limiter has resources for them (`--rate-limit=execution_count`).

`scheduling/rate_limiter.py` decides. A limited driver has a `LimitedModel` in place of its opened model. Other drivers,
which is all of them while the setting is off, do not use this file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from edge_serve.backends.base import Reply
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, Lease
from edge_serve.models.run.driver import Driver
from edge_serve.models.versions.instance_group import Placed
from edge_serve.records import slotted
from edge_serve.scheduling.rate_limiter import Claimant, RateLimiter, Resource
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.workers import ModelListener, OpenedModel


@slotted
class _Held:
    """A batch that waits.

    Attributes:
        waited: its resources were not available at once.
        cancelled: positions of requests whose clients have disconnected meanwhile.
    """

    batch_id: int
    requests: list[InferRequest]
    each: bool
    waited: bool = False
    cancelled: set[int] = field(default_factory=set)


class RateLimitGate:
    """Starts the batches of all models whose resources are available."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter = limiter
        self._models: dict[Claimant, tuple[LimitedModel, int]] = {}

    def admit(self, instances: Iterable[Placed]) -> LimitedModel:
        """Add the instances of a completed configuration; `close` of the result removes them.

        Raises:
            InvalidArgument: an instance could never run.
        """
        model = LimitedModel(self)
        model.add(dict(enumerate(instances)))
        return model

    def add(self, model: LimitedModel, claimants: Mapping[int, Claimant]) -> None:
        """Add instances of a model, all or none of them.

        Raises:
            InvalidArgument: as `admit`.
        """
        self.limiter.add(claimants.values())
        self._models.update({claimant: (model, instance) for instance, claimant in claimants.items()})

    def remove(self, claimants: Collection[Claimant]) -> None:
        """Remove instances."""
        self.limiter.remove(claimants)
        for claimant in claimants:
            self._models.pop(claimant, None)
        self.open()

    def open(self) -> None:
        """Start every batch that may run now."""
        while (claimant := self.limiter.next()) is not None:
            model, instance = self._models[claimant]
            model.start(instance)


class LimitedModel(ModelListener):
    """Stands between a driver and its opened model: is the model to the driver, and the driver to the workers."""

    def __init__(self, gate: RateLimitGate) -> None:
        self._gate = gate
        #: by instance
        self._claimants: dict[int, Claimant] = {}
        self._held: dict[int, _Held] = {}
        self._driver: Driver
        self._model: OpenedModel

    def add(self, instances: Mapping[int, Placed]) -> None:
        """Add instances, by number.

        Raises:
            InvalidArgument: an instance could never run; none was added.
        """
        claimants = {number: _claimant(one) for number, one in instances.items()}
        self._gate.add(self, claimants)
        self._claimants.update(claimants)

    def remove(self, instance: int) -> None:
        """Remove an instance."""
        claimant = self._claimants.pop(instance, None)
        if claimant is not None:
            self._gate.remove([claimant])

    def join(self, driver: Driver, model: OpenedModel) -> None:
        """Connect the driver and the model through this object."""
        self._driver, self._model = driver, model
        driver.model = self
        model.listener = self

    @property
    def driver(self) -> Driver:
        """The driver that is limited."""
        return self._driver

    @property
    def numbers(self) -> Collection[int]:
        """See `OpenedModel`."""
        return self._model.numbers

    @property
    def timeout(self) -> float:
        """See `OpenedModel`."""
        return self._model.timeout

    def seats(self, instance: int) -> int:
        """Return 1: an instance holds its resources for one batch at a time."""
        return 1

    def rank(self, instance: int) -> tuple[bool, int]:
        """Return the rank of an idle instance: the driver takes the one with the lowest."""
        return self._gate.limiter.rank(self._claimants[instance])

    def close(self) -> None:
        """Remove all instances: the model is closed. Batches that wait are no longer pending."""
        for instance in list(self._held):
            self._remove_held(instance)
        self._gate.remove(self._claimants.values())
        self._claimants.clear()

    # ---- for the driver -----------------------------------------------------------------------------------------

    def execute(self, instance: int, batch_id: int, requests: Sequence[InferRequest], each: bool = False) -> None:
        """Run a batch on an idle instance once its resources are available. Until then it grows."""
        held = self._held[instance] = _Held(batch_id, list(requests), each)
        self._driver.statistics.pending += len(requests)
        self._driver.held += len(requests)
        self._gate.limiter.ask(self._claimants[instance], len(requests) if each else 1)
        self._gate.open()
        held.waited = True

    def running_since_ns(self) -> int | None:
        """See `OpenedModel`. A batch that waits for resources does not run."""
        return self._model.running_since_ns()

    def cancel(self, instance: int, batch_id: int, index: int) -> None:
        """Tell the worker that a client has disconnected, now or once the worker has the batch."""
        held = self._held.get(instance)
        if held is not None and held.batch_id == batch_id:
            held.cancelled.add(index)
        else:
            self._model.cancel(instance, batch_id, index)

    def set_paused(self, instance: int, batch_id: int, index: int, paused: bool) -> None:
        """See `OpenedModel`."""
        self._model.set_paused(instance, batch_id, index, paused)

    def start(self, instance: int) -> None:
        """Send the waiting batch of an instance, because its resources are available."""
        held = self._held.get(instance)
        if held is None:
            return
        if held.waited:
            self._grow(held)
        self._remove_held(instance)
        self._model.execute(instance, held.batch_id, held.requests, held.each)
        for index in held.cancelled:
            self._model.cancel(instance, held.batch_id, index)

    def _grow(self, held: _Held) -> None:
        more = self._driver.grow(held.batch_id)
        self._driver.statistics.pending += len(more)
        self._driver.held += len(more)
        held.requests += more

    def _remove_held(self, instance: int) -> None:
        """Remove the batch that waits for an instance's resources, if there is one, from the counts too."""
        held = self._held.pop(instance, None)
        if held is not None:
            self._driver.statistics.pending -= len(held.requests)
            self._driver.held -= len(held.requests)

    # ---- for the workers ----------------------------------------------------------------------------------------

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """See `ModelListener`. The driver asks for the instance's next batch before other models get the released
        resources. Queued requests join the batches that wait before they form another one."""
        for held in self._held.values():
            self._grow(held)
        self._gate.limiter.release(self._claimants[instance])
        self._driver.on_reply(instance, reply)
        self._gate.open()

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """See `ModelListener`. A batch that waited for one of the instances fails with it."""
        for instance in lost:
            claimant = self._claimants.get(instance)
            if claimant is not None:  # else the model was closed meanwhile
                self._gate.limiter.release(claimant)
            self._remove_held(instance)
        self._driver.on_lost(lost)
        self._gate.open()

    def on_back(self, instance: int) -> None:
        """See `ModelListener`."""
        self._driver.on_back(instance)

    def on_placed(self, instance: int, batch_id: int, index: int, lease: Lease) -> bool:
        """See `ModelListener`."""
        return self._driver.on_placed(instance, batch_id, index, lease)

    def on_partial(
        self, instance: int, batch_id: int, index: int, reply: Reply | None, final: bool, lease: Lease | None
    ) -> None:
        """See `ModelListener`."""
        self._driver.on_partial(instance, batch_id, index, reply, final, lease)


def _claimant(instance: Placed) -> Claimant:
    """Return the claimant of an instance. A passive one never runs and needs no resources."""
    group, device = instance.group, instance.spec.device_id
    resources = [] if group.passive else group.rate_limiter.resources
    needs = {Resource(one.name, None if getattr(one, "global") else device): one.count for one in resources}
    return Claimant(needs, max(1, group.rate_limiter.priority))
