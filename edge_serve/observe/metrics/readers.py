"""How a family's series are read out of one scrape; the catalogue names one of these per metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field

from edge_serve.messages.statistics import LATENCY_BUCKETS, Duration, Histogram, ModelStatistics, Recent
from edge_serve.observe.metrics.exposition import (
    Sample,
    histogram_samples,
    label_text,
    recent_microseconds,
    summary_samples,
)
from edge_serve.observe.metrics.gpu import GpuReading
from edge_serve.observe.metrics.machine import MachineReading
from edge_serve.observe.metrics.nvml import THROTTLE_REASONS
from edge_serve.observe.metrics.options import MetricsOptions
from edge_serve.observe.metrics.source import CacheSeries, HttpSeries, ModelSeries, Readiness, RunningBuild
from edge_serve.observe.metrics.updates import Updates
from edge_serve.records import slotted


@slotted
class Model:
    """A served version as the readers below see it: with its label text and the options."""

    series: ModelSeries
    options: MetricsOptions
    now_ns: int
    label_map: dict[str, str] = field(init=False)
    labels: str = field(init=False)

    def __post_init__(self) -> None:
        self.label_map = model_labels(self.series)
        self.labels = label_text(self.label_map)

    @property
    def stats(self) -> ModelStatistics:
        return self.series.statistics


@slotted
class Scrape:
    """Everything that one scrape shows, read once."""

    models: list[Model]
    http: HttpSeries
    readiness: list[Readiness]
    tensor_memory: int
    machine: MachineReading
    gpus: list[GpuReading]
    updates: Updates | None
    pinned: tuple[int, int]
    builds: list[RunningBuild]
    cache: CacheSeries | None


_NOT_IN_A_LABEL = re.compile("[^a-zA-Z0-9_]")

Reader = Callable[[Scrape], Iterable[Sample]]


def model_labels(series: ModelSeries) -> dict[str, str]:
    """Return the labels model, version, gpu_uuid (one GPU), namespace (`--model-namespacing`) and metric_tags with `_`
    in front.

    Characters of a tag that a label name may not have become `_`, and it gets no second `_` in front: one label like
    `__name__` would make Prometheus drop the page.
    """
    labels = {"model": series.name, "version": series.version}
    if series.gpu_uuid:
        labels["gpu_uuid"] = series.gpu_uuid
    if series.namespace is not None:
        labels["namespace"] = series.namespace
    labels.update(("_" + _NOT_IN_A_LABEL.sub("_", tag).lstrip("_"), value) for tag, value in series.tags.items())
    return labels


def each(value: Callable[[Model], float], wanted: Callable[[Model], bool] = lambda _: True) -> Reader:
    """Return a reader of one series for each model that is `wanted`."""
    return lambda scrape: (Sample(model.labels, value(model)) for model in scrape.models if wanted(model))


def _labels_of(one: Readiness | RunningBuild) -> dict[str, str]:
    labels = {"model": one.name, "version": one.version}
    return labels if one.namespace is None else {**labels, "namespace": one.namespace}


def ready(scrape: Scrape) -> Iterator[Sample]:
    """Yield a series for each version that serves or should serve."""
    for one in scrape.readiness:
        yield Sample(label_text(_labels_of(one)), int(one.ready))


def builds(scrape: Scrape) -> Iterator[Sample]:
    """Yield a series for each engine that a load is building."""
    for one in scrape.builds:
        yield Sample(label_text(_labels_of(one)), round(one.seconds, 3))


def counted(value: Callable[[ModelStatistics], int]) -> Reader:
    """Return a reader of a model counter that Triton stops incrementing with counter_latencies=false, yet lists."""
    return each(lambda model: value(model.stats) if model.options.counters else 0)


def failures(scrape: Scrape) -> Iterator[Sample]:
    for model in scrape.models:
        for reason, count in sorted(model.stats.failures.items()):
            labels = label_text({**model.label_map, "reason": reason})
            yield Sample(labels, count if model.options.counters else 0)


def micros(duration: Callable[[ModelStatistics], Duration], *, cache: bool = False) -> Reader:
    """Return a reader of a duration counter in microseconds; with `cache`, of models with a response cache only."""
    return each(
        lambda model: duration(model.stats).ns // 1000,
        lambda model: model.options.counters and (model.series.cache_enabled or not cache),
    )


def cache_count(duration: Callable[[ModelStatistics], Duration]) -> Reader:
    return each(
        lambda model: duration(model.stats).count, lambda model: model.options.counters and model.series.cache_enabled
    )


def summary(
    index: int,
    duration: Callable[[ModelStatistics], Duration],
    recent_of: Callable[[ModelStatistics], Iterable[Recent] | None] = lambda statistics: statistics.recent,
    *,
    cache: bool | None = None,
) -> Reader:
    """Return a reader of a summary in microseconds.

    Args:
        index: the field of messages.statistics.Recent.
        cache: True = of models with a response cache only, False = of those without one; None = of all.
    """

    def read(scrape: Scrape) -> Iterator[Sample]:
        for model in scrape.models:
            recent = recent_of(model.stats)
            if recent is None or not model.options.summaries or cache not in (None, model.series.cache_enabled):
                continue
            total = duration(model.stats)
            values = recent_microseconds(recent, index, model.now_ns)
            yield from summary_samples(model.labels, model.options.quantiles, values, total.count, total.ns // 1000)

    return read


def queued(statistics: ModelStatistics) -> Sequence[Recent] | None:
    """Return the recent requests for quantiles of the queue time, which cache hits have too: it is 0."""
    recent, hits = statistics.recent, statistics.recent_hits
    if recent is None or not hits:
        return recent
    return sorted((*recent, *hits))[-(recent.maxlen or 0) :]  # by their end: neither kind weighs more than it has come


def first_response(scrape: Scrape) -> Iterator[Sample]:
    for model in scrape.models:
        if model.stats.first_response is not None and model.options.histograms:
            found = model.stats.first_response
            yield from histogram_samples(model.labels, found.bounds, found.counts, found.sum_ms)


def latency(histogram: Callable[[ModelStatistics], Histogram]) -> Reader:
    def read(scrape: Scrape) -> Iterator[Sample]:
        for model in scrape.models:
            found = histogram(model.stats)
            yield from histogram_samples(model.labels, LATENCY_BUCKETS, found.counts, found.sum_ns / 1e9)

    return read


def one(value: Callable[[Scrape], float | None]) -> Reader:
    """Return a reader of one series without labels, unless its value is unknown."""

    def read(scrape: Scrape) -> list[Sample]:
        found = value(scrape)
        return [] if found is None else [Sample("", found)]

    return read


def cache(value: Callable[[CacheSeries], float]) -> Reader:
    """Return a reader of one series of the response cache, where the server has one."""
    return one(lambda scrape: None if scrape.cache is None else value(scrape.cache))


def gpu(value: Callable[[GpuReading], float | None]) -> Reader:
    return lambda scrape: (
        Sample(label_text({"gpu_uuid": gpu.uuid}), found) for gpu in scrape.gpus if (found := value(gpu)) is not None
    )


def throttled(scrape: Scrape) -> Iterator[Sample]:
    """Yield a series for each GPU and reason, where the driver reports them."""
    for gpu in scrape.gpus:
        for reason in THROTTLE_REASONS if gpu.throttling is not None else ():
            labels = label_text({"gpu_uuid": gpu.uuid, "reason": reason})
            yield Sample(labels, int(reason in (gpu.throttling or ())))


def model_gpu_memory(scrape: Scrape) -> Iterator[Sample]:
    """Yield a series for each version and GPU whose memory it took, where that was measured."""
    for model in scrape.models:
        for uuid, nbytes in model.series.loaded.gpu_memory.items():
            yield Sample(label_text({**model.label_map, "gpu_uuid": uuid}), nbytes)


def ota(value: Callable[[Updates], float | None]) -> Reader:
    """Return a reader of one series, where an agent has written its status file in a form that can be read."""
    return one(lambda scrape: value(scrape.updates) if scrape.updates and not scrape.updates.problem else None)


def ota_each(rows: Callable[[Updates], Iterable[tuple[dict[str, str], float]]]) -> Reader:
    """Return a reader of one series for each row of labels and value that the agent reports."""

    return lambda scrape: (
        Sample(label_text(labels), value) for labels, value in (rows(scrape.updates) if scrape.updates else ())
    )


def refused(scrape: Scrape) -> list[Sample]:
    return [Sample(label_text({"reason": reason}), count) for reason, count in scrape.http.refused.items()]


def http_requests(scrape: Scrape) -> list[Sample]:
    return [Sample(label_text({"code": str(code)}), count) for code, count in sorted(scrape.http.requests.items())]
