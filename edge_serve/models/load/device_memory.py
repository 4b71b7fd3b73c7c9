"""Decides whether a model fits into the memory of its GPUs, and measures the memory that each load takes there.

The free memory is NVML's, or the machine's where a GPU shares it. CUDA itself is not asked: that takes a context, which
costs more memory than many a model (ADR 30). Where neither says how much is free, every load is tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import NamedTuple

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import wait_first
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.errors import Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.memory import Memory, MemoryFigures, Way, decide
from edge_serve.models.versions.instance_group import Placed
from edge_serve.observe.metrics.gpu import GpuReading, ReadGpus, find_gpus
from edge_serve.records import entity

log = logging.getLogger(__name__)

#: a CUDA context of a new worker process, until a load was measured (ADR 30 has the published figures)
CONTEXT_BYTES = 256 << 20
#: how long the driver may take to answer, seconds; later its answer is unknown
READ_SECONDS = 2.0


@entity
class _Measurement:
    """A load whose memory is measured.

    Attributes:
        disturbed: GPUs on which another load ran meanwhile, whose memory cannot be told apart.
    """

    gpus: frozenset[str]
    disturbed: set[str] = field(default_factory=set)


class _Bytes(NamedTuple):
    """The memory of a GPU."""

    total: int
    used: int
    free: int


class DeviceMemory:
    """Accounts for the memory of GPUs.

    Args:
        find: returns the reader of the GPUs; called once, in a thread.
        machine: the memory that an integrated GPU shares.
        limits: GPU -> the share of its memory beyond which no model is loaded (`--model-load-gpu-limit`).
    """

    def __init__(
        self,
        machine: Memory,
        limits: Mapping[int, float] | None = None,
        find: Callable[[], ReadGpus] = find_gpus,
    ) -> None:
        self._machine = machine
        self._limits = limits or {}
        self._find = find
        self._read: ReadGpus | None = None
        self._measured: dict[tuple[str, str], int] = {}
        self._promised: Counter[str] = Counter()
        self._promise_ended = asyncio.Event()  #: set when a promise ends, then replaced
        self._measuring: list[_Measurement] = []

    @asynccontextmanager
    async def admit(
        self, name: str, gpus: Sequence[Gpu], files: int, *, joins: bool, replaces: bool, awaited: asyncio.Event
    ) -> AsyncIterator[Way]:
        """Promise memory of GPUs to one load while the context lasts, as `Memory.admit` does.

        Args:
            gpus: those that the model's instances are on.
            files: bytes of the model's files.
            joins: the model is loaded into a worker that already runs.
            replaces: a version serves, whose memory is free once that is unloaded.
            awaited: as for `Memory.admit`.

        Raises:
            Unavailable: the model does not fit, with the figures.
        """
        way, needs = await self._decide(name, gpus, files, joins, replaces, awaited.is_set())
        if way is Way.LATER:
            log.info("model %s waits for GPU memory that is promised to loads", name, extra=model_fields(name))
        while way is Way.LATER:
            await wait_first(self._promise_ended, awaited)
            way, needs = await self._decide(name, gpus, files, joins, replaces, awaited.is_set())
        self._promised.update(needs)
        try:
            yield way
        finally:
            self._promised.subtract(needs)
            self._promise_ended.set()
            self._promise_ended = asyncio.Event()

    async def _decide(
        self, name: str, gpus: Sequence[Gpu], files: int, joins: bool, replaces: bool, nested: bool
    ) -> tuple[Way, dict[str, int]]:
        """Return the way that suits all GPUs, and the bytes that the load needs on each."""
        memory, ways, needs = await self._figures(gpus), [Way.BESIDE], {}
        for gpu in gpus:
            if gpu.uuid not in memory:
                continue
            free = memory[gpu.uuid].free
            measured, estimated = self._measured.get((name, gpu.uuid), 0), files + (0 if joins else CONTEXT_BYTES)
            figures = MemoryFigures(
                needed=measured or estimated,
                measured=bool(measured),
                available=max(0, free - (self._machine.promised if gpu.integrated else 0)),
                promised=self._promised[gpu.uuid],
                reserve=0,
                replaced=measured if replaces else 0,
            )
            advice = "" if joins or measured else ", or let it share a worker (parameter EDGE_SERVE_WORKER: shared)"
            misfit = f"does not fit into the memory of GPU {gpu.id} ({gpu.name})"
            ways.append(decide(name, figures, misfit, advice, nested=nested))
            needs[gpu.uuid] = figures.needed
        return max(ways, key=lambda way: (Way.BESIDE, Way.INSTEAD, Way.LATER).index(way)), needs

    @asynccontextmanager
    async def measured(self, name: str, gpus: Sequence[Gpu]) -> AsyncIterator[dict[str, int]]:
        """Measure the memory that one load takes. Yield a dictionary that has it afterwards, by UUID of the GPU."""
        taken: dict[str, int] = {}
        mine = _Measurement(frozenset(gpu.uuid for gpu in gpus))
        for other in self._measuring:
            other.disturbed |= mine.gpus
            mine.disturbed |= other.gpus
        self._measuring.append(mine)
        try:
            before = await self._figures(gpus)
            yield taken
            after = await self._figures(gpus)
        finally:
            self._measuring.remove(mine)
        for uuid in (before.keys() & after.keys()) - mine.disturbed:
            nbytes = after[uuid].used - before[uuid].used
            if nbytes > 0:
                taken[uuid] = self._measured[name, uuid] = nbytes

    async def check_limits(self, instances: Iterable[Placed], devices: Gpus) -> None:
        """Refuse a load that leaves more of a GPU in use than its limit, as in Triton (core backend_model_instance.cc).

        Triton checks after it has made each instance, so that the load counts.

        Raises:
            Unavailable: the memory in use exceeds the limit.
        """
        limited = [
            (one.spec.name, gpu)
            for one in (instances if self._limits else ())
            for gpu in devices.found
            if one.spec.kind == "GPU" and gpu.id == one.spec.device_id and gpu.id in self._limits
        ]
        memory = await self._figures([gpu for _, gpu in limited])
        for name, gpu in limited:
            if gpu.uuid not in memory:
                text = "--model-load-gpu-limit=%d has no effect: the memory of the GPU cannot be read; "
                log.warning(text + "pip install 'edge-serve[nvml]'", gpu.id)
                continue
            if memory[gpu.uuid].used > int(memory[gpu.uuid].total * self._limits[gpu.id]):
                raise Unavailable(
                    f"can not create model '{name}': memory limit set for GPU {gpu.id} has exceeded, model loading is "
                    "rejected."
                )

    def _read_now(self) -> list[GpuReading]:
        if self._read is None:
            self._read = self._find()
        return self._read()

    async def _figures(self, gpus: Sequence[Gpu]) -> dict[str, _Bytes]:
        """Return the memory by UUID, of the GPUs that report it in time."""
        found = {}
        if any(not gpu.integrated for gpu in gpus):
            try:
                readings = await asyncio.wait_for(offload(self._read_now), READ_SECONDS)
            except asyncio.TimeoutError:
                readings = []
            for one in readings:
                if one.memory_total is not None and one.memory_used is not None and one.memory_free is not None:
                    found[one.uuid] = _Bytes(one.memory_total, one.memory_used, one.memory_free)
        total, available = self._machine.read()
        shared = {gpu.uuid: _Bytes(total, total - available, available) for gpu in gpus if gpu.integrated and total}
        return {gpu.uuid: found[gpu.uuid] for gpu in gpus if gpu.uuid in found} | shared
