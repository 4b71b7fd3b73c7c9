"""A model's tensors beside the configuration's. Without the library."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.errors import Internal, InvalidArgument
from packs.openvino.settings import OpenVinoSettings
from packs.openvino.signature import Port, check, completed, declared_type, name_in, shaped_inputs


def port(name: str = "x", dims: tuple[int, ...] | None = (-1, 4), data_type: str = "TYPE_FP32", **options: Any) -> Port:
    return Port((name,), data_type, dims, **options)


def config(batch: int = 0, dims: tuple[int, ...] = (4,), data_type: str = "TYPE_FP32") -> dict[str, Any]:
    return {
        "name": "m",
        "max_batch_size": batch,
        "input": [{"name": "x", "data_type": data_type, "dims": list(dims)}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    }


@pytest.mark.parametrize(
    ("ports", "batch", "dims"),
    [
        ((port(), port("y")), 4, [4]),
        ((port(dims=(1, 4)), port("y")), 0, [1, 4]),
        ((port(dims=(1, 4), has_batch=True), port("y", dims=(1, 4), has_batch=True)), 4, [4]),
        ((port(dims=()), port("y")), 0, [1]),
    ],
)
def test_batching_is_taken_from_the_model(ports: tuple[Port, Port], batch: int, dims: list[int]) -> None:
    found = completed({"name": "m"}, ports[:1], ports[1:], None)
    assert (found.get("max_batch_size", 0), found["input"][0]["dims"]) == (batch, dims)


def test_a_batch_size_that_is_given_makes_a_fixed_model_batch() -> None:
    found = completed({"name": "m", "max_batch_size": 8}, [port(dims=(1, 4))], [port("y", dims=(1, 2))], None)
    assert (found["max_batch_size"], found["input"][0]["dims"], found["output"][0]["dims"]) == (8, [4], [2])
    assert "dynamic_batching" not in found  # Triton's L0_model_config, openvino/partial_config


@pytest.mark.parametrize(("given", "batcher"), [({}, {}), ({"dynamic_batching": {"x": 1}}, {"x": 1})])
def test_a_model_that_batches_gets_the_dynamic_batcher(given: dict[str, Any], batcher: dict[str, Any]) -> None:
    assert completed({"name": "m", **given}, [port()], [port("y")], None)["dynamic_batching"] == batcher


def test_a_batcher_that_is_given_stays() -> None:
    given = {"name": "m", "max_batch_size": 8, "dynamic_batching": {}}
    assert completed(given, [port(dims=(1, 4))], [port("y", dims=(1, 2))], None)["dynamic_batching"] == {}


def test_a_model_without_a_number_of_dims_needs_a_configuration() -> None:
    with pytest.raises(Internal, match="does not tell how many dimensions its input 'x' has: list its inputs"):
        completed({"name": "m"}, [port(dims=None)], [port("y")], None)


@pytest.mark.parametrize(
    ("batch", "dims", "settings", "shaped"),
    [
        (0, (1, 4), OpenVinoSettings(), None),
        (8, (-1, 4), OpenVinoSettings(), None),
        (8, (1, 4), OpenVinoSettings(), (-1, 4)),
        (8, (-1, 4), OpenVinoSettings(pads=True), (8, 4)),
        (8, (-1, 5), OpenVinoSettings(reshapes=True), (-1, 4)),
        (0, (5,), OpenVinoSettings(reshapes=True), (4,)),
        (8, (), OpenVinoSettings(), None),
        (8, None, OpenVinoSettings(), (-1, 4)),
        (0, None, OpenVinoSettings(), (4,)),
    ],
)
def test_shapes_that_inputs_are_compiled_with(
    batch: int, dims: tuple[int, ...] | None, settings: OpenVinoSettings, shaped: tuple[int, ...] | None
) -> None:
    assert shaped_inputs(config(batch), [port(dims=dims)], settings) == [shaped]


def test_another_type_is_converted_but_for_strings() -> None:
    made = config(8, data_type="TYPE_UINT8")
    check(made, [port()], [port("y", dims=(-1, 2))])
    assert declared_type(made, port(), "input") == "TYPE_UINT8"
    with pytest.raises(InvalidArgument, match="expects datatype TYPE_STRING for input 'x', model provides TYPE_FP32"):
        check(config(8, data_type="TYPE_STRING"), [port()], [port("y", dims=(-1, 2))])
    with pytest.raises(Internal, match="unsupported datatype TYPE_FP32 for input 'x' for model 'm'; it is of type i4"):
        check(config(8), [port(data_type="", kind="i4")], [port("y", dims=(-1, 2))])


def test_outputs_must_have_the_dims_of_the_model() -> None:
    with pytest.raises(InvalidArgument, match="tensor 'y': the model expects 2 dimensions"):
        check(config(8), [port()], [port("y", dims=(-1, 3))])


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_tensor_goes_by_the_name_that_the_configuration_has(side: str) -> None:
    found = Port(("a", "a:0"), "TYPE_FP32", (1,))
    assert name_in({side: [{"name": "a:0"}]}, found, side) == "a:0"
    assert name_in({}, found, side) == "a"
    states = {"sequence_batching": {"state": [{f"{side}_name": "a:0"}]}}
    assert name_in(states, found, side) == "a:0"
