"""The metrics page: reads the source and this machine, writes the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edge_serve.clock import Clock, MonotonicClock
from edge_serve.metrics.catalogue import CATALOGUE
from edge_serve.metrics.exposition import Sample, family_lines, label_text
from edge_serve.metrics.gpu import GpuReading, Gpus, NoGpu
from edge_serve.metrics.histogram import cumulative_samples
from edge_serve.metrics.machine import Machine, MachineReading
from edge_serve.metrics.options import MetricsOptions
from edge_serve.metrics.readers import Model, Scrape
from edge_serve.metrics.source import CustomFamily, CustomSample, StatisticsSource

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CATALOGUE_NAMES = frozenset(metric.name for metric in CATALOGUE)


class Page:
    """What GET /metrics answers.

    Args:
        gpus: `gpu.find_gpus()`; nothing by default.
    """

    def __init__(
        self, source: StatisticsSource, options: MetricsOptions, gpus: Gpus | None = None, clock: Clock | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._clock = clock or MonotonicClock()
        self._gpus = gpus or NoGpu()
        self._gpu_readings: list[GpuReading] = []
        self._gpus_due_ns = 0
        self._machine = Machine(options.interval_ns, self._clock.now_ns()) if options.cpu else None

    def render(self) -> bytes:
        """The whole page as of now."""
        scrape = self._scrape(self._clock.now_ns())
        lines: list[str] = []
        for metric in CATALOGUE:
            lines += family_lines(metric.name, metric.kind, metric.help, metric.read(scrape))
        for family in _merged(self._source.custom()):
            lines += family_lines(family.name, family.kind, family.description, _custom_samples(family))
        lines.append("")
        return "\n".join(lines).encode("utf-8", "replace")

    def _scrape(self, now_ns: int) -> Scrape:
        models = [Model(series, self._options, now_ns) for series in self._source.models()]
        machine = self._machine.read(now_ns) if self._machine else MachineReading()
        http, memory = self._source.http(), self._source.tensor_memory()
        return Scrape(models, http, memory, machine, self._read_gpus(now_ns))

    def _read_gpus(self, now_ns: int) -> list[GpuReading]:
        if self._options.gpu and now_ns >= self._gpus_due_ns:
            self._gpu_readings = self._gpus.read()
            self._gpus_due_ns = now_ns + self._options.interval_ns
        return self._gpu_readings


def _merged(families: Iterable[CustomFamily]) -> list[CustomFamily]:
    """One family per name, as two models may define the same; the first one's kind and text count.

    A name that Prometheus would not read, one of the catalogue's, and a family of another kind are left out: one bad
    line makes Prometheus drop the whole page.
    """
    merged: dict[str, CustomFamily] = {}
    for family in families:
        if not _NAME.fullmatch(family.name) or family.name in _CATALOGUE_NAMES:
            continue
        known = merged.setdefault(family.name, CustomFamily(family.name, family.description, family.kind))
        if known.kind == family.kind:
            known.samples += family.samples
    return list(merged.values())


def _custom_samples(family: CustomFamily) -> Iterator[Sample]:
    for sample in family.samples:
        labels = label_text(sample.labels)
        if family.kind == "histogram":
            yield from _histogram(labels, sample)
        else:
            yield Sample(labels, sample.value)


def _histogram(labels: str, sample: CustomSample) -> Iterator[Sample]:
    return cumulative_samples(labels, sample.bounds, sample.counts, sample.value)
