"""Reads EXECUTE frames: a batch of requests for this instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from edge_serve.backends.base import BackendRequest, Reply
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import NULL_SEAT, Parameter
from edge_serve.messages.tensors import DataType, InferTensor, Shape
from edge_serve.workers.child.cancellations import cancel_key
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.memory.shared_request import SharedRequest, zeros
from edge_serve.workers.wire.batch import EXECUTE_HEAD, REQUEST
from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE, FrameKind, parse_json
from edge_serve.workers.wire.layout import IN_FRAME, NAMES_IN_EXTRA, OFFSET_BITS, Described, TensorLayout

_EXECUTE_EACH = FrameKind.EXECUTE_EACH.value


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
        mask, correlation, priority, timeout_us, deadline, flags, id_size, extra_size, block_size, base, seat = fields
        request_id, shared = "", None
        parameters: dict[str, Parameter] = {}
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
        block = bytes(view[position : position + block_size])
        position += block_size
        inputs, shared = _read_inputs(read(block), base + data_start, view, arena, shared, borrowed)
        if shared is not None:
            all_shared[i] = shared
        deadlines.append(deadline)
        if seat == NULL_SEAT:
            names, mask, seat = (), NAMES_IN_EXTRA, -1
        wanted.append(names if mask else None)
        request = BackendRequest(
            request_id, inputs, names, parameters, correlation, flags, priority, timeout_us,
            partial(is_cancelled, cancel_key(batch_id, i)), seat=seat,
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
    arena: memoryview,
    shared: SharedRequest | None,
    borrowed: ArenaImports | None,
) -> tuple[list[InferTensor], SharedRequest | None]:
    """Return the inputs of one request and `shared`; if an input's arena did not arrive, one with that error."""
    inputs: list[InferTensor] = []
    missing: EdgeServeError | None = None
    for name, datatype, shape, place, where, size in described:
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
    return inputs, shared


def _lent(name: str, datatype: DataType, shape: Shape, data: memoryview, where: int) -> InferTensor:
    """The same of another model's memory; it has no place in the model's own arena."""
    unaligned = datatype.size > 1 and where % datatype.size
    return InferTensor(name, datatype, shape, bytearray(data) if unaligned else data)


def _in_arena(name: str, datatype: DataType, shape: Shape, arena: memoryview, where: int, size: int) -> InferTensor:
    """A view, or a copy of what is not aligned: a binary tensor starts anywhere in a body."""
    if datatype.size > 1 and where % datatype.size:
        return InferTensor(name, datatype, shape, bytearray(arena[where : where + size]))
    return InferTensor(name, datatype, shape, arena[where : where + size], where)
