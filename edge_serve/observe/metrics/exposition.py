"""Prometheus's text format 0.0.4, written by hand: `prometheus_client` would add `_total` to Triton's counter names.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; charset=utf-8"


class Sample(NamedTuple):
    """One line of a family: `labels` as `label_text` writes them; `suffix` is `_sum`, `_count` or `_bucket`."""

    labels: str
    value: float
    suffix: str = ""


def label_text(labels: Mapping[str, str]) -> str:
    """`a="1",b="2"`, alphabetically."""
    return ",".join(f'{name}="{_escape_value(labels[name])}"' for name in sorted(labels))


def with_label(labels: str, name: str, value: str) -> str:
    """`labels` and one more at the end, where Triton writes `le` and `quantile`."""
    pair = f'{name}="{value}"'
    return f"{labels},{pair}" if labels else pair


def family_lines(name: str, kind: str, description: str, samples: Iterable[Sample]) -> Iterator[str]:
    """A family, after its HELP and TYPE lines; nothing at all when it has no sample."""
    head = f"# HELP {name} {_escape_help(description)}\n# TYPE {name} {kind}\n"
    for labels, value, suffix in samples:
        yield (
            f"{head}{name}{suffix}{{{labels}}} {number(value)}\n"
            if labels
            else f"{head}{name}{suffix} {number(value)}\n"
        )
        head = ""


def number(value: float) -> str:
    """A sample value: whole numbers without a point, `NaN`, `+Inf` and `-Inf` as Prometheus spells them."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _escape_value(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
