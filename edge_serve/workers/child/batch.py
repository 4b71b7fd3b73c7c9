"""Reads EXECUTE frames and writes REPLY and PARTIAL frames: batches for this instance, and their replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, Reply
from edge_serve.errors import EdgeServeError, Internal, Unavailable, triton_code
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, Parameter
from edge_serve.messages.tensors import INLINE_BYTES, DataType, InferTensor, Shape, zero_data
from edge_serve.records import slotted
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.memory.input_arena import InputArena
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.child.memory.shared_request import SharedRequest
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.wire.frames import (
    ANSWER,
    ANSWERED,
    EXECUTE_HEAD,
    FINAL,
    HEADER,
    HEADER_SIZE,
    NULL,
    PARTIAL_HEAD,
    REPLY_HEAD,
    REQUEST,
    RESCHEDULED,
    VERSION,
    FrameKind,
    parse_json,
)
from edge_serve.workers.wire.layout import (
    IN_ARENA,
    IN_FRAME,
    IN_NO_MEMORY,
    NAMES_IN_EXTRA,
    OFFSET_BITS,
    PAD,
    TENSOR,
    UNNAMED,
    Described,
    TensorLayout,
)

_EXECUTE_EACH = FrameKind.EXECUTE_EACH.value
#: Triton's words (core src/scheduler_utils.cc)
TIMEOUT_EXPIRED = "Request timeout expired"


def cancel_key(batch_id: int, index: int) -> int:
    """Return the key of a request of a batch in the set of cancelled ones."""
    return (batch_id << 16) | index


@slotted
class Batch:
    """An EXECUTE frame as the worker reads it.

    Attributes:
        deadlines: one for each request, 0 = none; empty when no request has one.
        wanted: the outputs that each request named; None = it named none, and wants all.
        each: its requests are executed one after the other, not together.
        poll_us: for how long its worker may poll for the next one.
        shared: those with tensors in clients' shared memory, and those that cannot be executed, by position; None =
            there are none.
    """

    id: int
    requests: list[BackendRequest]
    deadlines: list[int]
    wanted: list[Sequence[str] | None]
    slot_offset: int
    slot_capacity: int
    each: bool = False
    poll_us: int = 0
    shared: dict[int, SharedRequest] | None = None


def decode_execute(
    layout: TensorLayout,
    frame: bytearray,
    arena: memoryview | InputArena,
    cancelled: set[int],
    send: Callable[[int, int, Reply | None, bool], None] | None = None,
    imports: ArenaImports | None = None,
) -> Batch:
    """Return the batch in a whole EXECUTE frame, which must start on 16 bytes. Tensors are views of it or of the arena.

    Args:
        cancelled: `cancel_key`s of requests whose clients have disconnected.
        send: for decoupled models: batch id, index, reply, final.
    """
    _, _, kind, count, batch_id = HEADER.unpack_from(frame, 0)
    slot_offset, slot_capacity, meta, poll_us = EXECUTE_HEAD.unpack_from(frame, HEADER_SIZE)
    position = HEADER_SIZE + EXECUTE_HEAD.size
    data_start = position + meta
    view = memoryview(frame)
    requests: list[BackendRequest] = []
    deadlines: list[int] = []
    wanted: list[Sequence[str] | None] = []
    all_shared: dict[int, SharedRequest] = {}
    is_cancelled, read = cancelled.__contains__, layout.input_blocks.read
    for i in range(count):
        fields, position = REQUEST.unpack_from(frame, position), position + REQUEST.size
        mask, correlation, priority, timeout_us, deadline, flags, id_size, extra_size, block_size, base, slot = fields
        request_id, shared = "", None
        parameters: dict[str, Parameter] = {}
        names: Sequence[str] = layout.listed.get(mask) or layout.names_of(mask)
        if id_size:
            request_id = frame[position : position + id_size].decode()
            position += id_size
        if extra_size:
            extra = parse_json(frame[position : position + extra_size])
            position += extra_size
            parameters = extra.get("parameters", parameters)
            correlation = extra.get("correlation_id", correlation)
            names = extra.get("outputs", names)
            if "shared" in extra and imports is not None:
                shared = SharedRequest(imports, request_id, extra["shared"], layout.writes, layout.on_device)
        block = bytes(view[position : position + block_size])
        position += block_size
        inputs, shared = _read_inputs(read(block), base + data_start, view, arena, shared, imports)
        if shared is not None:
            all_shared[i] = shared
        deadlines.append(deadline)
        if slot == NULL_SEQUENCE_SLOT:
            names, mask, slot = (), NAMES_IN_EXTRA, -1
        wanted.append(names if mask else None)
        request = BackendRequest(
            request_id, inputs, names, parameters, correlation, flags, priority, timeout_us,
            partial(is_cancelled, cancel_key(batch_id, i)), sequence_slot=slot,
        )  # fmt: skip
        if send is not None:
            sender = partial(send, batch_id, i)
            request.send = sender if shared is None else partial(shared.send, sender)
        requests.append(request)
    each, kept = kind == _EXECUTE_EACH, deadlines if any(deadlines) else []
    return Batch(batch_id, requests, kept, wanted, slot_offset, slot_capacity, each, poll_us, all_shared or None)


def _read_inputs(
    described: list[Described],
    base: int,
    view: memoryview,
    arena: memoryview | InputArena,
    shared: SharedRequest | None,
    imports: ArenaImports | None,
) -> tuple[list[InferTensor], SharedRequest | None]:
    """Return the inputs of one request and `shared`; if an input's arena did not arrive, one with that error."""
    inputs: list[InferTensor] = []
    missing: EdgeServeError | None = None
    for name, datatype, shape, place, where, size in described:
        if place == IN_FRAME:
            where += base
            inputs.append(InferTensor(name or "", datatype, shape, view[where : where + size]))
        elif place == IN_NO_MEMORY:
            inputs.append(InferTensor(name or "", datatype, shape, np.zeros(size, np.uint8).data))
        elif shared is not None and (region := shared.region(where)) is not None:
            inputs.append(shared.input(region, name or "", datatype, shape, where, size))
        elif where >> OFFSET_BITS and imports is not None:
            try:
                inputs.append(_imported(name or "", datatype, shape, imports.at(where, size), where))
            except EdgeServeError as error:
                missing = error
                inputs.append(InferTensor(name or "", datatype, shape, zero_data(datatype, shape)))
        else:
            inputs.append(_in_arena(name or "", datatype, shape, arena, where, size))
    if missing is not None and imports is not None:
        shared = shared or SharedRequest.of_missing(imports)
        shared.error = shared.error or missing
    return inputs, shared


def _imported(name: str, datatype: DataType, shape: Shape, data: memoryview, where: int) -> InferTensor:
    """Return an input in another model's memory, which has no place in the model's own arena."""
    unaligned = datatype.size > 1 and where % datatype.size
    return InferTensor(name, datatype, shape, bytearray(data) if unaligned else data)


def _in_arena(
    name: str, datatype: DataType, shape: Shape, arena: memoryview | InputArena, where: int, size: int
) -> InferTensor:
    """Return an input in the arena as a view, or as a copy if it is not aligned: in a body it starts anywhere."""
    if datatype.size > 1 and where % datatype.size:
        return InferTensor(name, datatype, shape, bytearray(arena[where : where + size]))
    return InferTensor(name, datatype, shape, arena[where : where + size], where)


def in_time(batch: Batch, now_ns: int) -> tuple[list[BackendRequest], set[int]]:
    """Return the requests of a batch that are to be executed, and the positions of the others."""
    requests = batch.requests
    late = {i for i, deadline in enumerate(batch.deadlines) if deadline and deadline <= now_ns}
    if batch.shared is not None:  # `answer` says why
        late |= {i for i, shared in batch.shared.items() if shared.error is not None}
    if late:  # but a row of a sequence stays: the others must not move up, nor the sequence miss a step
        late = {i for i in late if requests[i].sequence_slot < 0}
        requests = [request for i, request in enumerate(requests) if i not in late]
    return requests, late


def with_late(replies: Sequence[Reply], late: Collection[int], count: int) -> list[Reply]:
    """Return the replies of a whole batch, of which those in `late` were not executed."""
    rest = iter(replies)
    return [Reply(error=Unavailable(TIMEOUT_EXPIRED)) if i in late else next(rest) for i in range(count)]


_REPLY, _PARTIAL = FrameKind.REPLY.value, FrameKind.PARTIAL.value


class Answers:
    """Encoded answers to the first requests of a batch, as copies: a model may write its next outputs to the memory of
    these.

    Args:
        count: requests of the batch.

    Attributes:
        room: has the data of large outputs.
        parts: descriptions, and before them an empty part for the head of the frame.
        data: of tensors that lie in the frame; size: their bytes.
    """

    __slots__ = ("_layout", "count", "data", "parts", "room", "size")

    def __init__(self, layout: TensorLayout, room: OutputRoom, count: int) -> None:
        self._layout = layout
        self.room = room
        self.count = count
        self.parts: list[bytes] = [b""]
        self.data: list[bytes] = []
        self.size = 0

    def add(
        self,
        replies: Sequence[Reply],
        wanted: Sequence[Sequence[str] | None],
        mismatches: Mismatches | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Encode replies to the next requests; none of them if there is an error.

        Args:
            wanted: the outputs that each request asked for; None = all.
            mismatches: reports outputs that differ from the configuration.
            rows: the batch dimension of each request; None = unknown.

        Raises:
            Unavailable: there is no memory for the large outputs.
            Exception: a backend returned what is no tensor.
        """
        parts: list[bytes] = []
        data: list[Any] = []
        position, reserved, room = self.size, False, self.room
        index_of, known = self._layout.output_index, mismatches.known if mismatches is not None else ()
        for number, (reply, names) in enumerate(zip(replies, wanted, strict=True)):
            if reply.error is not None or reply.rescheduled:
                parts.append(_without_outputs(reply))
                continue
            outputs = reply.outputs if names is None else [tensor for tensor in reply.outputs if tensor.name in names]
            total = sum([len(tensor.data) for tensor in outputs])
            if total > INLINE_BYTES and not reserved:
                room.reserve(replies, wanted)
                reserved = True
            base, block, unnamed = position, b"", []
            for tensor in outputs:
                shape, size, datatype = tensor.shape, len(tensor.data), tensor.datatype
                if datatype.size and prod(shape) * datatype.size != size:
                    raise Internal(
                        f"output '{tensor.name}' has {size} bytes, which is not {datatype.name} {list(shape)}"
                    )
                if total > INLINE_BYTES:
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
                block += TENSOR[len(shape)].pack(len(shape), datatype._value_, index, place, where, size, *shape)
            if mismatches is not None:
                described = (block, 0 if rows is None else rows[number], -1 if names is None else len(names))
                if described not in known or reply.dropped:
                    mismatches.check(described, reply, outputs, names)
            extra = _extra(reply, unnamed) if reply.parameters or unnamed or reply.personal or reply.stored else b""
            parts += (ANSWER.pack(0, len(extra), len(block), base), extra + block)
        self.data.append(b"".join(data))
        self.parts += parts
        self.size = position


def _without_outputs(reply: Reply) -> bytes:
    """Return an ANSWER for a request that failed, or that has no answer yet."""
    if reply.error is None:
        return ANSWER.pack(RESCHEDULED, 0, 0, 0)
    text, code = reply.error.message.encode(errors="replace"), 1 + triton_code(reply.error)
    return ANSWER.pack(code | ANSWERED if reply.answered else code, len(text), 0, 0) + text


def _extra(reply: Reply, unnamed: list[str]) -> bytes:
    told = {"parameters": reply.parameters, "names": unnamed, "personal": reply.personal}
    if reply.stored:
        told["stored"] = reply.stored
    return json.dumps(told).encode()


def encode_reply(answers: Answers, batch_id: int, marks: tuple[int, int, int], clock: Callable[[], int]) -> bytes:
    """Return a REPLY frame.

    Args:
        marks: start, inputs ready, and outputs ready; the end is now.
    """
    parts = answers.parts
    meta = sum(map(len, parts))
    head = HEADER.pack(REPLY_HEAD.size + meta + answers.size, VERSION, _REPLY, answers.count, batch_id)
    parts[0] = head + REPLY_HEAD.pack(*marks, clock(), answers.room.token, meta)
    return b"".join(parts + answers.data)


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
    """Return a PARTIAL frame; without a `reply` it only says that none follows.

    Raises:
        Unavailable: there is no memory for large outputs.
        Exception: a backend returned what is no tensor.
    """
    replies, mismatches = ([Reply()], None) if reply is None else ([reply], mismatches)
    answers = Answers(layout, room, 1)
    answers.add(replies, [wanted], mismatches)
    parts = answers.parts
    meta = sum(map(len, parts))
    head = HEADER.pack(PARTIAL_HEAD.size + meta + answers.size, VERSION, _PARTIAL, 1, batch_id)
    flags = (FINAL if final else 0) | (NULL if reply is None else 0)
    parts[0] = head + PARTIAL_HEAD.pack(index, flags, room.token, meta)
    return b"".join(parts + answers.data)
