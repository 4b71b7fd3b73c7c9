"""INFER and INFER_RESPONSE frames: a model calls another model, and what it is answered. Both sides read and write.

Tensors are described as on the data path (`layout`), but named in the frame: the caller does not know the called
model's configuration. A tensor lies in the frame's data part or in the arena of the calling model.
Worker's side too: the standard library and NumPy only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.backends.host import ModelCall
from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Internal, triton_code
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import BY_NUMBER, InferTensor, element_count
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, frame, parse_json
from edge_serve.workers.wire.layout import IN_ARENA, IN_FRAME, PAD, TENSOR

#: number of the calling model (0: it has no arena), token of the slot that holds inputs, flags, JSON and block bytes
CALL_HEAD = struct.Struct("<IIIII")
#: token of the slot that holds outputs, where that is and its bytes, flags, JSON and block bytes
RESPONSE_HEAD = struct.Struct("<IQQIII")

#: of an INFER: the caller takes any number of responses; its instance does nothing else until it is answered
DECOUPLED, BLOCKING = 1, 2
#: of an INFER_RESPONSE: the last one
FINAL = 1

#: in an INFER_REST: number of a call, how many responses to it have arrived
_WAITING = struct.Struct("<QQ")
_ALIGNMENT = 16
_PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError, TypeError)


@dataclass(slots=True)
class Question:
    """An INFER frame as the front end reads it.

    Attributes:
        call: its tensors are views of the frame or of the caller's arena.
        model: number of the calling model in its worker; 0 when it has no arena.
        token: of the slot that holds inputs; 0 = none.
    """

    call: ModelCall
    model: int
    token: int


@dataclass(slots=True)
class OutputSlot:
    """A slot that holds outputs, as the caller is told of it; all 0 = none."""

    token: int = 0
    offset: int = 0
    nbytes: int = 0


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
    block, data = _describe(call.inputs, places)
    flags = (DECOUPLED if call.decoupled else 0) | (BLOCKING if call.blocking else 0)
    head = CALL_HEAD.pack(model, token, flags, len(text), len(block))
    return frame(FrameKind.INFER, number, _joined(head, text, block, data), len(call.inputs))


def decode_call(received: Frame, arena_of: Callable[[int], memoryview]) -> Question:
    """The question in an INFER frame. Everything is checked.

    Args:
        arena_of: the arena of the calling model with this number; empty when it has none.

    Raises:
        FrameError: the worker wrote something else.
    """
    try:
        model, token, flags, text_size, block_size = CALL_HEAD.unpack_from(received.payload)
        start = CALL_HEAD.size + text_size
        about = parse_json(received.payload[CALL_HEAD.size : start])
        call = _call(about, flags)
        call.inputs = _tensors(received, about["names"], start, block_size, arena_of(model))
    except _PARSE_ERRORS as error:
        raise FrameError(f"a call cannot be read: {type(error).__name__}: {error}") from error
    return Question(call, model, token)


def _call(about: dict[str, Any], flags: int) -> ModelCall:
    call = ModelCall(
        about["model"], about["version"], [], about["outputs"], about["id"], about["correlation_id"], about["flags"],
        about["timeout_us"], about["parameters"], flags & DECOUPLED != 0, flags & BLOCKING != 0, about.get("trace", -1),
    )  # fmt: skip
    texts: list[object] = [call.model_name, call.id, *call.requested_outputs, *call.parameters]
    numbers: list[object] = [call.model_version, call.flags, call.timeout_us, call.trace]
    if type(call.correlation_id) is not str:
        numbers.append(call.correlation_id)
    if not isinstance(about["outputs"], list) or not isinstance(about["parameters"], dict):
        raise FrameError("a call's outputs or parameters are of another type")
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise FrameError("a call's names or numbers are of another type")
    if not all(isinstance(value, (str, int, float)) for value in call.parameters.values()):
        raise FrameError("a call's parameters are of another type")
    texts += [call.correlation_id, *call.parameters.values()]
    "".join(map(str, texts)).encode()  # raises for what is no text
    if not (0 <= call.flags < 1 << 32 and 0 <= call.timeout_us < 1 << 64):
        raise FrameError("a call's flags or timeout do not fit")
    if isinstance(call.correlation_id, int) and not 0 <= call.correlation_id < 1 << 64:
        raise FrameError("a call's correlation id does not fit")
    return call


def encode_response(number: int, response: InferResponse, places: Sequence[int], room: OutputSlot) -> bytes:
    """An INFER_RESPONSE frame; `places` as for `encode_call`."""
    flags = FINAL if response.final else 0
    error = response.error
    if error is not None:
        text = json.dumps({"code": triton_code(error), "text": error.message}).encode()
        head = RESPONSE_HEAD.pack(0, 0, 0, flags, len(text), 0)
        return frame(FrameKind.INFER_RESPONSE, number, head + text)
    about = {"names": [tensor.name for tensor in response.outputs], "parameters": response.parameters}
    text = json.dumps(about).encode()
    block, data = _describe(response.outputs, places)
    head = RESPONSE_HEAD.pack(room.token, room.offset, room.nbytes, flags, len(text), len(block))
    return frame(FrameKind.INFER_RESPONSE, number, _joined(head, text, block, data), len(response.outputs))


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
    outputs = _tensors(received, about["names"], start, block_size, arena, base)
    return Reply(outputs, None, about["parameters"]), final


def room_of(received: Frame) -> OutputSlot:
    """The slot that the outputs of an INFER_RESPONSE frame lie in."""
    token, offset, nbytes, *_ = RESPONSE_HEAD.unpack_from(received.payload)
    return OutputSlot(token, offset, nbytes)


def _error(about: dict[str, Any]) -> EdgeServeError:
    return BY_TRITON_CODE.get(about["code"], Internal)(about["text"])


def _describe(tensors: Sequence[InferTensor], places: Sequence[int]) -> tuple[bytes, list[Any]]:
    """The block that describes the tensors, and the data of those that travel in the frame."""
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


def _joined(head: bytes, text: bytes, block: bytes, data: list[Any]) -> bytes:
    pad = PAD[: -(len(head) + len(text) + len(block)) % _ALIGNMENT]
    return b"".join([head, text, block, pad, *data])


def _tensors(
    received: Frame, names: list[str], start: int, block_size: int, arena: memoryview, base: int = 0
) -> list[InferTensor]:
    payload = memoryview(received.payload)
    if len(names) != received.count or not all(type(name) is str for name in names):
        raise FrameError(f"found {len(names)} names of {received.count} tensors")
    end = start + block_size
    data = end + -end % _ALIGNMENT
    tensors = []
    for name in names:
        made = TENSOR[payload[start]]
        _, number, _, place, where, size, *dims = made.unpack_from(payload, start)
        start += made.size
        datatype, shape = BY_NUMBER[number], tuple(dims)
        if min(shape, default=0) < 0 or (datatype.size and element_count(shape) * datatype.size != size):
            raise FrameError(f"tensor '{name}' has {size} bytes, which is not {datatype.name} {list(shape)}")
        if place == IN_FRAME:
            body, offset = payload[data + where : data + where + size], -1
        else:
            body, offset = arena[where - base : where - base + size], where
        if len(body) != size or start > end or where < base * (place == IN_ARENA):
            raise FrameError(f"tensor '{name}' is cut off")
        tensors.append(InferTensor(name, datatype, shape, body, offset))
    return tensors


def encode_rest(waiting: Sequence[tuple[int, int]]) -> bytes:
    """An INFER_REST frame: calls that are waited for, and how many responses to each have arrived."""
    return frame(FrameKind.INFER_REST, 0, b"".join([_WAITING.pack(number, seen) for number, seen in waiting]))


def decode_rest(received: Frame) -> list[tuple[int, int]]:
    """What `encode_rest` was given.

    Raises:
        FrameError: the worker wrote something else.
    """
    if not received.payload or len(received.payload) % _WAITING.size:
        raise FrameError("found an INFER_REST of another length")
    return list(_WAITING.iter_unpack(received.payload))
