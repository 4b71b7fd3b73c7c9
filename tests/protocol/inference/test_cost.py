"""Work that is too much for the loop is found before any of it is done."""

from __future__ import annotations

import pytest

from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.protocol.inference.cost import SMALL_NS, TooExpensive, check_encoding


def is_too_much(tensors: list[InferTensor], output: RequestedOutput | None = None, *, binary: bool = False) -> bool:
    response = InferResponse("m", "1", outputs=tensors)
    wanted = {} if output is None else {output.name: output}
    try:
        check_encoding(response, InferRequest("m", binary_default=binary), wanted)
    except TooExpensive:
        return True
    return False


def floats(count: int) -> InferTensor:
    """The estimate does not read the bytes."""
    return InferTensor("Y", DataType.FP32, (count,), b"")


@pytest.mark.parametrize(("datatype", "most"), [(DataType.FP32, SMALL_NS // 35), (DataType.INT8, SMALL_NS // 20)])
def test_numbers_count_by_their_type(datatype: DataType, most: int) -> None:
    assert not is_too_much([InferTensor("Y", datatype, (most,), b"")])
    assert is_too_much([InferTensor("Y", datatype, (1, most + 1), b"")])


def test_strings_count_by_number_and_length() -> None:
    assert not is_too_much([InferTensor("Y", DataType.BYTES, (6000,), b"")])
    assert is_too_much([InferTensor("Y", DataType.BYTES, (6001,), b"")])
    assert is_too_much([InferTensor("Y", DataType.BYTES, (1,), bytes(SMALL_NS // 3))])


def test_outputs_count_together() -> None:
    half = floats(SMALL_NS // 35 // 2 + 1)

    assert not is_too_much([half])
    assert is_too_much([half, half])


def test_binary_outputs_cost_nothing() -> None:
    large = [floats(1 << 30)]

    assert is_too_much(large)
    assert not is_too_much(large, binary=True)
    assert not is_too_much(large, RequestedOutput("Y", binary=True))
    assert is_too_much(large, RequestedOutput("Y"), binary=True), "what is asked for by name says itself"


def test_classification_sorts_everything_and_prints_the_best() -> None:
    def row(count: int) -> list[InferTensor]:
        return [InferTensor("Y", DataType.FP32, (1, count), b"")]

    assert not is_too_much(row(24_000), RequestedOutput("Y", classification=1))
    assert is_too_much(row(25_001), RequestedOutput("Y", classification=1))
    assert not is_too_much(row(2_500), RequestedOutput("Y", classification=1_000))
    assert is_too_much(row(2_500), RequestedOutput("Y", classification=2_500))
