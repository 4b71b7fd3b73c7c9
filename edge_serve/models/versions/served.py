"""A loaded version: its configuration, signature, runner, and memory; and the table of versions for requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping
from contextlib import AsyncExitStack
from dataclasses import field, replace
from pathlib import Path
from typing import Protocol

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.engines.cache import EngineLease
from edge_serve.golden.reader import GoldenTest
from edge_serve.messages.infer import SEQUENCE_START, InferRequest, InferResponse, Room
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.messages.trace import Trace
from edge_serve.models.repository.override import KeptFiles
from edge_serve.models.repository.repository import namespace_of
from edge_serve.models.run.first_response import FirstResponseTimer
from edge_serve.models.run.reshape import reshape_inputs, reshape_outputs
from edge_serve.models.run.runner import OnResponse, Runner, Submitter, Ticket
from edge_serve.models.versions.health import VersionHealth
from edge_serve.models.versions.instance_group import Placed
from edge_serve.models.versions.lineage import Lineage
from edge_serve.observe.metrics.source import ModelSeries
from edge_serve.records import entity
from edge_serve.scheduling.keys import ShapeKey
from edge_serve.workers.front.workers import OpenedModel
from edge_serve.workers.memory.arena import Arena


class InstanceLimit(Protocol):
    """The rate limiter's entries of a version (`extras.rate_limit.LimitedModel`)."""

    def add(self, instances: Mapping[int, Placed]) -> None: ...
    def remove(self, instance: int) -> None: ...


_revisions = itertools.count(1)


@entity
class Served:
    """A loaded version.

    Attributes:
        identity: the model's key in the registry: its name, with namespaces after its repository.
        shape_key: requests with equal keys may share a batch; None = all may.
        kept: the files of a load request, released when the version is closed.
        limited: present if the rate limiter delays its batches.
        cache: the response cache before the runner, which sees no requests while the version is swapped, or leaves.
        instances: the instances by number; empty for an ensemble.
        first_responses: times its requests; None = no metric asks for that.
        lineage: the counters of the loads that this one replaced.
        on_close: releases the resources that the version holds.
        directory: the directory of the model's files.
        golden: its golden test; None = it has none.
        engine: the engine that its load built or found in the cache; None = its own files are served.
        references: requests that are under way, but not in the queue.
        gpu_uuid: the GPU that all instances are on; "" = the CPU, or several GPUs.
        gpu_memory: GPU -> bytes of its memory that the load took, where that was measured.
        health: its answers to the server's own questions.
        revision: differs after each load, and after each change of its instances.
    """

    name: str
    version: str
    config: ModelConfig
    signature: Signature
    runner: Runner
    statistics: ModelStatistics
    opened: OpenedModel | None = None
    arena: Arena | None = None
    load_seconds: float = 0.0
    shape_key: ShapeKey | None = None
    limited: InstanceLimit | None = None
    kept: KeptFiles | None = None
    cache: Submitter | None = None
    first_responses: FirstResponseTimer | None = None
    on_close: AsyncExitStack = field(default_factory=AsyncExitStack)
    identity: str = ""
    directory: Path = Path()
    golden: GoldenTest | None = None
    engine: EngineLease | None = None
    gpu_uuid: str = ""
    gpu_memory: Mapping[str, int] = field(default_factory=dict)
    health: VersionHealth = field(default_factory=VersionHealth)
    revision: int = field(default_factory=lambda: next(_revisions))
    instances: dict[int, Placed] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    _reshapes_inputs: bool = field(init=False)
    _reshapes_outputs: bool = field(init=False)
    #: it was replaced or unloaded, and drains
    leaving: bool = False
    #: it stands in for a version that was unloaded before its successor is loaded: not ready, and its requests wait
    swapping: bool = False
    #: the version that a stand-in stands in for, which drains and is then closed
    before: Served | None = None
    #: a stand-in has its counters (`stand_in`)
    has_stand_in: bool = False
    references: int = 0
    _free: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.identity = self.identity or self.name
        self._reshapes_inputs = any(spec.reshape is not None for spec in self.signature.inputs.values())
        self._reshapes_outputs = any(spec.reshape is not None for spec in self.signature.outputs.values())

    def change_instances(self, config: ModelConfig, instances: dict[int, Placed]) -> None:
        """Take over the instances that a changed configuration asks for."""
        self.config, self.instances, self.revision = config, instances, next(_revisions)

    def submit(self, request: InferRequest, on_response: OnResponse) -> Ticket:
        """Queue a request that was validated against this version's signature.

        While the version is swapped, the request stays as the client sent it: its successor may have other shapes.
        """
        if request.lease is not None and request.lease.arena is not self.arena:
            for tensor in request.inputs:  # the version was swapped while the body arrived: send it as plain bytes
                tensor.offset = -1
        if self.swapping:
            return self.runner.submit(request, request.rows, None, on_response)
        key = self.key_of(request)
        if self._reshapes_inputs:
            reshape_inputs(request, self.signature)
        if self._reshapes_outputs:
            on_response = self._reshaped(on_response)
        runner = self.runner if self.cache is None or self.leaving else self.cache
        if self.first_responses is not None:
            return self.first_responses.submit(runner, request, request.rows, key, on_response)
        return runner.submit(request, request.rows, key, on_response)

    def submit_part(self, request: InferRequest, on_response: OnResponse, trace: Trace) -> Ticket:
        """Submit a step of an ensemble, or a call of a model, and add it to the trace of the request that led to it."""
        part = trace.part(self.name, self.version, request)

        def deliver(response: InferResponse) -> None:
            part.answered(response)
            on_response(response)
            if response.final:
                part.release()

        return self.submit(request, deliver)

    def key_of(self, request: InferRequest) -> Hashable:
        """Return the shape key of a request; None if all requests may share a batch."""
        return self.shape_key(request) if self.shape_key is not None else None

    def lease(self, nbytes: int) -> Room | None:
        """Allocate memory for a body that the worker reads without a copy. None when the body is small or the arena is
        full."""
        if nbytes < INLINE_BYTES or self.arena is None:
            return None
        return self.arena.allocate(nbytes)

    @property
    def healthy(self) -> bool:
        """Whether every instance has a worker, the model reported ready, and the last self-test passed."""
        return not (self.leaving or self.swapping) and self.health.is_good(self.opened)

    def acquire(self) -> None:
        """Acquire a reference: a request for this version is under way, but not in its queue, and the version must stay
        loaded."""
        self.references += 1

    def stand_in(self, runner: Runner) -> Served:
        """Return a copy without the model, whose requests `runner` takes and whose counters continue. The model may be
        unloaded; its files stay, because it is loaded again if its successor cannot be."""
        other = replace(
            self,
            runner=runner,
            opened=None,
            arena=None,
            swapping=True,
            before=self,
            on_close=AsyncExitStack(),
            references=0,
            _free=None,
        )
        self.has_stand_in, self.kept = True, None
        return other

    def continue_counters(self, before: Served) -> None:
        """Add the counters of the load that this one replaces to those of this load."""
        self.lineage = before.lineage
        self.lineage.add(before.statistics)

    def release(self) -> None:
        """Release a reference."""
        self.references -= 1
        if not self.references and self._free is not None:
            self._free.set()

    async def wait_released(self) -> None:
        """Wait until all references are released."""
        while self.references:
            self._free = asyncio.Event()
            await self._free.wait()

    def start_health_check(self) -> None:
        """Start to ask the model whether it is ready, unless the last check has not ended."""
        if self.opened is not None:
            self.health.start_check(self.opened, self.name, self.version)

    @property
    def failed_self_tests(self) -> int:
        """How many self-tests the version failed."""
        return self.health.failed_self_tests

    @property
    def engine_build_seconds(self) -> float | None:
        """The seconds that its load built an engine, 0 if it was in the cache; None = it has no engine."""
        return self.engine.seconds if self.engine is not None else None

    def series(self) -> ModelSeries:
        """Return this version as the metrics page shows it."""
        opened = self.opened
        return ModelSeries(
            self.name,
            self.version,
            dict(self.config.metric_tags),
            self.lineage.total(self.statistics),
            self,
            cache_enabled=self.cache is not None,
            worker_restarts=opened.restarts if opened else 0,
            memory_bytes=opened.memory_bytes() if opened else 0,
            in_flight=self.runner.in_flight(),
            gpu_uuid=self.gpu_uuid,
            oldest_batch_seconds=self.runner.oldest_batch_seconds() or 0.0,
            namespace=namespace_of(self.identity) or None,
        )

    def _reshaped(self, on_response: OnResponse) -> OnResponse:
        def deliver(response: InferResponse) -> None:
            reshape_outputs(response, self.signature)
            on_response(response)

        return deliver


class ServedVersions:
    """The table of versions that requests go to: those that serve, and replaced ones with open sequences.

    Args:
        find: returns the version for a name and number that `highest` does not answer, or raises an EdgeServeError.

    Attributes:
        highest: model -> the highest version that serves.
    """

    def __init__(self, find: Callable[[str, str], Served]) -> None:
        self.highest: dict[str, Served] = {}
        self._find = find
        self._draining: dict[str, list[Served]] = {}

    def lookup(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
        """Return the version for a request; "" is the highest one that is ready.

        Args:
            correlation_id, flags: of a request of a sequence, which goes to the version that started it.

        Raises:
            EdgeServeError: as `find`.
        """
        served = None if version else self.highest.get(name)
        if served is None:
            served = self._find(name, version)
        return self.sequence_version(served, version, correlation_id, flags) if correlation_id else served

    def sequence_version(self, served: Served, version: str, correlation_id: int | str, flags: int) -> Served:
        """Return the version in which the sequence of a request was started; `served`, unless a draining version has
        it.

        A START belongs to `served`, and ends an older sequence with its ID.

        Args:
            version: the version that the request names; "" = none.
        """
        known = self._draining.get(served.identity, ())
        others = [one for one in reversed(known) if one is not served and version in ("", one.version)]
        if flags & SEQUENCE_START:
            for one in others:
                one.runner.end_sequence(correlation_id)
        elif others and not served.runner.has_sequence(correlation_id):
            return next((one for one in others if one.runner.has_sequence(correlation_id)), served)
        return served

    def draining(self, name: str, version: str) -> Served | None:
        """Return the draining version of this number that was added last."""
        return next((one for one in reversed(self._draining.get(name, ())) if one.version == version), None)

    def drain(self, served: Served) -> bool:
        """Route the requests of its open sequences to a replaced version. Return whether it has any."""
        if not served.runner.open_sequences():
            return False
        known = self._draining.setdefault(served.identity, [])
        if served not in known:
            known.append(served)
        return True

    def remove(self, served: Served) -> None:
        """Route no more requests to a draining version."""
        if left := [one for one in self._draining.pop(served.identity, ()) if one is not served]:
            self._draining[served.identity] = left

    def remove_all(self, name: str) -> None:
        """Remove all draining versions of a model that is unloaded. They drain without waiting for their open
        sequences."""
        for served in self._draining.pop(name, ()):
            served.runner.ignore_sequences()
