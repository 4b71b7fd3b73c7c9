"""Reads INFER frames and writes INFER_RESPONSE frames, for models that call other models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from edge_serve.backends.host import ModelCall
from edge_serve.errors import triton_code
from edge_serve.messages.infer import InferResponse
from edge_serve.records import slotted
from edge_serve.workers.wire.calls import (
    BLOCKING,
    CALL_HEAD,
    DECOUPLED,
    FINAL,
    PARSE_ERRORS,
    RESPONSE_HEAD,
    WAITING,
    OutputSlot,
    describe_tensors,
    join_parts,
    read_tensors,
)
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, frame, parse_json


@slotted
class Question:
    """An INFER frame as the front end reads it.

    Attributes:
        call: its tensors are views of the frame or of the caller's arena.
        model: number of the calling model in its worker; 0 when it has no arena.
        token: of the slot that holds inputs; 0 = none.
    """

    call: ModelCall
    model: int
    token: int


def decode_call(received: Frame, arena_of: Callable[[int], memoryview | None]) -> Question:
    """Return the question in an INFER frame. Everything is checked.

    Args:
        arena_of: the arena of the calling model with this number; empty when it has none, None = the model is not
            open, and the inputs are not read.

    Raises:
        FrameError: the worker wrote something else.
    """
    try:
        model, token, flags, text_size, block_size = CALL_HEAD.unpack_from(received.payload)
        start = CALL_HEAD.size + text_size
        about = parse_json(received.payload[CALL_HEAD.size : start])
        call = _call(about, flags)
        if (arena := arena_of(model)) is not None:
            call.inputs = read_tensors(received, about["names"], start, block_size, arena)
    except PARSE_ERRORS as error:
        raise FrameError(f"a call cannot be read: {type(error).__name__}: {error}") from error
    return Question(call, model, token)


def _call(about: dict[str, Any], flags: int) -> ModelCall:
    call = ModelCall(
        about["model"], about["version"], [], about["outputs"], about["id"], about["correlation_id"], about["flags"],
        about["timeout_us"], about["parameters"], flags & DECOUPLED != 0, flags & BLOCKING != 0, about.get("trace", -1),
    )  # fmt: skip
    texts: list[object] = [call.model_name, call.id, *call.requested_outputs, *call.parameters]
    numbers: list[object] = [call.model_version, call.flags, call.timeout_us, call.trace]
    if type(call.correlation_id) is not str:
        numbers.append(call.correlation_id)
    if not isinstance(about["outputs"], list) or not isinstance(about["parameters"], dict):
        raise FrameError("a call's outputs or parameters are of another type")
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise FrameError("a call's names or numbers are of another type")
    if not all(isinstance(value, (str, int, float)) for value in call.parameters.values()):
        raise FrameError("a call's parameters are of another type")
    texts += [call.correlation_id, *call.parameters.values()]
    "".join(map(str, texts)).encode()  # raises for what is no text
    if not (0 <= call.flags < 1 << 32 and 0 <= call.timeout_us < 1 << 64):
        raise FrameError("a call's flags or timeout do not fit")
    if isinstance(call.correlation_id, int) and not 0 <= call.correlation_id < 1 << 64:
        raise FrameError("a call's correlation id does not fit")
    return call


def encode_response(number: int, response: InferResponse, places: Sequence[int], room: OutputSlot) -> bytes:
    """Return an INFER_RESPONSE frame; `places` as for `encode_call`."""
    flags = FINAL if response.final else 0
    error = response.error
    if error is not None:
        text = json.dumps({"code": triton_code(error), "text": error.message}).encode()
        head = RESPONSE_HEAD.pack(0, 0, 0, flags, len(text), 0)
        return frame(FrameKind.INFER_RESPONSE, number, head + text)
    about = {"names": [tensor.name for tensor in response.outputs], "parameters": response.parameters}
    text = json.dumps(about).encode()
    block, data = describe_tensors(response.outputs, places)
    head = RESPONSE_HEAD.pack(room.token, room.offset, room.nbytes, flags, len(text), len(block))
    return frame(FrameKind.INFER_RESPONSE, number, join_parts(head, text, block, data), len(response.outputs))


def decode_rest(received: Frame) -> list[tuple[int, int]]:
    """Return the calls in an INFER_REST frame: number, and responses that have arrived.

    Raises:
        FrameError: the worker wrote something else.
    """
    if not received.payload or len(received.payload) % WAITING.size:
        raise FrameError("found an INFER_REST of another length")
    return list(WAITING.iter_unpack(received.payload))
