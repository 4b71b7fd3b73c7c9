"""The CUDA graphs of an instance and the graph for a batch. Texts: tensorrt_backend src/instance_state.cc."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.backends.tensorrt.engine import EngineInfo
from edge_serve.backends.tensorrt.graphs import (
    GraphPlan,
    GraphShape,
    GraphSpec,
    graph_specs,
    plan_graphs,
    wants_graphs,
)
from edge_serve.backends.tensorrt.profiles import instance_profiles
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.errors import InvalidArgument
from tests.backends.tensorrt.fake_engine import batching, engine, output, profile, span, tensor


def cuda(**settings: Any) -> dict[str, Any]:
    return {"optimization": {"cuda": settings}}


def spec(batch_size: int, lower: dict[str, Any] | None = None, **shapes: tuple[int, ...]) -> dict[str, Any]:
    inputs = {name: {"dim": list(map(str, shape))} for name, shape in shapes.items()}
    bound = {} if lower is None else {"graph_lower_bound": lower}
    return {"batch_size": batch_size, "input": inputs, **bound}


def planned(config: dict[str, Any], found: EngineInfo, index: int = 0, whole: tuple[str, ...] = ()) -> GraphPlan:
    choices = instance_profiles([str(index)], found, "m_0_0")
    return plan_graphs(graph_specs(config), found, choices[0], "m_0_0", whole)


def test_graphs_are_captured_where_the_configuration_asks_for_them() -> None:
    assert not wants_graphs({})
    assert not wants_graphs(cuda(output_copy_stream=True))
    assert wants_graphs(cuda(graphs=True, busy_wait_events=True))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"max_batch_size": 0}, [0]),
        ({"max_batch_size": 0, "dynamic_batching": {}}, [0]),
        ({"max_batch_size": 1}, [1]),
        ({"max_batch_size": 8}, [1, 2, 3, 4, 6, 8]),
        ({"max_batch_size": 20}, [1, 2, 3, 4, 6, 8, 12, 16, 20]),
        ({"max_batch_size": 64}, [1, 2, 3, 4, 6, 8, 12, 16, 64]),
        ({"max_batch_size": 64, "sequence_batching": {"direct": {}}}, [1, 2, 3, 4, 6, 8, 12, 16, 64]),
        ({"max_batch_size": 64, "dynamic_batching": {}}, [1, 64]),
        ({"max_batch_size": 16, "dynamic_batching": {"preferred_batch_size": [8, 4, 32]}}, [1, 4, 8, 16]),
        ({"max_batch_size": 16, "sequence_batching": {"oldest": {"preferred_batch_size": [4]}}}, [1, 4, 16]),
    ],
)
def test_sizes_by_default(config: dict[str, Any], sizes: list[int]) -> None:
    assert graph_specs(config) == [GraphSpec(size, lower_batch_size=size) for size in sizes]


def test_graphs_by_default_have_the_best_shapes() -> None:
    found = engine(
        tensor("x", (-1, -1)), tensor("z", (-1,)), output("y", (-1,)),
        profiles=[profile(x=span((1, 1), (2, 32), (8, 64)), z=span((1,), (2,), (8,)))],
    )  # fmt: skip
    plan = planned({"max_batch_size": 4, "dynamic_batching": {}}, found)
    assert [graph.shapes for graph in plan.shapes] == [((1, 32), (1,)), ((4, 32), (4,))]
    assert (plan.padded, plan.notes) == (False, ())
    assert plan.find([(4, 32), (4,)]) == plan.shapes[1]
    for shapes in ([(3, 32), (3,)], [(4, 31), (4,)], [(8, 32), (8,)]):
        assert plan.find(shapes) is None


def test_model_that_does_not_batch_has_a_graph() -> None:
    # Triton looks for the graph under batch size 1, has it under 0, and never runs it
    found = engine(tensor("x", (-1,)), output("y", (-1,)), profiles=[profile(x=span((1,), (5,), (9,)))])
    plan = planned({"max_batch_size": 0}, found)
    assert [graph.shapes for graph in plan.shapes] == [((5,),)]
    assert plan.find([(5,)]) == plan.shapes[0]
    asked = planned(cuda(graph_spec=[spec(0, x=(7,))]), found)
    assert asked.find([[7]]) == asked.shapes[0]


def test_graph_specs_in_the_form_that_workers_receive() -> None:
    bound = {"batch_size": 2, "input": {"x": {"dim": [5]}}}
    given = {
        "name": "m",
        "max_batch_size": 8,
        **cuda(graphs=True, graph_spec=[spec(4, bound, x=(9,)), spec(1, x=(3,))]),
    }
    config = model_config_to_json(model_config_from_json(given))
    assert graph_specs(config) == [
        GraphSpec(4, {"x": (9,)}, 2, {"x": (5,)}, padded=True), GraphSpec(1, {"x": (3,)}, 1, {"x": (3,)}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("largest", "given", "text"),
    [
        (0, spec(1), "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"),
        (0, spec(0, {"batch_size": 1}), "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"),
        (8, spec(0), "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (8, spec(9), "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (8, spec(4, {"batch_size": 0}), "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (8, spec(4, {"batch_size": 5}), "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'"),
        (8, spec(4, {"batch_size": 1}, x=(3,)), "graph lower bound spec expects shape for input 'x'"),
        (
            8, spec(4, {"batch_size": 1, "input": {"x": {"dim": ["1", "2"]}}}, x=(3,)),
            "graph lower bound spec expects to have '1' dimensions, got 2",
        ),
        (
            8, spec(4, {"batch_size": 1, "input": {"x": {"dim": ["-1"]}}}, x=(3,)),
            "graph spec expects input 'x' to have dimension >= 0",
        ),
        (8, spec(4, x=(-1,)), "graph spec expects input 'x' to have dimension >= 0"),
        (
            8, spec(4, {"batch_size": 1, "input": {"x": {"dim": ["4"]}}}, x=(3,)),
            "graph lower bound spec expects input 'x' to have dimension <= 3",
        ),
    ],
)  # fmt: skip
def test_spec_that_contradicts_itself(largest: int, given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as failed:
        graph_specs({"max_batch_size": largest, **cuda(graph_spec=[given])})
    assert failed.value.message.startswith(text)


WIDE = engine(
    tensor("x", (-1, -1)), output("y", (-1,)), profiles=[profile(x=span((1, 1), (4, 32), (8, 64)))]
)  # fmt: skip


def test_batch_is_padded_to_the_next_larger_graph() -> None:
    bounds = [
        spec(size, {"batch_size": low, "input": {"x": {"dim": [1]}}}, x=(64,)) for low, size in ((1, 2), (3, 4), (5, 8))
    ]
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=bounds)}, WIDE)
    assert plan.padded
    found = [plan.find([(batch, 64)]) for batch in range(1, 9)]
    assert [graph.shapes[0][0] for graph in found if graph] == [2, 2, 4, 4, 8, 8, 8, 8]
    assert plan.find([(9, 64)]) is None
    assert plan.find([(2, 63)]) is None, "its rows would lie in the wrong places"


def test_lower_bound_is_the_least_that_is_padded() -> None:
    bound = {"batch_size": 3, "input": {"x": {"dim": [16]}}}
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=[spec(4, bound, x=(32,))])}, WIDE)
    assert [plan.find([(batch, 32)]) is not None for batch in (2, 3, 4)] == [False, True, True]
    assert [plan.find([(4, length)]) is not None for length in (16, 31, 32, 33)] == [False, False, True, False]


def test_equal_shapes_go_before_padding() -> None:
    bound = {"batch_size": 1, "input": {"x": {"dim": [1]}}}
    given = [spec(2, bound, x=(8,)), spec(2, x=(4,)), spec(4, bound, x=(4,))]
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=given)}, WIDE)
    exact, less = plan.find([(2, 4)]), plan.find([(3, 4)])
    assert (exact and exact.shapes, less and less.shapes) == (((2, 4),), ((4, 4),))


def test_lower_bound_of_the_batch_alone() -> None:
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=[spec(4, {"batch_size": 2})])}, WIDE)
    assert plan.shapes == (GraphShape(((4, 32),), ((2, 32),)),)
    assert [plan.find([(batch, 32)]) is not None for batch in (1, 2, 3, 4)] == [False, True, True, True]


def test_no_graphs_with_shape_tensors() -> None:
    found = engine(tensor("x", (-1, 2)), tensor("n", (2,), "TYPE_INT32", is_shape=True), output("y", (-1,)))
    plan = planned({"max_batch_size": 8}, found)
    assert plan == GraphPlan(notes=("Detected shape tensor, CUDA graph is not captured for m_0_0",))
    assert plan.find([(1, 2)]) is None


def test_spec_that_the_profile_does_not_take_is_noted() -> None:
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=[spec(4, x=(99,)), spec(4, x=(9,))])}, WIDE)
    assert [graph.shapes for graph in plan.shapes] == [((4, 9),)]
    assert plan.notes == (
        "no CUDA graph of batch size 4 for m_0_0: its shape [4,99] of input 'x' lies outside of profile 0[0], which "
        "takes [1,1] to [8,64]",
    )
    fixed = planned({"max_batch_size": 4}, engine(tensor("x", (4, 3)), output("y", (4,))))
    assert ([graph.shapes for graph in fixed.shapes], len(fixed.notes)) == ([((4, 3),)], 3)


def test_spec_without_the_shape_of_an_input() -> None:
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=[spec(4, z=(3,))])}, batching())
    assert plan.shapes == ()
    assert plan.notes == (
        "no CUDA graph of batch size 4 for m_0_0: trt failed to set input shape for unknown input 'x' for m_0_0",
    )


def test_shape_of_a_ragged_input_is_complete() -> None:
    found = engine(
        tensor("r", (-1,)), tensor("n", (-1, 1)), output("y", (-1,)),
        profiles=[profile(r=span((1,), (16,), (64,)), n=span((1, 1), (4, 1), (8, 1)))],
    )  # fmt: skip
    bound = {"batch_size": 1, "input": {"r": {"dim": [1]}, "n": {"dim": [1]}}}
    plan = planned({"max_batch_size": 8, **cuda(graph_spec=[spec(4, bound, r=(40,), n=(1,))])}, found, whole=("r",))
    assert plan.shapes == (GraphShape(((40,), (4, 1)), ((1,), (1, 1))),)
    assert plan.find([(33,), (3, 1)]) == plan.shapes[0]


def test_graphs_of_another_profile() -> None:
    found = engine(tensor("x", (-1, -1)), output("y", (-1,)), profiles=[
        profile(x=span((1, 1), (4, 32), (8, 64))), profile(x=span((1, 65), (1, 128), (2, 256))),
    ])  # fmt: skip
    plan = planned({"max_batch_size": 8, "dynamic_batching": {}}, found, index=1)
    assert [graph.shapes for graph in plan.shapes] == [((1, 128),)]
    assert len(plan.notes) == 1


@st.composite
def bounded(draw: st.DrawFn) -> dict[str, Any]:
    batch, length = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    if draw(st.booleans()):
        return spec(batch, x=(length,))
    low = {"batch_size": draw(st.integers(1, batch)), "input": {"x": {"dim": [draw(st.integers(1, length))]}}}
    return spec(batch, low, x=(length,))


@given(given_specs=st.lists(bounded(), min_size=1, max_size=6), batch=st.integers(1, 8), length=st.integers(1, 12))
def test_the_graph_of_a_batch_holds_it_and_is_the_smallest(
    given_specs: list[dict[str, Any]], batch: int, length: int
) -> None:
    config = {"max_batch_size": 8, **cuda(graph_spec=given_specs)}
    plan, shape = planned(config, WIDE), (batch, length)
    found = plan.find([shape])
    exact = [graph for graph in plan.shapes if graph.shapes == (shape,)]
    if exact:
        assert [found] == exact
        return
    fitting = [
        graph for graph in plan.shapes
        if graph.lower[0][0] <= shape[0] <= graph.shapes[0][0] and shape[1:] == graph.shapes[0][1:]
    ]  # fmt: skip
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        assert found.elements == min(graph.elements for graph in fitting)


@given(
    largest=st.integers(1, 64),
    preferred=st.none() | st.lists(st.integers(1, 80), max_size=4),
)
def test_default_sizes_are_in_order_and_have_one_and_the_largest(largest: int, preferred: list[int] | None) -> None:
    batching = {} if preferred is None else {"dynamic_batching": {"preferred_batch_size": preferred}}
    sizes = [one.batch_size for one in graph_specs({"max_batch_size": largest, **batching})]
    assert sizes == sorted(set(sizes))
    assert sizes[:1] == [1]
    assert sizes[-1:] == [largest]
    wanted = {1, 2, 3, 4, 6, 8, 12, 16, largest} if preferred is None else {1, *preferred, largest}
    assert set(sizes) == {size for size in wanted if size <= largest}
