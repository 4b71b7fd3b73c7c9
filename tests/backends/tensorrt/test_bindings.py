"""The tensors of an engine as a configuration names them."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.backends.tensorrt.bindings import Binding, BindingRole, input_bindings, output_bindings
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.errors import InvalidArgument


def read(max_batch_size: int, **more: Any) -> dict[str, Any]:
    """Return a configuration in the form that workers receive."""
    return model_config_to_json(model_config_from_json({"name": "m", "max_batch_size": max_batch_size, **more}))


X: dict[str, Any] = {"name": "x", "data_type": "TYPE_FP32", "dims": [3, 4]}


def test_inputs_and_outputs_of_requests() -> None:
    config = read(
        8,
        input=[X, {**X, "name": "flat", "reshape": {"shape": [12]}}, {**X, "name": "r", "allow_ragged_batch": True}],
        output=[{"name": "y", "data_type": "TYPE_INT64", "dims": [2]}],
    )
    assert input_bindings(config) == [
        Binding("x", True, BindingRole.REQUEST, "TYPE_FP32", (3, 4)),
        Binding("flat", True, BindingRole.REQUEST, "TYPE_FP32", (12,)),
        Binding("r", True, BindingRole.REQUEST, "TYPE_FP32", (3, 4), ragged=True),
    ]
    assert output_bindings(config) == [Binding("y", False, BindingRole.REQUEST, "TYPE_INT64", (2,))]
    assert [(one.side, one.full_dims(8)) for one in input_bindings(config)] == [
        ("input", (8, 3, 4)), ("input", (8, 12)), ("input", (-1,)),
    ]  # fmt: skip
    assert output_bindings(config)[0].full_dims(0) == (2,)


def test_controls_in_triton_s_order() -> None:
    kinds = ("CORRID", "READY", "START", "END")
    values: tuple[dict[str, Any], ...] = (
        {"data_type": "TYPE_UINT64"}, {"bool_false_true": [False, True]},
        {"fp32_false_true": [0, 1]}, {"int32_false_true": [0, 1]},
    )  # fmt: skip
    config = read(
        8,
        sequence_batching={
            "control_input": [
                {"name": kind.lower(), "control": [{"kind": f"CONTROL_SEQUENCE_{kind}", **value}]}
                for kind, value in zip(kinds, values, strict=True)
            ]
        },
    )
    assert [(one.name, one.data_type) for one in input_bindings(config)] == [
        ("start", "TYPE_FP32"), ("end", "TYPE_INT32"), ("ready", "TYPE_BOOL"), ("corrid", "TYPE_UINT64"),
    ]  # fmt: skip
    assert {(one.role, one.dims, one.full_dims(8)) for one in input_bindings(config)} == {
        (BindingRole.CONTROL, (1,), (8, 1))
    }


def test_states_are_inputs_and_outputs() -> None:
    state = {"input_name": "in", "output_name": "out", "data_type": "TYPE_INT32", "dims": [5]}
    config = read(8, sequence_batching={"state": [state]})
    assert input_bindings(config) == [Binding("in", True, BindingRole.STATE, "TYPE_INT32", (5,))]
    assert output_bindings(config) == [Binding("out", False, BindingRole.STATE, "TYPE_INT32", (5,))]


@pytest.mark.parametrize(
    ("kind", "plain", "batched"),
    [
        ("BATCH_ELEMENT_COUNT", (1,), ()), ("BATCH_ACCUMULATED_ELEMENT_COUNT", (1,), ()),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", (2,), ()), ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", (-1,), ()),
        ("BATCH_ITEM_SHAPE", (1, 2), (2,)), ("BATCH_ITEM_SHAPE_FLATTEN", (2,), ()),
    ],
)  # fmt: skip
def test_batch_inputs(kind: str, plain: tuple[int, ...], batched: tuple[int, ...]) -> None:
    batch = {"kind": kind, "target_name": ["n", "o"], "data_type": "TYPE_INT32", "source_input": ["x"]}
    for size, dims in ((0, plain), (8, batched)):
        config = read(size, input=[X], batch_input=[batch])
        assert input_bindings(config)[1:] == [
            Binding(name, True, BindingRole.BATCH, "TYPE_INT32", dims) for name in ("n", "o")
        ]
    assert input_bindings(config)[1].full_dims(8) == (-1, *batched)


def test_outputs_that_are_scattered() -> None:
    config = read(
        8,
        output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        batch_output=[{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["y"], "source_input": ["x"]}],
    )
    assert output_bindings(config) == [Binding("y", False, BindingRole.REQUEST, "TYPE_FP32", (-1,), ragged=True)]


def test_kinds_that_are_not_supported() -> None:
    batch = {"kind": "BATCH_OF_TOMORROW", "target_name": ["n"], "data_type": "TYPE_INT32"}
    with pytest.raises(InvalidArgument, match=r"^batch input type 'BATCH_OF_TOMORROW' is not supported$"):
        input_bindings({"batch_input": [batch]})
    with pytest.raises(InvalidArgument, match=r"^batch output kind other than BATCH_SCATTER_WITH_INPUT_SHAPE is not "):
        output_bindings({"batch_output": [batch]})
