"""`--metrics-config`: which latency metrics are exported (Triton core src/metric_model_reporter.cc)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen

_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf")

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_KEYS = ("counter_latencies", "summary_latencies", "histogram_latencies", "summary_quantiles")


@frozen
class MetricsOptions:
    """The options of the metrics page.

    Attributes:
        counters: false removes the duration counters and stops the other model counters at 0, as Triton does.
        summaries, histograms: opt-in families, see the catalogue.
        quantiles: of the summaries; Triton's allowed errors are not needed because quantiles are exact here.
        cpu, gpu: `--allow-cpu-metrics`, `--allow-gpu-metrics`.
        interval_ns: `--metrics-interval-ms`, how old a reading of the CPU or the GPU may be.
    """

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    cpu: bool = True
    gpu: bool = True
    interval_ns: int = 2_000_000_000


def parse_options(
    settings: Sequence[str], *, cpu: bool = True, gpu: bool = True, interval_ms: int = 2000
) -> MetricsOptions:
    """Return the options from the values of `--metrics-config`; a later one wins.

    Raises:
        InvalidArgument: not `<setting>=<value>`, an unknown setting, or a value that it cannot have.
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise InvalidArgument(f"--metrics-config option format is <setting>=<value>. Got {setting}")
        if key not in _KEYS:
            raise InvalidArgument(f"--metrics-config: unknown setting '{key}', expected one of {', '.join(_KEYS)}")
        values[key] = value
    return MetricsOptions(
        counters=_boolean(values, "counter_latencies", "true"),
        summaries=_boolean(values, "summary_latencies", "false"),
        histograms=_boolean(values, "histogram_latencies", "false"),
        quantiles=_quantiles(values["summary_quantiles"]) if "summary_quantiles" in values else DEFAULT_QUANTILES,
        cpu=cpu,
        gpu=gpu,
        interval_ns=interval_ms * 1_000_000,
    )


def _boolean(values: dict[str, str], key: str, default: str) -> bool:
    value = values.get(key, default)
    if value not in ("true", "false"):
        raise InvalidArgument(f"--metrics-config: {key} is 'true' or 'false', found '{value}'")
    return value == "true"


def _leading_number(text: str) -> float:
    """Return the number that `text` begins with: Triton reads with std::stod, and `0.0.1` is 0.0.

    Raises:
        ValueError: it begins with none.
    """
    found = _NUMBER.match(text)
    if found is None:
        raise ValueError(text)
    return float(found[0])


def _quantiles(text: str) -> tuple[float, ...]:
    quantiles = []
    for pair in text.split(","):
        try:
            quantile, error = (_leading_number(part) for part in pair.split(":"))
        except ValueError:
            raise InvalidArgument(
                f"--metrics-config: summary_quantiles expects <quantile>:<error>, found '{pair}'"
            ) from None
        if not (0 <= quantile <= 1 and 0 <= error <= 1):
            raise InvalidArgument(f"--metrics-config: a quantile and its error lie in 0..1, found '{pair}'")
        quantiles.append(quantile)
    return tuple(quantiles)
