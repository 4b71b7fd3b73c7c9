"""Structs and tensors of INFER and INFER_RESPONSE frames: a model calls another model.

Tensors are described as on the data path (`layout`), but named in the frame: the caller does not know the called
model's configuration. A tensor lies in the frame's data part or in the arena of the calling model.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from edge_serve.messages.tensors import InferTensor
from edge_serve.records import slotted
from edge_serve.workers.wire.frames import Frame, FrameError
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, PAD, TENSOR, parse_block

#: number of the calling model (0: it has no arena), token of the slot that holds inputs, flags, JSON and block bytes
CALL_HEAD = struct.Struct("<IIIII")

#: token of the slot that holds outputs, where that is and its bytes, flags, JSON and block bytes
RESPONSE_HEAD = struct.Struct("<IQQIII")


#: of an INFER: the caller takes any number of responses; its instance does nothing else until it is answered
DECOUPLED, BLOCKING = 1, 2

#: of an INFER_RESPONSE: the last one
FINAL = 1


#: in an INFER_REST: number of a call, how many responses to it have arrived
WAITING = struct.Struct("<QQ")

_ALIGNMENT = 16

PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError, TypeError)


@slotted
class OutputSlot:
    """A slot that holds outputs, as an INFER_RESPONSE frame names it; all 0 = none."""

    token: int = 0
    offset: int = 0
    nbytes: int = 0


def describe_tensors(tensors: Sequence[InferTensor], places: Sequence[int]) -> tuple[bytes, list[Any]]:
    """Return the block that describes the tensors, and the data of those that travel in the frame."""
    block, data, position = b"", [], 0
    for index, (tensor, where) in enumerate(zip(tensors, places, strict=True)):
        size, place = len(tensor.data), IN_ARENA
        if where < 0:
            place, where = IN_FRAME, position
            data.append(tensor.data)
            data.append(PAD[: -size % _ALIGNMENT])
            position += size + -size % _ALIGNMENT
        rank = len(tensor.shape)
        block += TENSOR[rank].pack(rank, tensor.datatype.value, index, place, where, size, *tensor.shape)
    return block, data


def join_parts(head: bytes, text: bytes, block: bytes, data: list[Any]) -> bytes:
    pad = PAD[: -(len(head) + len(text) + len(block)) % _ALIGNMENT]
    return b"".join([head, text, block, pad, *data])


def read_tensors(
    received: Frame, names: list[str], start: int, block_size: int, arena: memoryview, base: int = 0
) -> list[InferTensor]:
    payload = memoryview(received.payload)
    if len(names) != received.count or not all(type(name) is str for name in names):
        raise FrameError(f"found {len(names)} names of {received.count} tensors")
    end = start + block_size
    data = end + -end % _ALIGNMENT
    described = parse_block(bytes(payload[start:end]), names)
    if len(described) != len(names):
        raise FrameError(f"found {len(names)} names of {len(described)} tensors")
    tensors = []
    for name, (_, (_, datatype, shape, place, where, size)) in zip(names, described, strict=True):
        if place == IN_FRAME:
            body, offset = payload[data + where : data + where + size], -1
        else:
            body, offset = arena[where - base : where - base + size], where
        if len(body) != size or where < base * (place == IN_ARENA):
            raise FrameError(f"tensor '{name}' is cut off")
        tensors.append(InferTensor(name, datatype, shape, body, offset))
    return tensors
