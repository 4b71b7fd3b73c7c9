"""Writes INFER frames and reads INFER_RESPONSE frames, for models that call other models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.backends.host import ModelCall
from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Internal
from edge_serve.workers.wire.calls import (
    BLOCKING,
    CALL_HEAD,
    DECOUPLED,
    FINAL,
    RESPONSE_HEAD,
    WAITING,
    OutputSlot,
    describe_tensors,
    join_parts,
    read_tensors,
)
from edge_serve.workers.wire.frames import Frame, FrameKind, frame, parse_json


def encode_call(number: int, call: ModelCall, places: Sequence[int], model: int, token: int) -> bytes:
    """An INFER frame.

    Args:
        places: where each input lies in the caller's arena; -1 = it travels in the frame.

    Raises:
        UnicodeEncodeError: an id, a name or a parameter is no text.
    """
    about = {
        "model": call.model_name,
        "version": int(call.model_version),
        "outputs": list(call.requested_outputs),
        "id": call.id,
        "correlation_id": call.correlation_id if isinstance(call.correlation_id, str) else int(call.correlation_id),
        "flags": int(call.flags),
        "timeout_us": int(call.timeout_us),
        "parameters": dict(call.parameters),
        "names": [tensor.name for tensor in call.inputs],
    }
    if call.trace >= 0:
        about["trace"] = call.trace
    text = json.dumps(about, ensure_ascii=False).encode()  # a model must not send what is no text
    block, data = describe_tensors(call.inputs, places)
    flags = (DECOUPLED if call.decoupled else 0) | (BLOCKING if call.blocking else 0)
    head = CALL_HEAD.pack(model, token, flags, len(text), len(block))
    return frame(FrameKind.INFER, number, join_parts(head, text, block, data), len(call.inputs))


def decode_response(received: Frame, arena: memoryview) -> tuple[Reply, bool]:
    """The response in an INFER_RESPONSE frame, and whether it is the last.

    Args:
        arena: in which the places of outputs count: that of `room_of`.
    """
    _, base, _, flags, text_size, block_size = RESPONSE_HEAD.unpack_from(received.payload)
    start = RESPONSE_HEAD.size + text_size
    about = parse_json(received.payload[RESPONSE_HEAD.size : start])
    final = flags & FINAL != 0
    if "code" in about:
        return Reply(error=_error(about)), final
    outputs = read_tensors(received, about["names"], start, block_size, arena, base)
    return Reply(outputs, None, about["parameters"]), final


def room_of(received: Frame) -> OutputSlot:
    """The slot that the outputs of an INFER_RESPONSE frame lie in."""
    token, offset, nbytes, *_ = RESPONSE_HEAD.unpack_from(received.payload)
    return OutputSlot(token, offset, nbytes)


def _error(about: dict[str, Any]) -> EdgeServeError:
    return BY_TRITON_CODE.get(about["code"], Internal)(about["text"])


def encode_rest(waiting: Sequence[tuple[int, int]]) -> bytes:
    """An INFER_REST frame: calls that are waited for, and how many responses to each have arrived."""
    return frame(FrameKind.INFER_REST, 0, b"".join([WAITING.pack(number, seen) for number, seen in waiting]))
