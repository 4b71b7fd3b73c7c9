"""INFER and INFER_RESPONSE frames: there and back, and every kind of wrong bytes."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from edge_serve.backends.host import ModelCall
from edge_serve.errors import NotFound
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes
from edge_serve.workers.child.calling import decode_response, encode_call, room_of
from edge_serve.workers.front.frames.calls import decode_call, encode_response
from edge_serve.workers.wire.calls import CALL_HEAD, OutputSlot
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, Splitter

ARENA = memoryview(bytearray(4096))
INTS = InferTensor("X", DataType.INT32, (3,), np.arange(3, dtype=np.int32).tobytes())
TEXTS = InferTensor("é", DataType.BYTES, (1, 2), join_bytes([b"one", b""]))
CALL = ModelCall(
    "other", 3, [INTS, TEXTS], ["Y", "Z"], "an id", "corr", 3, 2**63, {"k": "v", "n": 1, "b": True}, True, trace=6 << 16
)


def received(data: bytes) -> Frame:
    """Return the frame that these bytes are."""
    (frame,) = Splitter().feed(data)
    return frame


def test_a_call_comes_out_as_it_went_in() -> None:
    asked = []
    frame = received(encode_call(5, CALL, [-1, -1], 7, 9))
    question = decode_call(frame, lambda model: asked.append(model) or ARENA)  # type: ignore[func-returns-value]
    assert (frame.kind, frame.id, question.model, question.token, asked) == (FrameKind.INFER, 5, 7, 9, [7])
    found = question.call
    assert replace(found, inputs=[]) == replace(CALL, inputs=[])
    assert [(t.name, t.datatype, t.shape, bytes(t.data), t.offset) for t in found.inputs] == [
        (t.name, t.datatype, t.shape, t.data, -1) for t in (INTS, TEXTS)
    ]


def test_inputs_may_lie_in_the_arena() -> None:
    ARENA[64:76] = INTS.data
    frame = received(encode_call(1, replace(CALL, decoupled=False, blocking=True), [64, -1], 1, 0))
    call = decode_call(frame, lambda model: ARENA).call
    assert call.inputs[0].array().tolist() == [0, 1, 2]
    assert (call.inputs[0].offset, call.inputs[1].offset, call.decoupled, call.blocking) == (64, -1, False, True)
    with pytest.raises(FrameError, match="cut off"):
        decode_call(received(encode_call(1, CALL, [4090, -1], 1, 0)), lambda model: ARENA)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5), ("model", None), ("version", "1"), ("version", True), ("outputs", "Y"), ("outputs", [1]),
        ("outputs", None), ("id", 7), ("correlation_id", -1), ("correlation_id", 1 << 64), ("correlation_id", 1.5),
        ("flags", -1), ("flags", 1 << 32), ("timeout_us", -1), ("timeout_us", "1"), ("parameters", [1]),
        ("parameters", {"a": [1]}), ("parameters", {"a": None}), ("names", ["X"]), ("names", [1, 2]), ("names", 3),
        ("trace", "1"), ("trace", True),
    ],
)  # fmt: skip
def test_a_call_with_a_wrong_value_is_refused(name: str, value: object) -> None:
    payload = received(encode_call(1, CALL, [-1, -1], 1, 0)).payload
    model, token, flags, text_size, block_size = CALL_HEAD.unpack_from(payload)
    about = json.loads(payload[CALL_HEAD.size : CALL_HEAD.size + text_size])
    text = json.dumps({**about, name: value}).encode()
    head = CALL_HEAD.pack(model, token, flags, len(text), block_size)
    with pytest.raises(FrameError):
        decode_call(
            Frame(FrameKind.INFER, 2, 1, head + text + payload[CALL_HEAD.size + text_size :]), lambda model: ARENA
        )


def test_wrong_bytes_are_refused_or_make_a_whole_call() -> None:
    payload = received(encode_call(1, CALL, [-1, 64], 1, 0)).payload
    dice = random.Random(7)
    for length in range(0, len(payload) - 64, 3):
        with pytest.raises(FrameError):
            decode_call(Frame(FrameKind.INFER, 2, 1, payload[:length]), lambda model: ARENA)
    for _ in range(2000):
        wrong = bytearray(payload)
        for _ in range(dice.randint(1, 4)):
            wrong[dice.randrange(len(wrong))] = dice.choice((0, 1, 127, 128, 255))
        try:
            call = decode_call(
                Frame(FrameKind.INFER, dice.choice((0, 1, 2, 3)), 1, bytes(wrong)), lambda model: ARENA
            ).call
        except FrameError:
            continue
        for tensor in call.inputs:
            assert tensor.datatype is DataType.BYTES or tensor.array().shape == tensor.shape


def test_a_response_comes_out_as_it_went_in() -> None:
    response = InferResponse("other", "1", outputs=[INTS, TEXTS], parameters={"a": 1.5, "b": "é"}, final=False)
    frame = received(encode_response(3, response, [-1, -1], OutputSlot()))
    reply, final = decode_response(frame, memoryview(b""))
    assert (frame.kind, frame.id, final, reply.error) == (FrameKind.INFER_RESPONSE, 3, False, None)
    assert [(t.name, t.shape, bytes(t.data)) for t in reply.outputs] == [
        (t.name, t.shape, t.data) for t in (INTS, TEXTS)
    ]
    assert reply.parameters == response.parameters


def test_outputs_lie_in_the_slot_that_the_response_names() -> None:
    ARENA[256:268] = INTS.data
    frame = received(encode_response(3, InferResponse("o", "1", outputs=[INTS]), [256], OutputSlot(11, 192, 128)))
    assert room_of(frame) == OutputSlot(11, 192, 128)
    reply, final = decode_response(frame, ARENA[192:320])
    assert final
    assert reply.outputs[0].array().tolist() == [0, 1, 2]


def test_an_error_keeps_its_kind() -> None:
    response = InferResponse("other", "1", error=NotFound("no such thing"))
    reply, final = decode_response(received(encode_response(3, response, [], OutputSlot())), memoryview(b""))
    assert final
    assert isinstance(reply.error, NotFound)
    assert reply.error.message == "no such thing"
