"""The order in which the models of one load are loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import Internal
from edge_serve.golden.reader import GoldenTest
from edge_serve.models.load.batch import LoadBatch
from edge_serve.models.load.load_plan import LoadPlan


def plan(name: str, backend: str = "onnxruntime", *members: str, golden: bool = False) -> LoadPlan:
    config = pb.ModelConfig(name=name, backend=backend)
    for member in members:
        config.ensemble_scheduling.step.add(model_name=member)
    return LoadPlan(name, Path(), config, [1], (), golden=GoldenTest(()) if golden else None)


def run(plans: list[LoadPlan], calls: dict[str, set[str]]) -> tuple[list[str], set[str]]:
    """Load with models that fail unless those that they call are there; the tries in order, and what failed."""
    tries: list[str] = []
    there: set[str] = set()

    batch = LoadBatch()
    batch.plans = {one.name: one for one in plans}

    async def load(name: str) -> None:
        tries.append(name)
        await asyncio.sleep(0)
        members = {step.model_name for step in batch.plans[name].config.ensemble_scheduling.step}
        needed = calls.get(name, set()) | members
        if not needed <= there:
            raise Internal(f"{name} needs {needed}")
        there.add(name)

    asyncio.run(batch.run(load))
    return tries, {name for name, error in batch.results.items() if error is not None}


def test_a_tested_model_that_calls_others_is_loaded_after_them() -> None:
    plans = [plan("a", "python", golden=True), plan("slow"), plan("z", "", "slow")]
    assert run(plans, {"a": {"slow", "z"}}) == (["slow", "z", "a"], set())


def test_tested_models_that_call_each_other_are_tried_again_with_what_needs_them() -> None:
    plans = [plan(name, "python", golden=True) for name in ("a", "b", "c")]
    plans.append(plan("e", "", "a"))
    tries, failed = run(plans, {"a": {"b"}, "b": {"c"}})
    assert failed == set()
    assert tries == ["a", "b", "c", "e", "a", "b", "e", "a", "e"]


def test_a_model_that_fails_alone_is_not_retried() -> None:
    plans = [plan("a", "python", golden=True), plan("b", "python", golden=True), plan("c"), plan("d", "python")]
    tries, failed = run(plans, {"a": {"none"}, "c": {"none"}, "d": {"none"}})
    assert failed == {"a", "c", "d"}
    assert tries == ["c", "d", "a", "b", "a"]
    assert run(plans[:1], {"a": {"none"}}) == (["a"], {"a"})
