"""Reads REPLY and PARTIAL frames: the replies to a batch."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.errors import BY_TRITON_CODE
from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import (
    BY_NUMBER,
    InferTensor,
    Unseen,
    element_count,
)
from edge_serve.workers.wire.batch import (
    ANSWER,
    ANSWERED,
    RESCHEDULED,
)
from edge_serve.workers.wire.frames import FrameError, parse_json
from edge_serve.workers.wire.layout import (
    IN_FRAME,
    OFFSET_MASK,
    TensorLayout,
)

_PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(slots=True)
class BatchReply:
    """The replies to a batch. Times are CLOCK_MONOTONIC nanoseconds, marked by the worker.

    Attributes:
        replies: one for each request, in order.
        lease: the slot that large outputs are views of; the receiver releases it when the last byte is sent.
        each: the requests were executed one after the other; the marks are of all of them together.
        last: its worker is dead, and `on_lost` follows: the instance is not idle.
    """

    batch_id: int
    compute_start_ns: int
    input_end_ns: int
    output_start_ns: int
    end_ns: int
    replies: list[Reply]
    lease: Lease | None = None
    each: bool = False
    last: bool = False


def decode_answers(
    layout: TensorLayout,
    frame: bytes | bytearray,
    position: int,
    meta: int,
    count: int,
    slot: Lease | None,
    capacity: int,
) -> tuple[list[Reply], bool]:
    """The replies in a frame, and whether any of their tensors lies in `slot`. Every number is checked.

    Raises:
        FrameError: the worker wrote something else.
    """
    try:
        return _read_answers(layout, frame, position, meta, count, slot, capacity)
    except _PARSE_ERRORS as error:
        raise FrameError(f"replies cannot be read: {type(error).__name__}: {error}") from error


def _read_answers(
    layout: TensorLayout,
    frame: bytes | bytearray,
    position: int,
    meta: int,
    count: int,
    slot: Lease | None,
    capacity: int,
) -> tuple[list[Reply], bool]:
    data_start = position + meta
    view = memoryview(frame)
    replies: list[Reply] = []
    in_slot = False
    read = layout.output_blocks.read
    for _ in range(count):
        failed, extra_size, block_size, base = ANSWER.unpack_from(frame, position)
        position += ANSWER.size
        extra = frame[position : position + extra_size] if extra_size else b""
        position += extra_size
        if failed == RESCHEDULED:
            replies.append(Reply(rescheduled=True))
            continue
        if failed:
            error = BY_TRITON_CODE[(failed & ~ANSWERED) - 1](extra.decode())
            replies.append(Reply([], error, answered=failed & ANSWERED != 0))
            continue
        if not block_size and not extra_size:  # a null request's, above all
            replies.append(Reply())
            continue
        parameters, unnamed, personal, stored = _answer_extra(extra) if extra else ({}, [], False, None)
        described = read(bytes(frame[position : position + block_size]))
        position += block_size
        base += data_start
        outputs: list[InferTensor] = []
        for name, datatype, shape, place, where, size in described:
            if name is None:
                name = unnamed.pop(0)
            if place == IN_FRAME:
                where += base
                data = view[where : where + size]
                if len(data) != size:
                    raise FrameError(f"output '{name}' is cut off")
                outputs.append(InferTensor(name, datatype, shape, data))
            elif slot is not None and slot.offset <= where and where + size <= slot.offset + capacity:
                in_slot = True
                data = slot.view[where - slot.offset : where - slot.offset + size]
                outputs.append(InferTensor(name, datatype, shape, data, where))
            else:
                raise FrameError(f"output '{name}' lies outside its slot")
        if stored is not None:
            insert_stored(outputs, stored)
        replies.append(Reply(outputs, None, parameters, personal=personal))
    return replies, in_slot


def _is_parameter(value: object) -> bool:
    return isinstance(value, (str, float)) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64)


def _answer_extra(extra: bytes | bytearray) -> tuple[dict[str, Any], list[str], bool, Any]:
    value = parse_json(extra)
    parameters, names = value["parameters"], value["names"]
    if not isinstance(parameters, dict) or not all(isinstance(name, str) for name in names):
        raise FrameError("a reply's parameters or names are of another type")
    if not all(map(_is_parameter, parameters.values())):
        raise FrameError("a reply's parameters are not all strings, booleans, numbers or integers of 64 bits")
    return parameters, list(names), value["personal"] is True, value.get("stored")


def insert_stored(outputs: list[InferTensor], stored: Any) -> None:
    """Put the outputs that a worker has written to clients' memory among the others of its reply.

    Raises:
        FrameError: the worker wrote something else.
    """
    for position, name, number, shape, size in stored:
        datatype = BY_NUMBER[number]
        dims = tuple(shape)
        good = type(name) is str and type(size) is int and all(type(dim) is int and dim >= 0 for dim in dims)
        if not good or not 0 <= size <= OFFSET_MASK or (datatype.size and element_count(dims) * datatype.size != size):
            raise FrameError(f"output '{name}' was not stored as {datatype.name} {list(dims)}")
        outputs.insert(position, InferTensor(name, datatype, dims, Unseen.buffer(size)))
