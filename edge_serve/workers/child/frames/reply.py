"""Writes REPLY and PARTIAL frames: the replies to a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.errors import Internal, triton_code
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.wire.batch import (
    ANSWER,
    ANSWERED,
    FINAL,
    NULL,
    PARTIAL_HEAD,
    REPLY_HEAD,
    RESCHEDULED,
)
from edge_serve.workers.wire.frames import HEADER, VERSION, FrameKind
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, INLINE, PAD, TENSOR, UNNAMED, TensorLayout, padded

_REPLY, _PARTIAL = FrameKind.REPLY.value, FrameKind.PARTIAL.value


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
