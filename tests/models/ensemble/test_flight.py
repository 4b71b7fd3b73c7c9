"""Random graphs of steps: when memory is released, which step may start, and when the answer comes."""

from __future__ import annotations

from typing import cast

from hypothesis import strategies as st

from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType
from edge_serve.models.ensemble.ensemble import EnsembleRunner
from edge_serve.models.ensemble.flight import Ensemble
from edge_serve.models.run.runner import OnResponse
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.served import Served
from edge_serve.scheduling.ensemble import EnsemblePlan, EnsembleStep
from tests.examples import examples
from tests.leases import Slot
from tests.models.ensemble.test_ensemble import Job, Ticks, int32
from tests.scheduling.test_ensemble import graphs, reachable


def specs(names: dict[str, bool]) -> dict[str, TensorSpec]:
    """Of tensors by name; the value says whether they are optional."""
    return {name: TensorSpec(name, DataType.INT32, (-1,), optional=optional) for name, optional in names.items()}


class Walk:
    """One request over the steps of a plan. Each member's answer lies in a slot of its own."""

    version = "1"

    def __init__(self, plan: EnsemblePlan, inputs: dict[str, bool], outputs: list[str]) -> None:
        self.plan = plan
        self.signature = Signature(
            "e", "1", "ensemble", 0, specs(inputs), specs(dict.fromkeys(outputs, False)), decoupled=False, required=0
        )
        self.runner = EnsembleRunner(Ensemble(plan, self.signature, new_statistics(), self.lookup, Ticks()))
        self.answers: list[InferResponse] = []
        self.running: dict[int, Job] = {}
        self.slots: dict[int, Slot] = {}
        self.settled: set[str] = set()
        self.started: list[int] = []
        self.has_failed = False

    def lookup(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
        index = next(index for index, step in enumerate(self.plan.steps) if step.model == name)
        return cast(Served, _Stub(self, index, self.plan.steps[index]))

    def send(self, present: set[str], wanted: list[str]) -> None:
        request = InferRequest("e", inputs=[int32(name, 1) for name in sorted(present)])
        request.outputs = [RequestedOutput(name) for name in wanted]
        self.runner.submit(request, 1, None, self.answers.append)

    def on_start(self, index: int, job: Job) -> None:
        """Check a step that was submitted."""
        assert not self.has_failed, "nothing starts after an error"
        assert index not in self.started, "a step runs once"
        assert self.settled.issuperset(self.plan.steps[index].inputs.values()), "its inputs are there"
        for source, slot in self.slots.items():
            if set(self.plan.steps[source].outputs.values()) & set(self.plan.steps[index].inputs.values()):
                assert not slot.released, "nothing is released that is still needed"
        self.started.append(index)
        self.running[index] = job

    def answer(self, index: int) -> None:
        step = self.plan.steps[index]
        self.settled.update(step.outputs.values())
        slot = self.slots[index] = Slot()
        self.running.pop(index).answer(*(int32(name, 1) for name in step.outputs), lease=slot)

    def fail(self, index: int) -> None:
        self.has_failed = True
        slot = self.slots[index] = Slot()
        self.running.pop(index).fail(Internal("failed"), slot)


class _Stub:
    """The part of a `Served` that the ensemble uses."""

    version = "1"

    def __init__(self, walk: Walk, index: int, step: EnsembleStep) -> None:
        self.walk, self.index = walk, index
        names = dict.fromkeys(step.inputs, True), dict.fromkeys(step.outputs, False)
        self.signature = Signature(
            step.model, "1", "python", 0, specs(names[0]), specs(names[1]), decoupled=False, required=0
        )

    def submit(self, request: InferRequest, on_response: OnResponse) -> Job:
        job = Job(request, on_response)
        self.walk.on_start(self.index, job)
        return job


@examples(40, 150, graphs(), st.data())
def test_any_graph_releases_memory_with_its_last_reader(
    graph: tuple[EnsemblePlan, dict[str, bool], list[str]], data: st.DataObject
) -> None:
    plan, inputs, outputs = graph
    present = set(data.draw(st.lists(st.sampled_from(sorted(inputs)), unique=True)))
    wanted = data.draw(st.lists(st.sampled_from(outputs), unique=True))
    failing = data.draw(st.one_of(st.none(), st.integers(0, len(plan.steps) - 1)))
    walk = Walk(plan, inputs, outputs)
    walk.settled = present | {name for name, optional in inputs.items() if optional}
    walk.send(present, wanted)
    if not set(wanted or outputs) <= reachable(plan, inputs, present):
        assert isinstance(walk.answers[0].error, InvalidArgument)
        assert not walk.started
        return
    route = plan.route(wanted)
    while walk.running:
        assert not walk.answers, "the answer waits for each step"
        index = data.draw(st.sampled_from(sorted(walk.running)))
        if index == failing:
            walk.fail(index)
        else:
            walk.answer(index)
        if walk.has_failed:
            continue
        for step, slot in walk.slots.items():
            readers = set(route.readers[step])
            is_read = readers <= walk.slots.keys() and step not in route.kept
            assert slot.released == is_read, "it is released once its last reader has answered, and not before"
    (answer,) = walk.answers
    assert walk.runner.in_flight() == 0
    if walk.has_failed:
        assert answer.error is not None
        assert answer.error.message == "in ensemble 'e', failed"
        assert answer.lease is None
    else:
        assert (answer.error, answer.final) == (None, True)
        assert set(walk.started) == set(route.sources)
        assert {step for step, slot in walk.slots.items() if not slot.released} == route.kept
        if answer.lease is not None:
            answer.lease.release()
    assert all(slot.released == 1 for slot in walk.slots.values())
