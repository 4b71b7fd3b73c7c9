"""Collects the facts of the status document: the server's on the event loop, the machine's in a thread. Does nothing
between two requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import gathered, in_pieces, notify, start_task
from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.status import ModelFacts, ServerFacts, WorkerFacts
from edge_serve.models.control.registry import Registry
from edge_serve.models.repository.repository import namespace_of
from edge_serve.models.versions.lineage import add_up
from edge_serve.models.versions.served import Served
from edge_serve.models.versions.unloading_versions import join_names
from edge_serve.observe.metrics.source import StatisticsSource
from edge_serve.observe.status.document import Document, StatusFacts, build, model_rows
from edge_serve.observe.status.events import EventRing
from edge_serve.observe.status.probe import Probe, Readings
from edge_serve.records import slotted
from edge_serve.service import TRITON_VERSION, Service

log = logging.getLogger(__name__)

#: greatest age of the figures of the machine; several readers a second share one reading
FRESH_NS = 800_000_000
#: how long a reader waits for the machine's figures; a sensor or a disk that hangs must not hide the rest
PATIENCE_SECONDS = 2.0

Done = Callable[[Document | EdgeServeError], None]


@slotted
class StatusSources:
    """The parts of the server that the status document describes.

    Attributes:
        workers: every worker process, the codec's too.
        doors: name -> where it listens; filled when they open.
        memory_limit: of tensors, bytes.
        required: names of `--required-model`; none = all models count.
        safe_mode: why models were left out; "" = they were not.
    """

    service: Service
    registry: Registry
    statistics: StatisticsSource
    workers: Callable[[], list[WorkerFacts]]
    doors: Mapping[str, list[str]]
    memory_limit: int
    required: Sequence[str] = ()
    events: EventRing | None = None
    safe_mode: Callable[[], str] = lambda: ""


class Collector:
    """Reads the status document. `read` is a `Service.status_source`.

    Args:
        probe: reads the machine's figures, in a thread.
    """

    def __init__(self, sources: StatusSources, probe: Probe, clock: Clock | None = None) -> None:
        self._sources = sources
        self._probe = probe
        self._clock = clock or MonotonicClock()
        self._started_ns = self._clock.now_ns()
        self._readings = Readings()
        self._read_ns: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: list[Done] = []
        self._answering: asyncio.Task[None] | None = None

    def read(self, done: Done) -> None:
        """Call `done` with the document, as soon as the machine's figures are fresh or take too long.

        `done` gets `Internal` if the document cannot be collected.
        """
        self._waiting.append(done)
        if self._answering is None or self._answering.done():
            self._answering = start_task(self._answer(), "status document")

    async def _answer(self) -> None:
        while self._waiting:
            await self._refresh()
            waiting, self._waiting = self._waiting, []
            found = await self._collect()
            for done in waiting:
                notify(done, found)

    async def _collect(self) -> Document | Internal:
        try:
            return await self.document()
        except Exception:  # a bug must not leave the readers without an answer
            log.exception("the status document could not be collected")
            return Internal("the status document could not be collected; the server's log has the reason")

    async def _refresh(self) -> None:
        """Read the figures of the machine, unless they are fresh, or an earlier reading has not ended."""
        fresh = self._read_ns is not None and self._clock.now_ns() - self._read_ns < FRESH_NS
        if fresh or (self._reading is not None and not self._reading.done()):
            return
        self._reading = start_task(self._read_machine(), "figures of the machine")
        _, late = await asyncio.wait({self._reading}, timeout=PATIENCE_SECONDS)
        if late:
            text = "reading the machine's figures takes longer than %g s: the document has old ones"
            log.warning(text, PATIENCE_SECONDS)

    async def _read_machine(self) -> None:
        try:
            pids = [os.getpid(), *(worker.pid for worker in self._sources.workers())]
            self._readings = await offload(self._probe.read, pids)
            self._read_ns = self._clock.now_ns()
        except Exception:  # the rest of the document is worth having without it
            log.exception("the figures of the machine could not be read")

    async def document(self) -> Document:
        """Return the document with the newest figures of the machine. Facts of many models are gathered in pieces."""
        sources = self._sources
        counters = sources.registry.unloading.counters(sources.registry.served())
        await asyncio.sleep(0)
        serving = await gathered(map(model_facts, sources.registry.each_served()))
        models = with_draining(serving, map(model_facts, sources.registry.unloading.versions))
        await asyncio.sleep(0)
        index = await gathered(sources.registry.index(ready_only=False, found=self._readings.found))
        await asyncio.sleep(0)
        rows = await gathered(model_rows(index, models))
        workers = sources.workers()
        await asyncio.sleep(0)
        server = self._server()
        await asyncio.sleep(0)
        events, errors = sources.events.newest() if sources.events else ((), ())
        facts = StatusFacts(
            time_ms=round(time.time() * 1000),
            clock_ns=self._clock.now_ns(),
            server=server,
            models=rows,
            totals=await _sum(counters),
            workers=workers,
            readings=self._readings,
            http=sources.statistics.http(),
            tensor_memory=(sources.statistics.tensor_memory(), sources.memory_limit),
            events=events,
            errors=errors,
        )
        await asyncio.sleep(0)
        document = build(facts)
        await asyncio.sleep(0)  # the callers make JSON of it
        return document

    def _server(self) -> ServerFacts:
        service = self._sources.service
        return ServerFacts(
            name=service.options.server_id,
            started=service.started,
            stopping=service.stopping,
            ready=service.ready(),
            uptime_seconds=(self._clock.now_ns() - self._started_ns) / 1e9,
            pid=os.getpid(),
            host=socket.gethostname(),
            protocol=TRITON_VERSION,
            required=tuple(self._sources.required),
            lacking=tuple((one.name, one.reason or one.word) for one in self._sources.registry.unready_required()),
            safe_mode=self._sources.safe_mode(),
            unanswered=join_names(self._sources.registry.busy()) if service.stopping else "",
            unreadable=self._sources.registry.load_history.unreadable,
            explicit=service.options.explicit,
            doors=dict(self._sources.doors),
        )


def model_facts(served: Served) -> ModelFacts:
    """Collect the facts of a version that serves."""
    opened, signature = served.opened, served.signature
    return ModelFacts(
        name=served.name,
        version=served.version,
        backend=served.config.backend or signature.platform,
        statistics=served.statistics,
        load_seconds=served.load_seconds,
        memory_bytes=opened.memory_bytes() if opened else 0,
        pids=tuple(dict.fromkeys(opened.pids())) if opened else (),
        instances=len(opened.numbers) if opened else 0,
        max_batch_size=signature.max_batch_size,
        decoupled=signature.decoupled,
        complete=opened.complete if opened else True,
        healthy=served.healthy or served.swapping,
        in_flight=served.runner.in_flight(),
        oldest_batch_seconds=served.runner.oldest_batch_seconds(),
        refusal=served.health.reason,
        gpu_memory_bytes=sum(served.gpu_memory.values()),
        namespace=namespace_of(served.identity),
        revision=served.revision,
    )


def with_draining(serving: Iterable[ModelFacts], draining: Iterable[ModelFacts]) -> list[ModelFacts]:
    """Return the facts of versions that serve or drain. Two loads of the same version are one entry, whose requests in
    flight are added."""
    found = {one.key: one for one in serving}
    for one in draining:
        known = found.setdefault(one.key, one)
        if known is not one:
            ages = [age for age in (known.oldest_batch_seconds, one.oldest_batch_seconds) if age is not None]
            oldest = max(ages, default=None)
            found[one.key] = replace(known, in_flight=known.in_flight + one.in_flight, oldest_batch_seconds=oldest)
    return list(found.values())


async def _sum(counters: Iterable[ModelStatistics]) -> ModelStatistics:
    """Return their sum, made in pieces. Models that got no request yet cost nothing here."""
    used = (one for one in counters if one.success.count or one.fail.count or one.client_errors)
    total = ModelStatistics()
    async for sums in in_pieces(accumulate(used, lambda one, other: add_up([one, other]), initial=total)):
        total = sums[-1] if sums else total
    return total
