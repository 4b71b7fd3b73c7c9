"""The plan of an ensemble: tables for each rule, then random graphs held against a plain reference."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st

from edge_serve.config.model.text import parse_model_config
from edge_serve.scheduling.ensemble import EnsemblePlan, EnsembleRun, EnsembleStep, ensemble_plan
from tests.examples import examples
from tests.footprint import footprint


def step(reads: str, writes: str, model: str = "m") -> EnsembleStep:
    """A step that reads and writes the ensemble tensors with these one-letter names."""
    return EnsembleStep(model, "", {f"IN_{t}": t for t in reads}, {f"OUT_{t}": t for t in writes})


def run_of(plan: EnsemblePlan, given: str, wanted: str = "") -> EnsembleRun:
    return EnsembleRun(plan.route(wanted), set(given), ())


def started(plan: EnsemblePlan, given: str, wanted: str = "") -> tuple[EnsembleRun, list[int]]:
    run = run_of(plan, given, wanted)
    assert run.possible
    return run, [index for index, _ in run.start()]


def answer(run: EnsembleRun, index: int) -> list[int]:
    """The only response of a step comes. Return the steps to run now."""
    cell, ready = run.wrote((index, 0))
    assert cell == (index, 0)
    run.ended()
    assert all(iteration == 0 for _, iteration in ready)
    return [following for following, _ in ready]


def is_finished(run: EnsembleRun) -> bool:
    return not run.running and list(run.answers()) == [0]


# X -> 0 -> a -> 1 -> Y, and X -> 2 -> Z
FORK = EnsemblePlan([step("X", "a"), step("a", "Y"), step("X", "Z")], {"X": False}, ["Y", "Z"])
# X -> 0 -> a -> 2 -> Y, X -> 1 -> b -> 2
DIAMOND = EnsemblePlan([step("X", "a"), step("X", "b"), step("ab", "Y")], {"X": False}, ["Y"])


def test_steps_that_are_ready_run_beside_each_other() -> None:
    run, first = started(FORK, "X")

    assert first == [0, 2]
    assert answer(run, 2) == []
    assert answer(run, 0) == [1]
    assert answer(run, 1) == []
    assert is_finished(run)


def test_a_step_waits_for_all_that_it_reads() -> None:
    run, first = started(DIAMOND, "X")

    assert first == [0, 1]
    assert answer(run, 1) == []
    assert answer(run, 0) == [2]


def test_the_order_of_steps_in_the_configuration_does_not_matter() -> None:
    plan = EnsemblePlan([step("a", "Y"), step("X", "a")], {"X": False}, ["Y"])
    run, first = started(plan, "X")

    assert first == [1]
    assert answer(run, 1) == [0]


@pytest.mark.parametrize(("wanted", "steps"), [("Y", {0, 1}), ("Z", {2}), ("ZY", {0, 1, 2}), ("", {0, 1, 2})])
def test_only_steps_that_lead_to_the_wanted_outputs_run(wanted: str, steps: set[int]) -> None:
    assert set(FORK.route(wanted).sources) == steps


def test_an_output_that_is_also_an_intermediate_tensor_ends_a_route() -> None:
    plan = EnsemblePlan([step("X", "T"), step("X", "u"), step("Tu", "Y")], {"X": False}, ["Y", "T"])
    run, first = started(plan, "X", "T")

    assert first == [0]
    assert answer(run, 0) == []
    assert is_finished(run)


def test_a_required_input_that_is_missing_is_a_deadlock_before_anything_runs() -> None:
    plan = EnsemblePlan([step("XZ", "Y")], {"X": False, "Z": True}, ["Y"])

    assert not run_of(plan, "Z").possible
    assert started(plan, "X")[1] == [0]


def test_an_input_that_the_wanted_outputs_do_not_need_may_be_missing() -> None:
    plan = EnsemblePlan([step("X", "Y"), step("W", "Z")], {"X": False, "W": False}, ["Y", "Z"])

    assert started(plan, "X", "Y")[1] == [0]
    assert not run_of(plan, "X").possible


@pytest.mark.parametrize(
    "steps",
    [
        [step("b", "a"), step("a", "b"), step("a", "Y")],
        [step("Y", "Y")],
        [step("n", "Y")],
        [step("X", "a")],
    ],
    ids=["circle", "itself", "nobody writes what it reads", "nobody writes the output"],
)
def test_a_plan_that_cannot_end_is_a_deadlock(steps: list[EnsembleStep]) -> None:
    assert not run_of(EnsemblePlan(steps, {"X": False}, ["Y"]), "X").possible


def test_an_output_that_is_an_input_needs_no_step() -> None:
    plan = EnsemblePlan([step("X", "Y")], {"X": False}, ["X", "Y"])

    assert started(plan, "X", "X")[1] == []
    assert started(plan, "X")[1] == [0]


def test_an_input_comes_from_the_client_even_if_a_step_writes_it() -> None:
    plan = EnsemblePlan([step("X", "Y"), step("Y", "X")], {"X": False}, ["Y"])
    run, first = started(plan, "X")

    assert first == [0]
    assert answer(run, 0) == []
    assert is_finished(run)


def test_each_response_of_a_decoupled_step_is_an_iteration_of_those_that_follow() -> None:
    run = EnsembleRun(FORK.route("Y"), {"X"}, {0})
    assert run.start() == [(0, 0)]
    assert run.wrote((0, 0)) == ((0, 0), [(1, 0)])
    assert run.wrote((0, 0)) == ((0, 1), [(1, 1)])
    run.wrote((1, 1))
    assert list(run.answers()) == []
    run.wrote((1, 0))
    assert list(run.answers()) == [0, 1]
    assert run.running == 3


def test_routes_are_remembered_and_do_not_pile_up() -> None:
    plan = EnsemblePlan([step("X", "abcdefgh")], {"X": False}, list("abcdefgh"))

    assert plan.route("ab") is plan.route("ab")
    found: list[int] = []
    for _ in range(1000):
        plan.route(random.sample("abcdefgh", 4))
        found.append(footprint(plan))

    assert max(found[500:]) <= max(found[:500])


def test_a_configuration_becomes_a_plan() -> None:
    plan = ensemble_plan(
        parse_model_config(
            """
            name: "e" platform: "ensemble"
            input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] },
                    { name: "Z" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]
            output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
            ensemble_scheduling { step [
              { model_name: "p" model_version: -1
                input_map { key: "A" value: "X" } output_map { key: "B" value: "t" } },
              { model_name: "q" model_version: 3
                input_map { key: "A" value: "t" } input_map { key: "O" value: "Z" }
                output_map { key: "B" value: "u" } },
              { model_name: "r" model_version: 0
                input_map { key: "A" value: "u" } output_map { key: "B" value: "Y" } } ] }
            """
        )
    )

    assert plan.steps == (
        EnsembleStep("p", "", {"A": "X"}, {"B": "t"}),
        EnsembleStep("q", "3", {"A": "t", "O": "Z"}, {"B": "u"}),
        EnsembleStep("r", "0", {"A": "u"}, {"B": "Y"}),
    )
    assert started(plan, "X")[1] == [0]
    assert not run_of(plan, "Z").possible


# ---- random graphs ----------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[EnsemblePlan, dict[str, bool], list[str]]:
    """Any graph: with circles, holes and tensors that no step reads."""
    count = draw(st.integers(1, 7))
    inputs = {f"i{n}": draw(st.booleans()) for n in range(draw(st.integers(1, 3)))}
    writes = [[f"t{n}{m}" for m in range(draw(st.integers(1, 2)))] for n in range(count)]
    tensors = [*inputs, *(t for group in writes for t in group), "hole"]
    forward = draw(st.booleans())
    steps = []
    for n in range(count):
        choice = [*inputs, *(t for group in writes[:n] for t in group)] if forward else tensors
        reads = draw(st.lists(st.sampled_from(choice), min_size=1, max_size=3, unique=True))
        steps.append(EnsembleStep(f"m{n}", "", {f"R{t}": t for t in reads}, {f"W{t}": t for t in writes[n]}))
    outputs = draw(st.lists(st.sampled_from(tensors[:-1]), min_size=1, max_size=4, unique=True))
    order = draw(st.permutations(range(count)))
    return EnsemblePlan([steps[n] for n in order], inputs, outputs), inputs, outputs


def reachable(plan: EnsemblePlan, inputs: dict[str, bool], present: set[str]) -> set[str]:
    """The reference: what has a value when steps run for as long as one can."""
    ready = present | {name for name, optional in inputs.items() if optional}
    while True:
        more = {
            tensor
            for one in plan.steps
            if ready.issuperset(one.inputs.values())
            for tensor in one.outputs.values()
            if tensor not in inputs
        }
        if more <= ready:
            return ready
        ready |= more


@examples(40, 150, graphs(), st.data())
def test_any_graph_runs_what_it_must_and_no_more(
    graph: tuple[EnsemblePlan, dict[str, bool], list[str]], data: st.DataObject
) -> None:
    plan, inputs, outputs = graph
    present = set(data.draw(st.lists(st.sampled_from(sorted(inputs)), unique=True)))
    wanted = data.draw(st.lists(st.sampled_from(outputs), unique=True))
    settled = present | {name for name, optional in inputs.items() if optional}
    run = EnsembleRun(plan.route(wanted), present, ())
    assert run.possible == (set(wanted or outputs) <= reachable(plan, inputs, present))
    if not run.possible:
        return
    running: list[int] = []
    ran: set[int] = set()
    ready = [index for index, _ in run.start()]
    while ready or running:
        for index in ready:
            assert settled.issuperset(plan.steps[index].inputs.values()), "a step starts when its inputs are there"
            assert index not in ran, "a step runs once"
            ran.add(index)
            running.append(index)
        assert run.running == len(running)
        assert running, "it waits only while something runs"
        index = running.pop(data.draw(st.integers(0, len(running) - 1)))
        settled.update(plan.steps[index].outputs.values())
        ready = answer(run, index)
    assert settled.issuperset(wanted or outputs)
    assert ran == set(run.route.sources)
    assert is_finished(run) == bool(run.route.kept)
    for index in ran:  # each of them was needed
        useful = set(plan.steps[index].outputs.values()).intersection(wanted or outputs)
        assert useful or set(run.route.readers[index]) & ran
