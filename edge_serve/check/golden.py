"""`edge-serve check`, golden tests: compares the answers of a loaded model, and judges its latency and its memory.

This is the trial of a release on its device before it serves (`edge-ota`). No client is busy here, so that the budgets
of golden.json mean something.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_serve.check.infer import is_up, kill_busy, with_members
from edge_serve.errors import EdgeServeError
from edge_serve.golden.reader import GoldenBudget, GoldenTest
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.golden import SampleFigures, ask, run_golden
from edge_serve.models.versions.served import Served


@dataclass(slots=True)
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
        again = await ask(served, sample, seconds)
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
