"""Contradictions between a configuration and an engine. Texts: tensorrt_backend src/instance_state.cc."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.backends.tensorrt.checks import check_tensorrt
from edge_serve.backends.tensorrt.engine import EngineInfo, Profile
from edge_serve.backends.tensorrt.profiles import instance_profiles
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, Unsupported
from tests.backends.tensorrt.fake_engine import batching, engine, output, profile, span, tensor

PLAIN = engine(tensor("x", (-1, 3)), output("y", (2,)), profiles=[profile(x=span((1, 3), (2, 3), (4, 3)))])


def entry(name: str, dims: list[int], data_type: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **more}


def config(max_batch_size: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "name": "m", "max_batch_size": max_batch_size, "input": [entry("x", [3])], "output": [entry("y", [2])], **more,
    }  # fmt: skip


def check(given: dict[str, Any], found: EngineInfo) -> None:
    names = [str(index) for index in range(len(found.profiles))]
    check_tensorrt(given, found, instance_profiles(names, found, "m_0_0"), "m_0_0")


def refused(given: dict[str, Any], found: EngineInfo) -> EdgeServeError:
    with pytest.raises(EdgeServeError) as failed:
        check(given, found)
    return failed.value


def test_configuration_that_matches_the_engine_is_accepted() -> None:
    check(config(), batching())
    check(config(input=[entry("x", [-1])]), batching())
    check(config(input=[entry("x", [1, 3], reshape={"shape": [3]})]), batching())
    check(config(0, input=[entry("x", [-1, 3])]), PLAIN)
    check(config(0, input=[entry("x", [4, 3])]), PLAIN)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"input": [entry("x", [3]), entry("z", [3])]}, InvalidArgument,
            "unable to load model 'm', configuration expects 2 inputs, model provides at most 1; the engine's inputs "
            "are x",
        ),
        (
            {"input": [entry("z", [3])]}, InvalidArgument,
            "unexpected inference input 'z', allowed inputs are: x; write name: \"x\"",
        ),
        (
            {"output": [entry("y", [2]), entry("z", [3])]}, InvalidArgument,
            "unexpected inference output 'z', allowed outputs are: y; write name: \"y\"",
        ),
        (
            {"input": [entry("x", [3], "TYPE_STRING")]}, Internal,
            "unsupported datatype TYPE_STRING for input 'x' for model 'm'; the engine has it as FLOAT: build it with",
        ),
        (
            {"input": [entry("x", [3], is_shape_tensor=True)]}, Internal,
            "input 'x' for model 'm' is incorrectly marked as a shape tensor in the model configuration.",
        ),
        (
            {"output": [entry("y", [2], is_non_linear_format_io=True)]}, Internal,
            "output 'y' for model 'm' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to "
            "true in the model configuration.",
        ),
        (
            {"input": [entry("x", [3], "TYPE_FP16")]}, InvalidArgument,
            "unexpected datatype TYPE_FP32 for inference input 'x', expecting TYPE_FP16 for m_0_0; write data_type: "
            "TYPE_FP32",
        ),
        (
            {"output": [entry("y", [2], "TYPE_INT8")]}, InvalidArgument,
            "unexpected datatype TYPE_FP32 for inference output 'y', expecting TYPE_INT8 for m_0_0; write",
        ),
        (
            {"input": [entry("x", [4])]}, InvalidArgument,
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,4]); write dims: [ 3 ]",
        ),
        (
            {"input": [entry("x", [1, 3])]}, InvalidArgument,
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 3 dimensions",
        ),
        ({"output": [entry("y", [-1, 2])]}, InvalidArgument, "model 'm', tensor 'y': the model expects 2 dimensions"),
        ({"input": []}, InvalidArgument, "expected configuration for input 'x' for m_0_0"),
        ({"output": []}, InvalidArgument, "expected configuration for output 'y' for m_0_0"),
        (
            {"input": [entry("x", [3]), ], "sequence_batching": {"state": [
                {"input_name": "s", "output_name": "y", "data_type": "TYPE_FP32", "dims": [3]}]}}, NotFound,
            "input 's' not found for m_0_0",
        ),
        (
            {"sequence_batching": {"state": [
                {"input_name": "y", "output_name": "y", "data_type": "TYPE_FP32", "dims": [3]}]}}, InvalidArgument,
            "input 'y' is expected to be an input in model for m_0_0",
        ),
        (
            {"sequence_batching": {"state": [
                {"input_name": "x", "output_name": "x", "data_type": "TYPE_FP32", "dims": [3]}]}}, InvalidArgument,
            "output 'x' is expected to be an output in model for m_0_0",
        ),
        (
            {"batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["x"], "data_type": "TYPE_FP32"}]},
            InvalidArgument, "input 'x'  has already appeared as an input or output for m_0_0",
        ),
    ],
)  # fmt: skip
def test_configuration_that_differs_from_the_engine_is_refused(
    changes: dict[str, Any], kind: type[EdgeServeError], text: str
) -> None:
    error = refused(config(**changes), batching())
    assert (type(error), error.message[: len(text)]) == (kind, text)


def test_dims_without_batching() -> None:
    assert refused(config(0, input=[entry("x", [3])]), PLAIN).message == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 1 "
        "dimensions (shape [3]); write dims: [ -1, 3 ]"
    )
    scalar = engine(tensor("x", ()), output("y", (2,)))
    check(config(0, input=[entry("x", [1], reshape={"shape": []})]), scalar)
    assert refused(config(0), scalar).message.endswith("; write dims: [ 1 ] and reshape { shape: [ ] }")
    assert refused(config(1), scalar).message == (
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension; but "
        "shape expected by the model is []; write max_batch_size: 0"
    )


def test_dims_outside_of_a_profile() -> None:
    found = engine(tensor("x", (-1, -1)), output("y", (-1, 2)), profiles=[
        profile(x=span((1, 1), (1, 1), (8, 64))), profile(x=span((1, 1), (1, 1), (8, 32))),
    ])  # fmt: skip
    check(config(input=[entry("x", [-1])]), found)
    check(config(input=[entry("x", [32])]), found)
    assert refused(config(input=[entry("x", [48])]), found).message == (
        "model configuration specified invalid shape for input 'x' for model m. Error details: model expected the "
        "shape of dimension 1 to be between 1 and 32 but received 48; the profile takes [1,1] to [8,32]"
    )


def test_type_that_cannot_be_served() -> None:
    found = engine(tensor("x", (8, 3)), output("y", (8, 2), "FP8"))
    assert refused(config(), found).message == (
        "unexpected datatype TYPE_<invalid> for inference output 'y', expecting TYPE_FP32 for m_0_0; the engine has it "
        "as FP8, which cannot be served: build it with another type there"
    )


SIZED = engine(
    tensor("x", (-1, 3)), tensor("size", (3,), "TYPE_INT32", is_shape=True), output("y", (-1, 2)),
    output("shape", (3,), "TYPE_INT64", is_shape=True),
    profiles=[Profile({"x": span((1, 3), (2, 3), (8, 3)), "size": span((3,))}, {"size": span((1, 1, 1))})],
)  # fmt: skip


def sized(**changes: Any) -> dict[str, Any]:
    size = {"name": "size", "data_type": "TYPE_INT32", "dims": [2], "is_shape_tensor": True}
    shape = {**size, "name": "shape", "data_type": "TYPE_INT64"}
    return config(
        input=[entry("x", [3]), size | changes.get("size", {})],
        output=[entry("y", [2]), shape | changes.get("shape", {})],
    )


def test_shape_tensors_that_agree() -> None:
    check(sized(), SIZED)
    plain = sized(size={"dims": [3]}, shape={"dims": [3]})
    plain |= {"max_batch_size": 0, "input": [entry("x", [-1, 3]), plain["input"][1]]}
    plain["output"] = [entry("y", [-1, 2]), plain["output"][1]]
    check(plain, SIZED)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"size": {"is_shape_tensor": False}}, Internal,
            "input 'size' for model 'm' is a shape tensor but the model configuration doesn't mark it as a shape "
            "tensor. Write is_shape_tensor: true for it",
        ),
        (
            {"size": {"data_type": "TYPE_FP32"}}, InvalidArgument,
            "unexpected datatype TYPE_FP32 in model configuration for shape input 'size', expecting TYPE_INT32 or "
            "TYPE_INT64 for m_0_0",
        ),
        (
            {"size": {"data_type": "TYPE_INT64"}}, InvalidArgument,
            "unexpected datatype TYPE_INT32 in engine for shape input 'size', expecting TYPE_INT64 for m_0_0",
        ),
        (
            {"size": {"dims": [3]}}, Internal,
            "unable to load model 'm_0_0', binding 'size' shape expected by framework [3] doesn't match model "
            "configuration shape [3]",
        ),
        (
            {"shape": {"data_type": "TYPE_INT32"}}, InvalidArgument,
            "unexpected datatype 'TYPE_INT32 in model configuration for shape output 'shape', expecting TYPE_INT64 for "
            "m_0_0",
        ),
        ({"shape": {"dims": [1, 1]}}, Internal, "unable to load model 'm_0_0', binding 'shape' shape expected by"),
    ],
)  # fmt: skip
def test_shape_tensors_that_differ(changes: dict[str, Any], kind: type[EdgeServeError], text: str) -> None:
    error = refused(sized(**changes), SIZED)
    assert (type(error), error.message[: len(text)]) == (kind, text)


def test_shape_output_of_an_older_tensorrt() -> None:
    """Up to 8.6, shape tensors are INT32 alone."""
    found = engine(
        tensor("x", (-1, 3)), tensor("size", (3,), "TYPE_INT32", is_shape=True), output("y", (-1, 2)),
        output("shape", (3,), "TYPE_INT32", is_shape=True),
    )  # fmt: skip
    check(sized(shape={"data_type": "TYPE_INT32"}), found)
    assert "expecting TYPE_INT32 for m_0_0" in refused(sized(), found).message


def test_shape_tensors_of_two_dimensions() -> None:
    found = engine(tensor("x", (2, 2), "TYPE_INT32", is_shape=True), output("y", (2,)))
    given = config(0, input=[entry("x", [2, 2], "TYPE_INT32", is_shape_tensor=True)])
    assert refused(given, found).message == (
        "unable to load model 'm_0_0', shape binding 'x' can only be 0-d or 1-D tensor, got [2,2]"
    )


def test_shape_output_that_is_scattered() -> None:
    given = sized()
    given["batch_output"] = [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["shape"]}]
    assert refused(given, SIZED).message == "batch output 'shape' can not be shape binding"


def test_formats() -> None:
    found = engine(tensor("x", (8, 16, 4, 4), format="HWC8", vectorized_dim=1, components=8), output("y", (8, 2)))
    check(config(input=[entry("x", [16, 4, 4], is_non_linear_format_io=True)]), found)
    assert refused(config(input=[entry("x", [16, 4, 4])]), found).message == (
        "input 'x' for model 'm' uses a non-linear IO format, but 'is_non_linear_format_io' is incorrectly set to "
        "false in the model configuration. Write is_non_linear_format_io: true for it; its format is HWC8"
    )
    flat = engine(tensor("x", (-1,), format="HWC8"), output("y", (8, 2)), profiles=[profile(x=span((1,), (1,), (99,)))])
    marked = entry("x", [-1], is_non_linear_format_io=True)
    assert refused(config(input=[marked]), flat).message == (
        "unexpected vectorized dim is -1 for non-linear tensor 'x' for m_0_0"
    )
    flat = engine(
        tensor("x", (-1,), format="HWC8", vectorized_dim=0, components=8), output("y", (8, 2)), profiles=flat.profiles
    )
    assert refused(config(input=[marked | {"allow_ragged_batch": True}]), flat).message == (
        "unexpected allow-ragged for non-linear input 'x' for m_0_0"
    )


def test_ragged_input() -> None:
    flat = engine(tensor("x", (-1,)), output("y", (-1, 2)), profiles=[profile(x=span((1,), (1,), (99,)))])
    ragged = entry("x", [-1], allow_ragged_batch=True)
    check(config(input=[ragged]), flat)
    assert refused(config(input=[ragged]), batching()).message == (
        "model 'm', tensor 'x': for the model to support ragged input, the engine shape is: [-1,3] while the model "
        "config shape is: [-1]"
    )


def with_control(dims: tuple[int, ...]) -> EngineInfo:
    low, high = (tuple(other if size == -1 else size for size in dims) for other in (1, 8))
    shapes = profile(x=span((1, 3), (2, 3), (8, 3)), start=span(low, low, high))
    return engine(tensor("x", (-1, 3)), tensor("start", dims), output("y", (-1, 2)), profiles=[shapes])


START = {
    "control_input": [{"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0.0, 1.0]}]}]
}


def test_controls_of_sequences() -> None:
    given = config(sequence_batching=START)
    check(given, with_control((-1, 1)))
    assert refused(given, with_control((2, -1))).message == (
        "unexpected shape [2,-1] for control input 'start' for model m: expects the first dimension to be -1 but the "
        "model specified 2"
    )
    assert refused(given, with_control((-1, 3))).message == (
        "unexpected shape [-1,3] for control input 'start' for model m: expects all dimensions (conditionally first) "
        "to be 1 but the model specified shape [-1,3]"
    )
    assert "expecting TYPE_INT32 for m_0_0" in refused(
        config(sequence_batching={"control_input": [
            {"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}
        ]}),
        with_control((-1, 1)),
    ).message  # fmt: skip
    assert refused(given, batching()).message == "input 'start' not found for m_0_0"


def test_control_of_a_fixed_shape() -> None:
    found = engine(tensor("x", (8, 3)), tensor("start", (8, 1)), output("y", (8, 2)))
    check(config(sequence_batching=START), found)
    wrong = engine(tensor("x", (8, 3)), tensor("start", (8, 2)), output("y", (8, 2)))
    assert refused(config(sequence_batching=START), wrong).message.startswith(
        "model 'm', tensor 'start': the model expects 2 dimensions (shape [8,2])"
    )


def test_output_that_is_a_state_too() -> None:
    names = ("x", "state_in")
    found = engine(
        *(tensor(name, (-1, 3)) for name in names), output("y", (-1, 2)), output("state_out", (-1, 3)),
        profiles=[profile(**{name: span((1, 3), (2, 3), (8, 3)) for name in names})],
    )  # fmt: skip
    state = {"input_name": "state_in", "output_name": "state_out", "data_type": "TYPE_FP32", "dims": [3]}
    check(config(sequence_batching={"state": [state]}), found)
    both = [entry("y", [2]), entry("state_out", [3])]
    check(config(sequence_batching={"state": [state]}, output=both), found)


def test_shape_tensor_without_a_request_is_not_configured() -> None:
    given = config(sequence_batching={"control_input": [
        {"name": "size", "control": [{"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}]}
    ]}, output=sized()["output"])  # fmt: skip
    assert refused(given, SIZED).message == "expected configuration for input 'size' for m_0_0"


@pytest.mark.parametrize("channels", [3, 12, -1])
def test_format_that_pads_is_refused(channels: int) -> None:
    """Requests have the shape of the configuration, and its bytes."""
    shape = (8, channels, 4, 4)
    profiles = [profile(x=span((8, 8, 4, 4), (8, 8, 4, 4), (8, 64, 4, 4)))]
    found = engine(
        tensor("x", shape, format="HWC8", vectorized_dim=1, components=8), output("y", (8, 2)), profiles=profiles
    )
    error = refused(config(input=[entry("x", [channels, 4, 4], is_non_linear_format_io=True)]), found)
    assert type(error) is Unsupported
    assert error.message.startswith(
        f"input 'x' for model 'm' has format HWC8, which rounds dimension 1 of [8,{channels},4,4] up to a multiple of 8"
    )


def test_format_of_a_dla_is_refused() -> None:
    """It rounds each row up, also with as many channels as it wants."""
    found = engine(tensor("x", (8, 4, 5, 5), format="DLA_HWC4", vectorized_dim=1, components=4), output("y", (8, 2)))
    error = refused(config(input=[entry("x", [4, 5, 5], is_non_linear_format_io=True)]), found)
    assert type(error) is Unsupported
    assert "has format DLA_HWC4, which rounds the rows of [8,4,5,5] up to a stride of the DLA, and" in error.message
