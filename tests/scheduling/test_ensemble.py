"""The plan of an ensemble: tables for each rule, then random graphs held against a plain reference."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st

from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.scheduling.ensemble import (
    Deadlock,
    EnsemblePlan,
    EnsembleRun,
    EnsembleStep,
    Failed,
    Finished,
    Next,
    StepsToRun,
    ensemble_plan,
)
from tests.examples import examples
from tests.footprint import footprint


def step(reads: str, writes: str, model: str = "m") -> EnsembleStep:
    """A step that reads and writes the ensemble tensors with these one-letter names."""
    return EnsembleStep(model, "", {f"IN_{t}": t for t in reads}, {f"OUT_{t}": t for t in writes})


def started(plan: EnsemblePlan, given: str, wanted: str = "") -> tuple[EnsembleRun, list[int]]:
    run = plan.run(set(given), wanted)
    first = run.start()
    assert isinstance(first, StepsToRun), first
    return run, list(first.steps)


def calls(answer: Next) -> list[int]:
    assert isinstance(answer, StepsToRun), answer
    return list(answer.steps)


# X -> 0 -> a -> 1 -> Y, and X -> 2 -> Z
FORK = EnsemblePlan([step("X", "a"), step("a", "Y"), step("X", "Z")], {"X": False}, ["Y", "Z"])
# X -> 0 -> a -> 2 -> Y, X -> 1 -> b -> 2
DIAMOND = EnsemblePlan([step("X", "a"), step("X", "b"), step("ab", "Y")], {"X": False}, ["Y"])


def test_steps_that_are_ready_run_beside_each_other() -> None:
    run, first = started(FORK, "X")

    assert first == [0, 2]
    assert calls(run.done(2)) == []
    assert calls(run.done(0)) == [1]
    assert run.done(1) == Finished()


def test_a_step_waits_for_all_that_it_reads() -> None:
    run, first = started(DIAMOND, "X")

    assert first == [0, 1]
    assert calls(run.done(1)) == []
    assert calls(run.done(0)) == [2]


def test_the_order_of_steps_in_the_configuration_does_not_matter() -> None:
    plan = EnsemblePlan([step("a", "Y"), step("X", "a")], {"X": False}, ["Y"])
    run, first = started(plan, "X")

    assert first == [1]
    assert calls(run.done(1)) == [0]


@pytest.mark.parametrize(("wanted", "steps"), [("Y", {0, 1}), ("Z", {2}), ("ZY", {0, 1, 2}), ("", {0, 1, 2})])
def test_only_steps_that_lead_to_the_wanted_outputs_run(wanted: str, steps: set[int]) -> None:
    assert set(FORK.route(wanted).needs) == steps


def test_an_output_that_is_also_an_intermediate_tensor_ends_a_route() -> None:
    plan = EnsemblePlan([step("X", "T"), step("X", "u"), step("Tu", "Y")], {"X": False}, ["Y", "T"])
    run, first = started(plan, "X", "T")

    assert first == [0]
    assert run.done(0) == Finished()


def test_a_required_input_that_is_missing_is_a_deadlock_before_anything_runs() -> None:
    plan = EnsemblePlan([step("XZ", "Y")], {"X": False, "Z": True}, ["Y"])

    assert plan.run({"Z"}).start() == Deadlock()
    assert started(plan, "X")[1] == [0]


def test_an_input_that_the_wanted_outputs_do_not_need_may_be_missing() -> None:
    plan = EnsemblePlan([step("X", "Y"), step("W", "Z")], {"X": False, "W": False}, ["Y", "Z"])

    assert started(plan, "X", "Y")[1] == [0]
    assert plan.run({"X"}).start() == Deadlock()


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
    assert EnsemblePlan(steps, {"X": False}, ["Y"]).run({"X"}).start() == Deadlock()


def test_an_output_that_is_an_input_needs_no_step() -> None:
    plan = EnsemblePlan([step("X", "Y")], {"X": False}, ["X", "Y"])

    assert plan.run({"X"}, "X").start() == Finished()
    assert plan.run({"X"}).start() == StepsToRun([0])


def test_an_input_comes_from_the_client_even_if_a_step_writes_it() -> None:
    plan = EnsemblePlan([step("X", "Y"), step("Y", "X")], {"X": False}, ["Y"])
    run, first = started(plan, "X")

    assert first == [0]
    assert run.done(0) == Finished()


def test_outputs_are_spent_once_their_last_reader_is_done() -> None:
    # X -> 0 -> a -> 1 -> b -> 3 -> Y and a -> 2 -> c -> 3
    plan = EnsemblePlan([step("X", "a"), step("a", "b"), step("a", "c"), step("bc", "Y")], {"X": False}, ["Y"])
    run, _ = started(plan, "X")
    run.done(0)

    assert calls(run.done(1)) == []
    assert run.done(2) == StepsToRun([3], [0])
    assert run.done(3) == Finished()


def test_outputs_of_the_answer_are_never_spent() -> None:
    plan = EnsemblePlan([step("X", "T"), step("T", "a"), step("a", "Y")], {"X": False}, ["T", "Y"])
    run, _ = started(plan, "X")
    run.done(0)

    assert run.done(1) == StepsToRun([2], [])


def test_the_first_error_is_the_answer_once_nothing_runs() -> None:
    run, _ = started(FORK, "X")
    first = Internal("first")

    assert calls(run.fail(first)) == []
    assert run.failing
    assert run.fail(Unavailable("second")) == Failed(first)


def test_no_step_follows_an_error() -> None:
    run, _ = started(FORK, "X")
    error = Internal("no")
    run.fail(error)

    assert run.done(0) == Failed(error)


def test_a_stop_waits_for_what_runs() -> None:
    run, _ = started(FORK, "X")
    error = Internal("gone")

    assert calls(run.stop(error)) == []
    assert calls(run.done(0)) == []
    assert run.done(2) == Failed(error)


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
                output_map { key: "B" value: "Y" } } ] }
            """
        )
    )

    assert plan.steps == (
        EnsembleStep("p", "", {"A": "X"}, {"B": "t"}),
        EnsembleStep("q", "3", {"A": "t", "O": "Z"}, {"B": "Y"}),
    )
    assert started(plan, "X")[1] == [0]
    assert plan.run({"Z"}).start() == Deadlock()


# ---- random graphs ----------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[EnsemblePlan, dict[str, bool], list[str]]:
    """Any graph: with circles, holes and tensors that nobody reads."""
    count = draw(st.integers(1, 7))
    inputs = {f"i{n}": draw(st.booleans()) for n in range(draw(st.integers(1, 3)))}
    writes = [[f"t{n}{m}" for m in range(draw(st.integers(1, 2)))] for n in range(count)]
    tensors = [*inputs, *(t for group in writes for t in group), "hole"]
    forward = draw(st.booleans())
    steps = []
    for n in range(count):
        choice = [*inputs, *(t for group in writes[:n] for t in group)] if forward else tensors
        reads = draw(st.lists(st.sampled_from(choice), min_size=1, max_size=3, unique=True))
        steps.append(EnsembleStep("m", "", {f"R{t}": t for t in reads}, {f"W{t}": t for t in writes[n]}))
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
    error = Internal("failed")
    failing = data.draw(st.one_of(st.none(), st.integers(0, len(plan.steps) - 1)))
    settled = present | {name for name, optional in inputs.items() if optional}
    run = plan.run(present, wanted)
    answer = run.start()
    possible = set(wanted or outputs) <= reachable(plan, inputs, present)
    if not possible:
        assert answer == Deadlock()
        return
    running: list[int] = []
    ran: set[int] = set()
    spent: set[int] = set()
    first: EdgeServeError | None = None
    while isinstance(answer, StepsToRun):
        for index in answer.steps:
            assert first is None, "nothing starts after an error"
            assert settled.issuperset(plan.steps[index].inputs.values()), "a step starts when its inputs are there"
            assert index not in ran, "a step runs once"
            assert not spent.intersection(run.route.sources[index]), "nothing is given back that is still needed"
            ran.add(index)
            running.append(index)
        for index in answer.spent:
            assert index not in run.route.kept
            assert index not in spent
            assert not set(run.route.readers[index]).intersection(running), "nobody reads what is given back"
            spent.add(index)
        run._check()
        assert run.running == len(running)
        assert running, "it waits only while something runs"
        index = running.pop(data.draw(st.integers(0, len(running) - 1)))
        if index == failing:
            first = error
            answer = run.fail(error)
        else:
            settled.update(plan.steps[index].outputs.values())
            answer = run.done(index)
    assert not running
    if first is not None:
        assert answer == Failed(error)
        return
    assert answer == Finished()
    assert settled.issuperset(wanted or outputs)
    assert ran == set(run.route.needs)
    for index in ran:  # each of them was needed
        useful = set(plan.steps[index].outputs.values()).intersection(wanted or outputs)
        assert useful or set(run.route.readers[index]) & ran
