"""`edge-serve check`, golden tests: compares the answers of a loaded model, and judges its latency and its memory.

This is the trial of a release on its device before it serves (`edge-ota`). No client is busy here, so that the budgets
of golden.json mean something. `record` writes a golden test: it sends the samples of the one that is there, or else the
request of `check --infer`. Tolerances and budgets stay.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from edge_serve.aio.offload import offload
from edge_serve.check.infer import converse, first_request, is_up, kill_busy, with_members
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.golden.reader import DIRECTORY, GoldenBudget, GoldenSample, GoldenTest
from edge_serve.golden.writer import Recording, write_golden
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from edge_serve.messages.tensors import InferTensor
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.golden import SampleFigures, read_limited, request_of, run_golden, run_sample
from edge_serve.models.repository.repository import FoundModel
from edge_serve.models.versions.served import Served
from edge_serve.records import slotted


@slotted
class GoldenTrial:
    """The golden test of one version.

    Attributes:
        samples: of the first round; later rounds measure.
        p95_ms: of `requests` requests, one after the other; None = none was answered.
        memory_bytes: resident memory of the workers after them; of an ensemble, of its members.
        over_budget: the answers are right, and a budget is exceeded.
        problems: why the version is not to be served; empty = it is.
    """

    version: int
    ok: bool = True
    samples: list[SampleFigures] = field(default_factory=list)
    requests: int = 0
    p95_ms: float | None = None
    memory_bytes: int | None = None
    over_budget: bool = False
    problems: list[str] = field(default_factory=list)


async def try_all(name: str, registry: Registry, seconds: float) -> list[GoldenTrial]:
    """Run the golden test of each loaded version of a model.

    Args:
        seconds: how long the model may take to answer one sample.
    """
    trials = []
    for served in [one for one in registry.served() if one.identity == name and one.golden is not None]:
        trial = GoldenTrial(int(served.version))
        await _try(served, registry, seconds, trial)
        trial.ok = not trial.problems
        trials.append(trial)
    return trials


async def _try(served: Served, registry: Registry, seconds: float, trial: GoldenTrial) -> None:
    test = served.golden
    assert test is not None, "only models with a golden test are tried"
    needed = with_members(served, registry)
    workers = [one.opened for one in needed if one.opened is not None]
    if not all([await is_up(one) for one in needed]):
        trial.problems.append("its worker is not there, or the model's own is_ready says that it is not ready")
        return
    for opened in workers:
        opened.tests = True
    try:
        trial.samples = await run_golden(served, test, seconds)
        trial.problems = [text for sample in trial.samples for text in sample.problems]
        if not trial.problems:
            await _measure(served, test, seconds, trial)
    except EdgeServeError as error:
        trial.problems.append(error.message)
        await kill_busy(registry, error.message)
    finally:
        for opened in workers:
            opened.tests = False
    trial.memory_bytes = sum(opened.memory_bytes() for opened in workers)
    if not trial.problems:
        trial.problems = _over_budget(test.budget, trial)
        trial.over_budget = bool(trial.problems)


async def _measure(served: Served, test: GoldenTest, seconds: float, trial: GoldenTrial) -> None:
    """Send the samples again, in turn, and note the latency. An answer that differs now is a problem, too."""
    latencies = []
    rounds = math.ceil(test.budget.requests / len(test.samples))  # whole ones, so that each sequence comes to its end
    for sample in test.samples * rounds:
        again = await run_sample(served, sample, seconds)
        latencies.append(again.seconds)
        if again.problems:
            trial.problems += [f"when it was sent again: {text}" for text in again.problems]
            break
    trial.requests = len(latencies)
    trial.p95_ms = round(p95(latencies) * 1000, 3)


def p95(latencies: Sequence[float]) -> float:
    """Return the 95th percentile, interpolated between the two nearest values."""
    return statistics.quantiles(latencies, n=20, method="inclusive")[-1] if len(latencies) > 1 else latencies[0]


def _over_budget(budget: GoldenBudget, trial: GoldenTrial) -> list[str]:
    problems = []
    advice = "make the model cheaper, or raise the budget in golden.json"
    if budget.p95_ms is not None and trial.p95_ms is not None and trial.p95_ms > budget.p95_ms:
        problems.append(
            f"the p95 of {trial.requests} requests is {trial.p95_ms:g} ms, the budget is {budget.p95_ms:g} ms: {advice}"
        )
    if budget.memory_bytes is not None and trial.memory_bytes is not None and trial.memory_bytes > budget.memory_bytes:
        problems.append(
            f"its workers have {trial.memory_bytes} bytes of memory after {trial.requests} requests, the budget is "
            f"{budget.memory_bytes} bytes: {advice}"
        )
    return problems


def report(trial: GoldenTrial) -> list[str]:
    """Return the lines for a person."""
    head = f"version {trial.version}, golden test:"
    if trial.problems:
        return [head, *(f"  {text}" for problem in trial.problems for text in problem.splitlines())]
    samples = f"{len(trial.samples)} samples" if len(trial.samples) != 1 else "1 sample"
    return [
        f"{head} {samples} as recorded; p95 {trial.p95_ms:g} ms of {trial.requests} requests, "
        f"{(trial.memory_bytes or 0) / 1e6:.0f} MB"
    ]


async def record(found: FoundModel, registry: Registry, seconds: float) -> str:
    """Record the answers of the highest version; what was done.

    Raises:
        EdgeServeError: the model gives no answer, or the test cannot be written.
    """
    served = registry.lookup(found.name, "")
    test = served.golden
    recordings = []
    if test is None:
        request, _ = await offload(first_request, served, registry)
        recordings.append(await _recorded(served, request, seconds, registry))
    for sample in test.samples if test is not None else ():
        request = await read_limited(request_of, sample, served.signature)
        recordings.append(await _recorded(served, request, seconds, registry, sample))
    await offload(write_golden, found.directory, recordings, test.budget if test is not None else GoldenBudget())
    source = "the samples that were there" if test is not None else "the request of --infer"
    return f"recorded {len(recordings)} samples in {found.name}/{DIRECTORY}/ from version {served.version}: {source}"


async def _recorded(
    served: Served, request: InferRequest, seconds: float, registry: Registry, before: GoldenSample | None = None
) -> Recording:
    """Send a request, and return it with its responses.

    Raises:
        EdgeServeError: the model fails, or does not answer in time; then it is killed.
    """
    name = before.name if before is not None else "first"
    inputs = [replace(tensor) for tensor in request.inputs]  # shapes are changed on the way
    parameters = dict(before.parameters) if before is not None else _parameters(request)
    responses: list[list[InferTensor]] = []

    def record(response: InferResponse) -> None:
        responses.append([replace(tensor, data=bytes(tensor.data), offset=-1) for tensor in response.outputs])

    try:
        await converse(served, request, record, seconds)
    except asyncio.TimeoutError:
        await kill_busy(registry, "no answer to record")
        raise Internal(
            f"sample '{name}': the last response did not come within {seconds:g} s (--load-timeout)"
        ) from None
    return Recording(name, parameters, inputs, responses, served.signature.decoupled, before)


def _parameters(request: InferRequest) -> dict[str, Any]:
    """Return what golden.json says of a sequence."""
    if not request.flags:
        return {}
    start, end = bool(request.flags & SEQUENCE_START), bool(request.flags & SEQUENCE_END)
    return {"sequence_id": request.correlation_id, "sequence_start": start, "sequence_end": end}
