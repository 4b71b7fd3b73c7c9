"""EXECUTE frames: a batch of requests, as the front end writes and the worker reads it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge_serve.backends.base import BackendRequest, Reply
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import NULL_SEAT, InferRequest, Parameter
from edge_serve.messages.tensors import DataType, InferTensor, Shape
from edge_serve.workers.child.cancellations import cancel_key
from edge_serve.workers.memory.shared_arenas import OFFSET_BITS, ArenaImports
from edge_serve.workers.memory.shared_request import SharedRequest, places_of, zeros
from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE, VERSION, FrameKind, parse_json
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, NAMES_IN_EXTRA, PAD, TENSOR, TensorLayout

# mask of the listed outputs (0 = all), correlation id, priority, timeout us, deadline ns; flags, id bytes, extra bytes,
# block bytes, where its data starts, seat of its sequence
REQUEST = struct.Struct("<QQQQQIIIIIi")
# output slot: offset, capacity; bytes of the part before the data; us to poll for the next frame before sleeping
EXECUTE_HEAD = struct.Struct("<QQII")

_EXECUTE = FrameKind.EXECUTE.value
_EXECUTE_EACH = FrameKind.EXECUTE_EACH.value


def encode_execute(
    layout: TensorLayout,
    batch_id: int,
    requests: Sequence[InferRequest],
    slot_offset: int,
    slot_capacity: int,
    each: bool = False,
    poll_us: int = 0,
) -> bytes:
    """An EXECUTE frame, or an EXECUTE_EACH frame.

    Raises:
        struct.error: a number does not fit its field.
        KeyError: an input is not in the configuration.
    """
    parts: list[Any] = [b""]
    data: list[Any] = []
    position = 0
    index_of = layout.input_index
    structs = TENSOR
    null: list[bytes] = []
    for request in requests:
        if null and request.seat == NULL_SEAT:  # all that fill rows of a batch are the same
            parts += null
            continue
        mask, extra, block, base = 0, b"", b"", position
        if request.outputs:
            mask = _mask(layout, request)
        correlation = request.correlation_id
        if mask == NAMES_IN_EXTRA or request.parameters or request.shared or type(correlation) is not int:
            extra = _extra(request, mask == NAMES_IN_EXTRA)
        request_id = request.id.encode() if request.id else b""
        for tensor in request.inputs:
            shape = tensor.shape
            rank = len(shape)
            size = len(tensor.data)
            if tensor.offset >= 0:
                place, where = IN_ARENA, tensor.offset
            else:
                place, where = IN_FRAME, position - base
                data.append(tensor.data)
                position += size
                if size & 15:
                    data.append(PAD[size & 15 :])
                    position += 16 - (size & 15)
            block += structs[rank].pack(
                rank, tensor.datatype._value_, index_of[tensor.name], place, where, size, *shape
            )
        parts.append(
            REQUEST.pack(
                mask,
                correlation if type(correlation) is int else 0,
                request.priority,
                request.timeout_us,
                request.deadline_ns,
                request.flags,
                len(request_id),
                len(extra),
                len(block),
                base,
                request.seat,
            )
        )
        if request_id or extra:
            parts.append(request_id)
            parts.append(extra)
        parts.append(block)
        if request.seat == NULL_SEAT:
            null = parts[-2:]
    meta = sum(map(len, parts))
    pad = -(HEADER_SIZE + EXECUTE_HEAD.size + meta) & 15
    length = EXECUTE_HEAD.size + meta + pad + position
    parts[0] = HEADER.pack(
        length, VERSION, _EXECUTE_EACH if each else _EXECUTE, len(requests), batch_id
    ) + EXECUTE_HEAD.pack(slot_offset, slot_capacity, meta + pad, poll_us)
    if pad:
        parts.append(PAD[:pad])
    parts += data
    return b"".join(parts)


def _mask(layout: TensorLayout, request: InferRequest) -> int:
    mask = 0
    for wanted in request.outputs:
        bit = layout.output_bit.get(wanted.name)
        if bit is None:
            return NAMES_IN_EXTRA
        mask |= bit
    return mask


def _extra(request: InferRequest, list_outputs: bool) -> bytes:
    extra: dict[str, Any] = {}
    if request.parameters:
        extra["parameters"] = request.parameters
    if not isinstance(request.correlation_id, int):
        extra["correlation_id"] = request.correlation_id
    if list_outputs:
        extra["outputs"] = [wanted.name for wanted in request.outputs]
    if request.shared:
        extra["shared"] = {"model": request.model_name, "outputs": places_of(request)}
    return json.dumps(extra).encode()


@dataclass(slots=True)
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
    arena: memoryview,
    cancelled: set[int],
    send: Callable[[int, int, Reply | None, bool], None] | None = None,
    borrowed: ArenaImports | None = None,
) -> Batch:
    """The batch in a whole EXECUTE frame, which must start on 16 bytes; tensors are views of it or of the arena.

    Args:
        cancelled: `cancel_key`s of requests whose clients have gone.
        send: for decoupled models: batch id, index, reply, final.
        borrowed: memory of other models.

    A request whose inputs lie in memory that has not come is among the `shared` ones, with an error.
    """
    _, _, kind, count, batch_id = HEADER.unpack_from(frame, 0)
    slot_offset, slot_capacity, meta, poll_us = EXECUTE_HEAD.unpack_from(frame, HEADER_SIZE)
    position = HEADER_SIZE + EXECUTE_HEAD.size
    data_start = position + meta
    view = memoryview(frame)
    requests: list[BackendRequest] = []
    deadlines: list[int] = []
    wanted: list[Sequence[str] | None] = []
    any_deadline = False
    all_shared: dict[int, SharedRequest] | None = None
    is_cancelled = cancelled.__contains__
    read = layout.input_blocks.read
    for i in range(count):
        fields = REQUEST.unpack_from(frame, position)
        mask, correlation, priority, timeout_us, deadline, flags, id_size, extra_size, block_size, base, seat = fields
        position += REQUEST.size
        request_id = ""
        parameters: dict[str, Parameter] = {}
        shared: SharedRequest | None = None
        names: Sequence[str] = layout.listed.get(mask) or layout.names_of(mask & ~NAMES_IN_EXTRA)
        if id_size:
            request_id = frame[position : position + id_size].decode()
            position += id_size
        if extra_size:
            extra = parse_json(frame[position : position + extra_size])
            position += extra_size
            parameters = extra.get("parameters", parameters)
            correlation = extra.get("correlation_id", correlation)
            names = extra.get("outputs", names)
            if "shared" in extra and borrowed is not None:
                shared = SharedRequest(borrowed, request_id, extra["shared"], layout.writes)
                all_shared = all_shared or {}
                all_shared[i] = shared
        block = bytes(view[position : position + block_size])
        position += block_size
        base += data_start
        inputs: list[InferTensor] = []
        missing: EdgeServeError | None = None
        for name, datatype, shape, place, where, size in read(block):
            if place == IN_FRAME:
                where += base
                inputs.append(InferTensor(name or "", datatype, shape, view[where : where + size]))
            elif shared is not None and (region := shared.region(where)) is not None:
                inputs.append(shared.input(region, name or "", datatype, shape, where, size))
            elif where >> OFFSET_BITS and borrowed is not None:
                try:
                    inputs.append(_lent(name or "", datatype, shape, borrowed.at(where, size), where))
                except EdgeServeError as error:
                    missing = error
                    inputs.append(InferTensor(name or "", datatype, shape, zeros(datatype, shape)))
            else:
                inputs.append(_in_arena(name or "", datatype, shape, arena, where, size))
        if missing is not None and borrowed is not None:
            shared = shared or SharedRequest.of_lent(borrowed)
            shared.error = shared.error or missing
            all_shared = {**(all_shared or {}), i: shared}
        any_deadline = any_deadline or deadline != 0
        deadlines.append(deadline)
        if seat == NULL_SEAT:
            names, seat = (), -1
            wanted.append(names)
        else:
            wanted.append(names if mask else None)
        request = BackendRequest(
            request_id,
            inputs,
            names,
            parameters,
            correlation,
            flags,
            priority,
            timeout_us,
            partial(is_cancelled, cancel_key(batch_id, i)),
            seat=seat,
        )
        if send is not None:
            request.send = partial(send, batch_id, i)
            if shared is not None:
                request.send = partial(shared.send, request.send)
        requests.append(request)
    if not any_deadline:
        deadlines = []
    each = kind == _EXECUTE_EACH
    return Batch(batch_id, requests, deadlines, wanted, slot_offset, slot_capacity, each, poll_us, all_shared)


def _lent(name: str, datatype: DataType, shape: Shape, data: memoryview, where: int) -> InferTensor:
    """The same of another model's memory; it has no place in the model's own arena."""
    unaligned = datatype.size > 1 and where % datatype.size
    return InferTensor(name, datatype, shape, bytearray(data) if unaligned else data)


def _in_arena(name: str, datatype: DataType, shape: Shape, arena: memoryview, where: int, size: int) -> InferTensor:
    """A view, or a copy of what is not aligned: a binary tensor starts anywhere in a body."""
    if datatype.size > 1 and where % datatype.size:
        return InferTensor(name, datatype, shape, bytearray(arena[where : where + size]))
    return InferTensor(name, datatype, shape, arena[where : where + size], where)
