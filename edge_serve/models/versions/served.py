"""One version that is there: its completed configuration, its face, its driver and its memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from edge_serve.aio.tasks import start_task
from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.golden.reader import GoldenTest
from edge_serve.messages.infer import InferRequest, InferResponse, Room
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.repository.repository import namespace_of
from edge_serve.models.run.reshape import reshape_inputs, reshape_outputs
from edge_serve.models.run.ticket import OnResponse, Ticket
from edge_serve.models.versions.instance_group import Placed
from edge_serve.models.versions.lineage import Lineage
from edge_serve.observe.metrics.source import ModelSeries
from edge_serve.scheduling.keys import ShapeKey
from edge_serve.workers.front.pool import OpenedModel
from edge_serve.workers.memory.arena import Arena

log = logging.getLogger(__name__)

#: bodies below this ride in the message to the worker rather than in the arena
INLINE_BYTES = 32 * 1024

#: how long a model's own `is_ready` may take (TRITON.md 6.2)
HEALTH_SECONDS = 5.0

_SICK = "it fails on a request that it has answered before (--self-inference-interval-secs)"


class Runner(Protocol):
    """What executes a version's requests: a driver over workers (or, for an ensemble, over other models)."""

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket: ...

    def stop(self, on_idle: Callable[[], None]) -> None: ...

    def in_flight(self) -> int: ...

    def oldest_batch_seconds(self) -> float | None: ...


@dataclass(slots=True, eq=False)
class Served:
    """A loaded version.

    Attributes:
        identity: what the registry calls the model: its name, with namespaces after its repository.
        shape_key: requests with equal keys may share a batch.
        kept: the directory with the files of a load request, gone when the version is closed.
        cached: its answers are kept in the response cache.
        instances: by number, and what asks for each; of an ensemble none.
        lineage: what metrics add of the loads that this one replaced.
        on_close: called when the version is closed, to give back what it has of the whole server.
        directory: of the model's files.
        golden: its recorded answers; None = it has none.
        sick: it has answered a question of the server's own before and does not now (`self_inference`).
        sickness: why it is sick; "" = it failed.
        failed_questions: how often that happened.
    """

    name: str
    version: str
    config: ModelConfig
    signature: Signature
    runner: Runner
    statistics: ModelStatistics
    opened: OpenedModel | None
    arena: Arena | None
    load_seconds: float
    shape_key: ShapeKey
    kept: TemporaryDirectory[str] | None = None
    cached: bool = False
    on_close: tuple[Callable[[], None], ...] = ()
    identity: str = ""
    directory: Path = Path()
    golden: GoldenTest | None = None
    sick: bool = False
    sickness: str = ""
    failed_questions: int = 0
    instances: dict[int, Placed] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    _reshapes_inputs: bool = field(init=False)
    _reshapes_outputs: bool = field(init=False)
    #: it was replaced: it answers what it accepted and lets its sequences end
    leaving: bool = False
    #: it stands for a version that has gone before its successor is there: the model is not ready, its requests wait
    exchanging: bool = False
    #: another has its counters (`stand_in`)
    has_stand_in: bool = False
    _holds: int = 0
    _free: asyncio.Event | None = None
    #: `opened.restarts` when the model last said that it is not ready; -1 = it said that it is
    _refused_at: int = -1
    #: and why
    _refusal: str = ""
    #: asks the model whether it is ready
    _asking: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.identity = self.identity or self.name
        self._reshapes_inputs = any(spec.reshape is not None for spec in self.signature.inputs.values())
        self._reshapes_outputs = any(spec.reshape is not None for spec in self.signature.outputs.values())

    def submit(self, request: InferRequest, on_response: OnResponse) -> Ticket:
        """Queue a request that was validated against this version's signature."""
        self._adopt(request)
        key = self.shape_key(request)
        if self._reshapes_inputs:
            reshape_inputs(request, self.signature)
        if self._reshapes_outputs:
            on_response = self._reshaped(on_response)
        return self.runner.submit(request, request.rows, key, on_response)

    def lease(self, nbytes: int) -> Room | None:
        """Memory for a body, which the worker sees without a copy; None when the body is small or the arena is full."""
        if nbytes < INLINE_BYTES or self.arena is None:
            return None
        return self.arena.allocate(nbytes)

    @property
    def healthy(self) -> bool:
        """Every instance's worker is there, the model's own `is_ready` agreed when it was last asked, and it answers
        what it answered before."""
        opened = self.opened
        if self.leaving or self.exchanging or self.sick:
            return False
        return opened is None or (opened.complete and self._refused_at != opened.restarts)

    @property
    def holds(self) -> int:
        """Requests that are under way where the queue does not see them."""
        return self._holds

    @property
    def refusal(self) -> str:
        """Why it is not healthy although its workers are there."""
        return (self.sickness or _SICK) if self.sick else self._refusal

    def hold(self) -> None:
        """A request for this version is under way where its queue does not see it: the version must stay."""
        self._holds += 1

    def stand_in(self, runner: Runner) -> Served:
        """The same version without its model, which may go: `runner` takes its requests. Its counters go on."""
        other = replace(
            self, runner=runner, opened=None, arena=None, kept=None, exchanging=True, on_close=(), _holds=0, _free=None
        )
        self.has_stand_in = True
        return other

    def replace(self, before: Served) -> None:
        """Take the place of another load of this version: its metrics go on."""
        self.lineage = before.lineage
        self.lineage.add(before.statistics)

    def let_go(self) -> None:
        """The reverse of `hold`."""
        self._holds -= 1
        if not self._holds and self._free is not None:
            self._free.set()

    async def unheld(self) -> None:
        """Wait until nobody holds it."""
        while self._holds:
            self._free = asyncio.Event()
            await self._free.wait()

    def ask_health(self) -> None:
        """Start to ask the model whether it is ready, unless it has not answered the last time yet."""
        if self.opened is not None and (self._asking is None or self._asking.done()):
            self._asking = start_task(self.check_health(), f"health of {self.name}")

    async def check_health(self) -> None:
        """Ask every instance whether the model is ready. What a worker said dies with it: its successor is fresh."""
        opened = self.opened
        if opened is not None and opened.complete:
            restarts = opened.restarts
            refusal = await opened.refusal(HEALTH_SECONDS)
            if refusal and refusal != self._refusal and opened.complete:
                log.warning(
                    "model %s is not ready: %s", self.name, refusal, extra=model_fields(self.name, self.version)
                )
            self._refusal, self._refused_at = refusal, restarts if refusal else -1

    def series(self) -> ModelSeries:
        """What the metrics page shows."""
        opened = self.opened
        return ModelSeries(
            self.name,
            self.version,
            dict(self.config.metric_tags),
            self.lineage.total(self.statistics),
            self.load_seconds,
            cache_enabled=self.cached,
            decoupled=self.signature.decoupled,
            worker_restarts=opened.restarts if opened else 0,
            memory_bytes=opened.memory_bytes() if opened else 0,
            failed_questions=self.failed_questions,
            in_flight=self.runner.in_flight(),
            oldest_batch_seconds=self.runner.oldest_batch_seconds() or 0.0,
            namespace=namespace_of(self.identity) or None,
        )

    def _adopt(self, request: InferRequest) -> None:
        """A body received for a version that was swapped meanwhile lies in another arena: send it as plain bytes."""
        if request.lease is not None and request.lease.arena is not self.arena:
            for tensor in request.inputs:
                tensor.offset = -1

    def _reshaped(self, on_response: OnResponse) -> OnResponse:
        def deliver(response: InferResponse) -> None:
            reshape_outputs(response, self.signature)
            on_response(response)

        return deliver
