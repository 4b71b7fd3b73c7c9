"""Writes EXECUTE frames and reads REPLY and PARTIAL frames: batches for one instance, and their replies."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.errors import BY_TRITON_CODE
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, InferRequest, Lease
from edge_serve.messages.tensors import BY_NUMBER, ZEROS, InferTensor, Unseen, element_count
from edge_serve.records import slotted
from edge_serve.workers.wire.frames import (
    ANSWER,
    ANSWERED,
    EXECUTE_HEAD,
    HEADER,
    HEADER_SIZE,
    REQUEST,
    RESCHEDULED,
    VERSION,
    FrameError,
    FrameKind,
    parse_json,
)
from edge_serve.workers.wire.layout import (
    IN_ARENA,
    IN_FRAME,
    IN_NO_MEMORY,
    NAMES_IN_EXTRA,
    OFFSET_MASK,
    PAD,
    TENSOR,
    TensorLayout,
)

_EXECUTE = FrameKind.EXECUTE.value

_EXECUTE_EACH = FrameKind.EXECUTE_EACH.value


def loose_bytes(inputs: list[InferTensor]) -> int:
    """Return the bytes of the inputs that are in no place that a frame can name."""
    total = 0
    for tensor in inputs:
        if tensor.offset == -1:
            total += len(tensor.data)
    return total


def encode_execute(
    layout: TensorLayout,
    batch_id: int,
    requests: Sequence[InferRequest],
    slot_offset: int,
    slot_capacity: int,
    each: bool = False,
    poll_us: int = 0,
) -> bytes:
    """Return an EXECUTE frame, or an EXECUTE_EACH frame.

    Raises:
        struct.error: a number does not fit its field.
        KeyError: an input is not in the configuration.
    """
    parts: list[Any] = [b""]
    data: list[Any] = []
    position = 0
    index_of, structs = layout.input_index, TENSOR
    null: list[bytes] = []
    for request in requests:
        if null and request.sequence_slot == NULL_SEQUENCE_SLOT:  # the requests that fill rows of a batch are equal
            parts += null
            continue
        extra, block, base = b"", b"", position
        mask = _mask(layout, request) if request.outputs else 0
        correlation = request.correlation_id
        if mask == NAMES_IN_EXTRA or request.parameters or request.shared or type(correlation) is not int:
            extra = _extra(request, mask == NAMES_IN_EXTRA)
        request_id = request.id.encode() if request.id else b""
        for tensor in request.inputs:
            shape, size = tensor.shape, len(tensor.data)
            rank = len(shape)
            if tensor.offset != -1:
                place, where = (IN_NO_MEMORY, 0) if tensor.offset == ZEROS else (IN_ARENA, tensor.offset)
            else:
                place, where = IN_FRAME, position - base
                data.append(tensor.data)
                position += size
                if size & 15:
                    data.append(PAD[size & 15 :])
                    position += 16 - (size & 15)
            number, index = tensor.datatype._value_, index_of[tensor.name]
            block += structs[rank].pack(rank, number, index, place, where, size, *shape)
        head = REQUEST.pack(
            mask, correlation if type(correlation) is int else 0, request.priority, request.timeout_us,
            request.deadline_ns, request.flags, len(request_id), len(extra), len(block), base, request.sequence_slot,
        )  # fmt: skip
        parts.append(head)
        if request_id or extra:
            parts += (request_id, extra)
        parts.append(block)
        if request.sequence_slot == NULL_SEQUENCE_SLOT:
            null = parts[-2:]
    meta = sum(map(len, parts))
    pad = -(HEADER_SIZE + EXECUTE_HEAD.size + meta) & 15
    length = EXECUTE_HEAD.size + meta + pad + position
    header = HEADER.pack(length, VERSION, _EXECUTE_EACH if each else _EXECUTE, len(requests), batch_id)
    parts[0] = header + EXECUTE_HEAD.pack(slot_offset, slot_capacity, meta + pad, poll_us)
    return b"".join([*parts, PAD[:pad], *data])


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


def places_of(request: InferRequest) -> list[list[Any]]:
    """Return the outputs that go to clients' memory, as in an EXECUTE frame: name, place, size, the client's name."""
    return [
        [output.name, output.place.offset, output.place.size, output.place.label or output.name]
        for output in request.outputs
        if output.place is not None
    ]


_PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError)


@slotted
class BatchReply:
    """The replies to a batch. Times are CLOCK_MONOTONIC nanoseconds, marked by the worker.

    Attributes:
        replies: one for each request, in order.
        lease: the slot that large outputs are views of; the receiver releases it when the last byte is sent.
        each: the requests were executed one after the other; the marks are of all of them together.
        last: its worker is dead, and `on_lost` follows: the instance is not idle.
        unsent: positions of the requests that were not sent to the worker.
        left: seconds that the streams of a decoupled model have left of its `execution_timeout_ms`.
        time: returns the time by which these run; None = that of the loop.
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
    unsent: Collection[int] = ()
    left: float = 0.0
    time: Callable[[], float] | None = None


def decode_answers(
    layout: TensorLayout, frame: bytes | bytearray, position: int, meta: int, count: int, slot: Lease | None
) -> tuple[list[Reply], bool]:
    """Return the replies in a frame, and whether any of their tensors lies in `slot`. Every number is checked.

    Raises:
        FrameError: the worker wrote something else.
    """
    try:
        return _read_answers(layout, frame, position, meta, count, slot)
    except _PARSE_ERRORS as error:
        raise FrameError(f"replies cannot be read: {type(error).__name__}: {error}") from error


def _read_answers(
    layout: TensorLayout, frame: bytes | bytearray, position: int, meta: int, count: int, slot: Lease | None
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
            elif slot is not None and where + size <= len(slot.view):
                in_slot = True
                outputs.append(InferTensor(name, datatype, shape, slot.view[where : where + size], slot.offset + where))
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
