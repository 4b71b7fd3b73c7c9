"""The metrics page: reads the source and this machine, writes the text."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import gathered, in_pieces
from edge_serve.clock import Clock, MonotonicClock
from edge_serve.observe.metrics.catalogue import CATALOGUE
from edge_serve.observe.metrics.exposition import Sample, family_lines, histogram_samples, label_text, names_of
from edge_serve.observe.metrics.gpu import GpuReading, ReadGpus, no_gpus
from edge_serve.observe.metrics.machine import Machine, MachineReading
from edge_serve.observe.metrics.options import MetricsOptions
from edge_serve.observe.metrics.readers import Model, Scrape
from edge_serve.observe.metrics.source import CustomFamily, StatisticsSource
from edge_serve.observe.metrics.updates import Updates, read_updates

#: how long a scrape waits for the figures of the machine and its GPUs, seconds
DEVICE_SECONDS = 2.0

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CATALOGUE_NAMES = frozenset[str]().union(*(names_of(metric.name, metric.kind) for metric in CATALOGUE))


#: the machine, its GPUs, and the status of updates
Readings = tuple[MachineReading, list[GpuReading], Updates | None]


class Page:
    """The answer to GET /metrics.

    Args:
        read_gpus: `gpu.find_gpus()`.
        updates: `--ota-status-file`; "" = none.
    """

    def __init__(
        self,
        source: StatisticsSource,
        options: MetricsOptions,
        read_gpus: ReadGpus = no_gpus,
        clock: Clock | None = None,
        updates: str = "",
    ) -> None:
        self._source = source
        self._options = options
        self._clock = clock or MonotonicClock()
        self._read_gpus = read_gpus
        self._updates_file = updates
        self._seen: Readings = (MachineReading(), [], None)
        self._reading: asyncio.Future[Readings] | None = None
        self._gpus_due_ns = 0
        self._machine = Machine(options.interval_ns, self._clock.now_ns()) if options.cpu else None

    async def render(self) -> list[bytes]:
        """Return the whole page as of now, in pieces. It is long with many models, so the loop does other work in
        between."""
        await self._read_devices()
        now_ns, source = self._clock.now_ns(), self._source
        models = await gathered(Model(series, self._options, now_ns) for series in source.models())
        readiness = await gathered(source.readiness())
        scrape = Scrape(
            models, source.http(), readiness, source.tensor_memory(), *self._seen, source.pinned_memory(),
            list(source.engine_builds()), source.cache(),
        )  # fmt: skip
        return ["".join(lines).encode("utf-8", "replace") async for lines in in_pieces(self._lines(scrape))]

    def _lines(self, scrape: Scrape) -> Iterator[str]:
        for metric in CATALOGUE:
            yield from family_lines(metric.name, metric.kind, metric.help, metric.read(scrape))
        for family in _shown(self._source.custom()):
            yield from family_lines(family.name, family.kind, family.description, _custom_samples(family))

    async def _read_devices(self) -> None:
        """Read the machine and its GPUs in a thread: a driver or a file of sysfs may take long, or hang.

        One thread does it at a time. A scrape that has waited for it for `DEVICE_SECONDS` shows the figures before.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(offload(self._read_now, self._clock.now_ns()))
        done, _ = await asyncio.wait({self._reading}, timeout=DEVICE_SECONDS)
        for reading in done:
            self._seen = reading.result()

    def _read_now(self, now_ns: int) -> Readings:
        machine = self._machine.read(now_ns) if self._machine else MachineReading()
        gpus = self._seen[1]
        if self._options.gpu and now_ns >= self._gpus_due_ns:
            gpus = self._read_gpus()
            self._gpus_due_ns = now_ns + self._options.interval_ns
        return machine, gpus, read_updates(self._updates_file, time.time())


def _shown(families: Iterable[CustomFamily]) -> Iterator[CustomFamily]:
    """Yield the families that Prometheus reads: one bad line makes it drop the whole page.

    A name that Prometheus would not read, and a family of which another one has a name already, such as `_sum` of a
    histogram, are left out.
    """
    taken = set(_CATALOGUE_NAMES)
    for family in families:
        names = names_of(family.name, family.kind)
        if _NAME.fullmatch(family.name) and names.isdisjoint(taken):
            taken |= names
            yield family


def _custom_samples(family: CustomFamily) -> Iterator[Sample]:
    for sample in family.samples:
        labels = label_text(sample.labels)
        if family.kind == "histogram":
            yield from histogram_samples(labels, sample.bounds, sample.counts, sample.value)
        else:
            yield Sample(labels, sample.value)
