"""The numbers that a model's configuration gives for its tensors."""

from __future__ import annotations

import pytest

from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.wire.layout import _REMEMBERED, TensorLayout

SIZE = {"name": "SIZE", "is_shape_tensor": True}
ROWS = {"name": "ROWS"}
SHAPES = {"SIZE": (2,), "ROWS": (5, 3)}


@pytest.mark.parametrize(
    ("max_batch_size", "given", "rows"),
    [(8, "ROWS SIZE", 5), (8, "SIZE ROWS", 5), (8, "SIZE", 1), (8, "", 1), (0, "SIZE ROWS", 1)],
)
def test_rows_are_those_of_an_input_that_is_no_shape_tensor(max_batch_size: int, given: str, rows: int) -> None:
    layout = TensorLayout({"max_batch_size": max_batch_size, "input": [SIZE, ROWS]})
    inputs = [InferTensor(name, DataType.INT32, SHAPES[name], b"") for name in given.split()]

    assert layout.rows(InferRequest("m", inputs=inputs)) == rows


def test_sets_of_outputs_that_clients_ask_for_are_not_listed_without_end() -> None:
    layout = TensorLayout({"output": [{"name": f"Y{number}"} for number in range(24)]})

    for mask in range(1, 3 * _REMEMBERED):
        assert len(layout.listed.get(mask) or layout.names_of(mask)) == mask.bit_count()
        assert len(layout.listed) <= _REMEMBERED

    assert layout.listed[0] == layout.outputs
    assert layout.names_of(0b101) == ("Y0", "Y2")
