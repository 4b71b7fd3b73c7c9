"""Runs a model on the samples, in a server of its own: outputs, latency, device memory, and how far it is off."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge_serve.convert.samples import Sample
from edge_serve.golden.comparison import float_distance
from edge_serve.in_process import Server
from edge_serve.messages.tensors import Array
from edge_serve.observe.metrics.gpu import ReadGpus
from edge_serve.records import frozen

#: requests whose latency is measured, after as many that warm up as there are samples
REQUESTS = 50


@frozen
class Trial:
    """A model's answers to the samples, and their cost.

    Attributes:
        outputs: of each sample.
        device_bytes: device memory that its load and its requests took; None = the machine does not tell.
    """

    outputs: Sequence[Mapping[str, Array]]
    median_ms: float
    p95_ms: float
    device_bytes: int | None = None


@frozen
class Difference:
    """How far a model's answers are from the reference's.

    Attributes:
        largest: the largest difference of a number.
        relative: the largest difference, divided by the reference's largest magnitude in that output.
        beyond: numbers that differ by more than `atol + rtol * |reference|`, out of `values`.
        problem: why there is no number to compare; "" = there is.
    """

    largest: float = 0.0
    relative: float = 0.0
    beyond: int = 0
    values: int = 0
    problem: str = ""

    @property
    def fits(self) -> bool:
        """Return whether the answers are within the tolerance."""
        return not self.problem and not self.beyond


def run_trial(repository: Path, model: str, samples: Sequence[Sample], read_gpus: ReadGpus) -> Trial:
    """Serve one model, and send it each sample alone.

    Raises:
        EdgeServeError: it does not load, or a request fails.
    """
    before = _used(read_gpus)
    with Server(repository, load_model=[model]) as server:
        outputs = [server.infer(model, sample) for sample in samples]
        taken = []
        for number in range(REQUESTS):
            started = time.perf_counter()
            server.infer(model, samples[number % len(samples)])
            taken.append((time.perf_counter() - started) * 1e3)
        after = _used(read_gpus)
    used = after - before if after is not None and before is not None else None
    return Trial(outputs, statistics.median(taken), statistics.quantiles(taken, n=20)[-1], used)


def not_finite(reference: Trial) -> str:
    """Return a warning about answers that a comparison says little about; "" = all numbers are finite."""
    numbers = [array for outputs in reference.outputs for array in outputs.values() if array.dtype.kind == "f"]
    count = sum(int((~np.isfinite(array)).sum()) for array in numbers)
    if not count:
        return ""
    total = sum(array.size for array in numbers)
    return f"{count} of its {total} numbers are NaN or infinite, which says nothing about accuracy: check --inputs"


def compare(found: Trial, reference: Trial, rtol: float, atol: float) -> Difference:
    """Compare the answers of two trials with the same samples."""
    largest = relative = 0.0
    beyond = values = 0
    for ours, theirs in zip(found.outputs, reference.outputs, strict=True):
        if ours.keys() != theirs.keys():
            return Difference(problem=f"its outputs are {sorted(ours)}, expected {sorted(theirs)}")
        for name, expected in theirs.items():
            array = ours[name]
            if array.shape != expected.shape:
                return Difference(problem=f"'{name}' has shape {list(array.shape)}, expected {list(expected.shape)}")
            off, scale, more = _difference(array, expected, rtol, atol)
            largest, relative = max(largest, off), max(relative, off / scale if scale else off)
            beyond, values = beyond + more, values + expected.size
    return Difference(largest, relative, beyond, values)


def _difference(found: Array, expected: Array, rtol: float, atol: float) -> tuple[float, float, int]:
    """Return the largest difference, the largest magnitude of the reference, and how many differ by too much."""
    if expected.dtype == object:  # strings
        differ = int((found != expected).sum())
        return float(differ > 0), 1.0, differ
    far, off = float_distance(found, expected, rtol, atol)
    magnitudes = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    return float(np.max(off, initial=0.0)), float(np.max(magnitudes, initial=0.0)), int(far.sum())


def _used(read_gpus: ReadGpus) -> int | None:
    found = [one.memory_used for one in read_gpus()]
    return sum(one for one in found if one is not None) if any(one is not None for one in found) else None
