"""Shape keys: which requests may share a batch."""

from __future__ import annotations

import pytest

from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Unseen
from edge_serve.scheduling.keys import shape_key_for

FIXED = TensorSpec("F", DataType.INT32, (16,))
VARIABLE = TensorSpec("V", DataType.INT32, (-1,))
RAGGED = TensorSpec("R", DataType.INT32, (-1,), allow_ragged_batch=True)
SHAPES = TensorSpec("S", DataType.INT32, (2,), is_shape_tensor=True)
OPTIONAL = TensorSpec("O", DataType.INT32, (1,), optional=True)


def signature(*inputs: TensorSpec, max_batch_size: int = 8) -> Signature:
    return Signature("m", "1", "", max_batch_size, {spec.name: spec for spec in inputs}, {})


def request(*tensors: tuple[str, tuple[int, ...], bytes]) -> InferRequest:
    return InferRequest("m", inputs=[InferTensor(name, DataType.INT32, shape, data) for name, shape, data in tensors])


@pytest.mark.parametrize(
    ("model", "one", "other", "together"),
    [
        (signature(FIXED), [("F", (1, 16), b"")], [("F", (2, 16), b"")], True),
        (signature(VARIABLE), [("V", (1, 16), b"")], [("V", (2, 16), b"")], True),
        (signature(VARIABLE), [("V", (1, 16), b"")], [("V", (1, 8), b"")], False),
        (signature(RAGGED), [("R", (1, 16), b"")], [("R", (1, 8), b"")], True),
        (signature(SHAPES), [("S", (2,), b"same")], [("S", (2,), b"same")], True),
        (signature(SHAPES), [("S", (2,), b"this")], [("S", (2,), b"that")], False),
        (
            signature(FIXED, VARIABLE),
            [("F", (1, 16), b""), ("V", (1, 3), b"")],
            [("V", (1, 3), b""), ("F", (1, 16), b"")],
            True,
        ),
        (signature(FIXED, OPTIONAL), [("F", (1, 16), b"")], [("F", (1, 16), b""), ("O", (1, 1), b"")], False),
        (
            signature(FIXED, OPTIONAL),
            [("O", (1, 1), b""), ("F", (1, 16), b"")],
            [("F", (1, 16), b""), ("O", (1, 1), b"")],
            True,
        ),
        (signature(VARIABLE, max_batch_size=0), [("V", (1, 16), b"")], [("V", (1, 8), b"")], True),
    ],
)
def test_keys_are_equal_when_a_batch_may_be_shared(
    model: Signature,
    one: list[tuple[str, tuple[int, ...], bytes]],
    other: list[tuple[str, tuple[int, ...], bytes]],
    together: bool,
) -> None:
    key = shape_key_for(model) or (lambda _: None)

    assert (key(request(*one)) == key(request(*other))) == together


def test_most_models_pay_nothing() -> None:
    assert shape_key_for(signature(FIXED, RAGGED)) is None


def test_unseen_values_share_no_batch() -> None:
    key = shape_key_for(signature(SHAPES))
    assert key is not None
    asked = InferRequest("m", inputs=[InferTensor("S", DataType.INT32, (1, 2), Unseen.buffer(8))])

    assert key(asked) != key(asked)
