"""REPLY and PARTIAL frames: what a batch came to, as the worker writes and the front end reads it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.errors import BY_TRITON_CODE, Internal, triton_code
from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import InferTensor
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.memory.shared_request import insert_stored
from edge_serve.workers.wire.frames import HEADER, VERSION, FrameError, FrameKind, parse_json
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, INLINE, PAD, TENSOR, UNNAMED, TensorLayout, padded

REPLY_HEAD = struct.Struct("<qqqqII")  # four time marks, token of the output slot, bytes of the part before the data
PARTIAL_HEAD = struct.Struct("<IIII")  # the request's index, FINAL | NULL, token, bytes of the part before the data
# 0, or 1 + Triton's error code | ANSWERED, or RESCHEDULED; extra bytes, block bytes, its data's start
ANSWER = struct.Struct("<IIII")

#: of a PARTIAL: the last one of its request; it is no response, only tells that none follows
FINAL, NULL = 1, 2
#: of an ANSWER: the error is the model's own answer (`Reply.answered`)
ANSWERED = 0x100
#: in place of an ANSWER's error: no answer yet (`Reply.rescheduled`)
RESCHEDULED = 0x200

_REPLY, _PARTIAL = FrameKind.REPLY.value, FrameKind.PARTIAL.value
_PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(slots=True)
class BatchReply:
    """What a batch came to. Times are CLOCK_MONOTONIC nanoseconds, marked by the worker.

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


class OutputRoom:
    """Where large outputs of one frame go: the slot that came with the batch, or one that is asked for.

    Args:
        need: asks the front end for a larger slot; answers (token, offset, capacity).
    """

    __slots__ = ("_arena", "_need", "capacity", "offset", "token")

    def __init__(
        self, arena: memoryview, offset: int, capacity: int, need: Callable[[int], tuple[int, int, int]]
    ) -> None:
        self._arena = arena
        self._need = need
        self.token = 0
        self.offset = offset
        self.capacity = capacity

    def reserve(self, nbytes: int) -> None:
        """Make sure that `nbytes` fit.

        Raises:
            Unavailable: the front end has no memory for them.
        """
        if nbytes > self.capacity:
            self.token, self.offset, self.capacity = self._need(nbytes)

    def put(self, data: Any) -> int:
        """Copy `data` in; where it starts."""
        start = self.offset
        size = len(data)
        self._arena[start : start + size] = data
        step = padded(size)
        self.offset += step
        self.capacity -= step
        return start


def large_bytes(replies: Sequence[Reply], wanted: Sequence[Sequence[str] | None]) -> int:
    """Room that the replies above INLINE need in a slot."""
    total = 0
    for reply, names in zip(replies, wanted, strict=True):
        sizes = [len(t.data) for t in reply.outputs if names is None or t.name in names]
        if sum(sizes) > INLINE:
            total += sum(padded(size) for size in sizes)
    return total


def encode_answers(
    layout: TensorLayout,
    replies: Sequence[Reply],
    wanted: Sequence[Sequence[str] | None],
    room: OutputRoom,
    mismatches: Mismatches | None = None,
    rows: Sequence[int] | None = None,
) -> tuple[list[Any], int, list[Any], int]:
    """(parts, bytes of them, data, bytes of it) of replies.

    Args:
        wanted: the outputs that each request asked for; None = all.
        mismatches: reports outputs that differ from the configuration.
        rows: the batch dimension of each request; None = unknown.

    Raises:
        Unavailable: there is no memory for the large outputs.
    """
    parts: list[Any] = [b""]
    data: list[Any] = []
    position = 0
    index_of = layout.output_index
    known = mismatches.known if mismatches is not None else ()
    reserved = False
    for number, (reply, names) in enumerate(zip(replies, wanted, strict=True)):
        if reply.error is not None:
            text = reply.error.message.encode(errors="replace")
            code = 1 + triton_code(reply.error)
            parts.append(ANSWER.pack(code | ANSWERED if reply.answered else code, len(text), 0, 0))
            parts.append(text)
            continue
        if reply.rescheduled:
            parts.append(ANSWER.pack(RESCHEDULED, 0, 0, 0))
            continue
        outputs = reply.outputs
        if names is not None:
            outputs = [tensor for tensor in outputs if tensor.name in names]
        total = 0
        for tensor in outputs:
            total += len(tensor.data)
        if total > INLINE and not reserved:
            room.reserve(large_bytes(replies, wanted))
            reserved = True
        base, unnamed = position, []
        block = b""
        for tensor in outputs:
            shape, size, datatype = tensor.shape, len(tensor.data), tensor.datatype
            if datatype.size and prod(shape) * datatype.size != size:
                raise Internal(f"output '{tensor.name}' has {size} bytes, which is not {datatype.name} {list(shape)}")
            if total > INLINE:
                place, where = IN_ARENA, room.put(tensor.data)
            else:
                place, where = IN_FRAME, position - base
                data.append(tensor.data)
                position += size
                if size & 15:
                    data.append(PAD[size & 15 :])
                    position += 16 - (size & 15)
            index = index_of.get(tensor.name, UNNAMED)
            if index == UNNAMED:
                unnamed.append(tensor.name)
            rank = len(shape)
            block += TENSOR[rank].pack(rank, datatype._value_, index, place, where, size, *shape)
        if mismatches is not None:
            described = (block, 0 if rows is None else rows[number], -1 if names is None else len(names))
            if described not in known or reply.dropped:
                mismatches.look(described, reply, outputs, names)
        extra = b""
        if reply.parameters or unnamed or reply.personal or reply.stored:
            told = {"parameters": reply.parameters, "names": unnamed, "personal": reply.personal}
            if reply.stored:
                told["stored"] = reply.stored
            extra = json.dumps(told).encode()
        parts.append(ANSWER.pack(0, len(extra), len(block), base))
        parts.append(extra + block)
    return parts, sum(map(len, parts)), data, position


def encode_reply(
    layout: TensorLayout,
    batch_id: int,
    replies: Sequence[Reply],
    wanted: Sequence[Sequence[str] | None],
    room: OutputRoom,
    marks: tuple[int, int, int],
    clock: Callable[[], int],
    mismatches: Mismatches | None = None,
    rows: Sequence[int] | None = None,
) -> bytes:
    """A REPLY frame; `marks` are start, inputs ready, outputs ready, and the end is now. Others as `encode_answers`.

    Raises:
        Unavailable: there is no memory for the large outputs.
        Exception: a backend returned what is no tensor.
    """
    parts, meta, data, size = encode_answers(layout, replies, wanted, room, mismatches, rows)
    head = HEADER.pack(REPLY_HEAD.size + meta + size, VERSION, _REPLY, len(replies), batch_id)
    parts[0] = head + REPLY_HEAD.pack(*marks, clock(), room.token, meta)
    parts += data
    return b"".join(parts)


def encode_partial(
    layout: TensorLayout,
    batch_id: int,
    index: int,
    reply: Reply | None,
    final: bool,
    wanted: Sequence[str] | None,
    room: OutputRoom,
    mismatches: Mismatches | None = None,
) -> bytes:
    """A PARTIAL frame; without a `reply` it only tells that none follows.

    Raises:
        Unavailable: there is no memory for large outputs.
        Exception: a backend returned what is no tensor.
    """
    replies, mismatches = ([Reply()], None) if reply is None else ([reply], mismatches)
    parts, meta, data, size = encode_answers(layout, replies, [wanted], room, mismatches)
    head = HEADER.pack(PARTIAL_HEAD.size + meta + size, VERSION, _PARTIAL, 1, batch_id)
    flags = (FINAL if final else 0) | (NULL if reply is None else 0)
    parts[0] = head + PARTIAL_HEAD.pack(index, flags, room.token, meta)
    parts += data
    return b"".join(parts)


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
