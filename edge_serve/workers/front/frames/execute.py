"""Writes EXECUTE frames: a batch of requests for one instance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edge_serve.messages.infer import NULL_SEAT, InferRequest
from edge_serve.workers.wire.batch import EXECUTE_HEAD, REQUEST
from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE, VERSION, FrameKind
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, NAMES_IN_EXTRA, PAD, TENSOR, TensorLayout

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
        if null and request.seat == NULL_SEAT:  # the requests that fill rows of a batch are equal
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
            if tensor.offset >= 0:
                place, where = IN_ARENA, tensor.offset
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
            request.deadline_ns, request.flags, len(request_id), len(extra), len(block), base, request.seat,
        )  # fmt: skip
        parts.append(head)
        if request_id or extra:
            parts += (request_id, extra)
        parts.append(block)
        if request.seat == NULL_SEAT:
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
    """For the EXECUTE frame: the outputs that go to clients' memory: name, place, size, the client's name."""
    return [
        [output.name, output.place.offset, output.place.size, output.place.label or output.name]
        for output in request.outputs
        if output.place is not None
    ]
