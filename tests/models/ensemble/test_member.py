"""How requests of members are made: what is remembered of one must never let a wrong one through."""

from __future__ import annotations

import random

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Shape
from edge_serve.models.ensemble import member as ensemble_member
from edge_serve.models.ensemble.member import Member, StepOutputs, fitted
from edge_serve.scheduling.ensemble import EnsembleStep

STEP = EnsembleStep("m", "", {"A": "x", "B": "t"}, {"C": "y"})
WRITERS = {"t": 0, "y": 1}


def member(datatype: DataType = DataType.INT32, max_batch_size: int = 4) -> Member:
    """Of a model with A [-1, 2] and, optional, B [2]; A comes from the client, B from step 0."""
    inputs = {
        "A": TensorSpec("A", datatype, (-1, 2)),
        "B": TensorSpec("B", DataType.INT32, (2,), optional=True),
    }
    outputs = {"C": TensorSpec("C", DataType.INT32, (2,))}
    signature = Signature("m", "1", "python", max_batch_size, inputs, outputs, required=1)
    return Member(STEP, signature, WRITERS)


def zeros(name: str, shape: Shape, datatype: DataType = DataType.INT32, nbytes: int = -1) -> InferTensor:
    size = datatype.size
    for dim in shape:
        size *= dim
    return InferTensor(name, datatype, shape, bytes(size if nbytes < 0 else nbytes))


def filled(to: Member, *tensors: InferTensor, rows: int = 1) -> InferRequest | str:
    """The request, or why there is none."""
    request = InferRequest("m", "1")
    try:
        given = StepOutputs({tensor.name: tensor for tensor in tensors}, rows, (0, 0))
        to.fill(request, {None: given, 0: given})
    except InvalidArgument as error:
        return error.message
    return request


def seen(request: InferRequest | str) -> object:
    """Return the part of a request that the model sees."""
    if isinstance(request, str):
        return request
    assert request.validated is not None
    return [(one.name, one.datatype, one.shape, bytes(one.data)) for one in request.inputs], request.rows


def test_inputs_get_the_names_and_shapes_of_the_model() -> None:
    to = member()
    for rows in (2, 2, 0, 0):
        shape = (rows, 3, 2) if rows else (3, 2)
        request = filled(to, zeros("x", shape), rows=rows)
        assert isinstance(request, InferRequest)
        assert [(one.name, one.shape) for one in request.inputs] == [("A", (rows or 1, 3, 2))]
        assert request.rows == (rows or 1)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (zeros("x", (1, 3, 3)), "unexpected shape"),
        (zeros("x", (5, 3, 2)), "batch-size must be <= 4"),
        (zeros("x", (1, 3, 2), DataType.FP32), "data-type is 'FP32'"),
        (zeros("x", (1, 3, 2), nbytes=23), "byte size mismatch"),
        (zeros("other", (1, 3, 2)), "missing required input"),
    ],
    ids=["shape", "batch", "type", "bytes", "missing"],
)
def test_a_wrong_request_is_refused_however_often_a_good_one_came_before(wrong: InferTensor, reason: str) -> None:
    to = member()
    for _ in range(3):
        assert isinstance(filled(to, zeros("x", (1, 3, 2))), InferRequest)
        answer = filled(to, wrong)
        assert isinstance(answer, str)
        assert reason in answer


def test_strings_are_looked_at_each_time() -> None:
    to = member(DataType.BYTES, max_batch_size=0)
    good = InferTensor("x", DataType.BYTES, (1, 2), b"\1\0\0\0a\1\0\0\0b")
    bad = InferTensor("x", DataType.BYTES, (1, 2), b"\1\0\0\0a\2\0\0\0b")
    for _ in range(2):
        assert isinstance(filled(to, good, rows=0), InferRequest)
        assert "incomplete string data" in str(filled(to, bad, rows=0))


def test_the_memo_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_member, "_REMEMBERED", 4)
    rng = random.Random(3)
    warm = member()
    for _ in range(500):
        rows = rng.choice((0, 1, 2, 5))
        shape = tuple(rng.choice((1, 2, 3)) for _ in range(rng.choice((1, 2, 3))))
        given = [zeros("x", shape, rng.choice((DataType.INT32, DataType.FP32, DataType.INT64)))]
        if rng.random() < 0.5:
            given.append(zeros("t", rng.choice(((2,), (1, 2), (2, 2))), nbytes=rng.choice((8, 16))))
        assert seen(filled(warm, *given, rows=rows)) == seen(filled(member(), *given, rows=rows))


@pytest.mark.parametrize(
    ("shape", "dims", "batching", "rows", "expected"),
    [
        ((2, 3), (3,), True, 2, (2, 3)),
        ((3,), (3,), False, 0, (3,)),
        ((3,), (-1,), True, 0, (1, 3)),
        ((1, 3), (3,), True, 0, (1, 3)),
        ((1, 3), (3,), False, 1, (3,)),
        ((1, 3), (1, -1), False, 1, (1, 3)),
        ((2, 3), (3,), False, 2, (2, 3)),
    ],
    ids=[
        "both batch", "neither", "a batch of one is made", "it is a batch already", "a batch of one is undone",
        "the batch is a dimension", "a larger batch is left to the check",
    ],
)  # fmt: skip
def test_a_batch_dimension_is_added_or_removed_where_only_one_side_has_it(
    shape: Shape, dims: Shape, batching: bool, rows: int, expected: Shape
) -> None:
    assert fitted(shape, dims, batching, rows) == expected
