"""Ragged batches; shapes and values of Triton's L0_batch_input and of model_config.proto where they have them."""

from __future__ import annotations

import numpy as np
import pytest

from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.ragged import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    batch_inputs,
    batch_outputs,
    flatten,
    make,
    scatter,
)
from edge_serve.messages.tensors import DataType, Shape

FOUR = [(1, 2), (1, 4), (1, 1), (1, 3)]


@pytest.mark.parametrize(
    ("kind", "shapes", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", FOUR, [2, 4, 1, 3]),
        ("BATCH_ELEMENT_COUNT", [(2, 3), (1, 3, 2)], [6, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", FOUR, [2, 6, 7, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [(1, 3), (1, 4), (1, 5)], [3, 7, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", FOUR, [0, 2, 6, 7, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", FOUR, [0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [(2, 1, 2), (1, 1, 2), (1, 2, 2)], [[1, 2], [1, 2], [1, 2], [2, 2]]),
        ("BATCH_ITEM_SHAPE", [(2, 3, 1), (1, 2, 2)], [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [(1, 4, 1), (1, 1, 2), (1, 1, 2), (1, 2, 2)], [4, 1, 1, 2, 1, 2, 2, 2]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [(2, 3, 1), (1, 2, 2)], [3, 1, 3, 1, 2, 2]),
        ("BATCH_ELEMENT_COUNT", [(0, 4), (1, 0)], [0, 0]),
    ],
)
@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.FP32])
def test_batch_input(kind: str, shapes: list[Shape], expected: list[object], datatype: DataType) -> None:
    made = make(BatchInputKind[kind], datatype, shapes)

    assert made.dtype == datatype.numpy
    np.testing.assert_array_equal(made, np.array(expected, datatype.numpy))


@pytest.mark.parametrize(("shapes", "expected"), [([(0, 3, 2)], (0, 2)), ([(2,)], (2, 0))])
def test_item_shapes_of_nothing_keep_their_form(shapes: list[Shape], expected: Shape) -> None:
    assert make(BatchInputKind.BATCH_ITEM_SHAPE, DataType.INT32, shapes).shape == expected


def test_item_shapes_need_equal_ranks() -> None:
    with pytest.raises(InvalidArgument, match=r"equal rank, found \[\[1, 2\], \[1, 2, 3\]\]"):
        make(BatchInputKind.BATCH_ITEM_SHAPE, DataType.INT32, [(1, 2), (1, 2, 3)])


def test_flatten_joins_all_elements() -> None:
    first, second = np.arange(6).reshape(2, 3), np.arange(2).reshape(1, 2)

    np.testing.assert_array_equal(flatten([first, second]), [0, 1, 2, 3, 4, 5, 0, 1])
    assert np.shares_memory(flatten([first]), first)


def test_scatter_is_the_reverse_of_flatten() -> None:
    output = np.arange(10, dtype=np.float32)
    parts = scatter(output, (-1, -1), FOUR)

    assert [part.shape for part in parts] == FOUR
    np.testing.assert_array_equal(flatten(parts), output)
    assert all(np.shares_memory(part, output) for part in parts)


def test_scatter_keeps_fixed_dimensions() -> None:
    parts = scatter(np.arange(12), (-1, 2, -1), [(1, 9, 2), (2, 9, 2)])

    assert [part.shape for part in parts] == [(1, 2, 2), (2, 2, 2)]


def test_scatter_of_strings() -> None:
    parts = scatter(np.array([b"a", b"b", b"c"], object), (-1, -1), [(1, 2), (1, 1)])

    assert [part.tolist() for part in parts] == [[[b"a", b"b"]], [[b"c"]]]


@pytest.mark.parametrize(
    ("size", "dims", "text"),
    [
        (9, (-1, -1), "batch output has 9 elements, expected 10"),
        (10, (-1, 2, -1), r"cannot take its shape from an input of shape \[1, 2\]"),
    ],
)
def test_scatter_refuses_counts_that_do_not_match(size: int, dims: Shape, text: str) -> None:
    with pytest.raises(Internal, match=text):
        scatter(np.zeros(size), dims, FOUR)


def test_from_configuration() -> None:
    config = {
        "max_batch_size": 8,
        "output": [{"name": "OUT", "dims": [-1, 2], "data_type": "TYPE_FP32"}, {"name": "X", "dims": [1]}],
        "batch_input": [
            {
                "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
                "target_name": ["INDEX"],
                "data_type": "TYPE_FP32",
                "source_input": ["INPUT0"],
            },
            {"target_name": ["COUNT"], "data_type": "TYPE_INT32", "source_input": ["INPUT0"]},
        ],
        "batch_output": [
            {"target_name": ["OUT"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["INPUT0"]}
        ],
    }

    assert batch_inputs(config) == [
        BatchInput(BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT, ("INDEX",), DataType.FP32, "INPUT0"),
        BatchInput(BatchInputKind.BATCH_ELEMENT_COUNT, ("COUNT",), DataType.INT32, "INPUT0"),
    ]
    assert batch_outputs(config) == [BatchOutput(("OUT",), (-1, -1, 2), "INPUT0")]
    assert batch_inputs({}) == []
    assert batch_outputs({}) == []


def test_scatter_target_with_a_reshape() -> None:
    config = {
        "max_batch_size": 0,
        "output": [{"name": "OUT", "dims": [1, -1], "reshape": {"shape": ["-1"]}}],
        "batch_output": [{"target_name": ["OUT"], "source_input": ["I"]}],
    }

    assert batch_outputs(config) == [BatchOutput(("OUT",), (-1,), "I")]
