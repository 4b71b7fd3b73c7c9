"""Frames between the front end and a worker: versioned, length-prefixed structs, never pickle.

Each frame is a 16-byte header and a payload. Control frames carry JSON, or nothing; those of the data path are structs.
The worker runs users' code, which may write to any descriptor. So the front end checks every byte from it, and a
`FrameError` kills that worker and nothing else.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any

from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Internal, triton_code
from edge_serve.records import slotted

VERSION = 1
#: payload length, version, kind, a count, an id: of the batch on data channels, of the question on control channels
HEADER = struct.Struct("<IBBHq")
HEADER_SIZE = HEADER.size
#: longest payload that is believed: replies above INLINE_BYTES travel through the arena
LONGEST = 256 << 20

#: seconds between heartbeats, at most, while a worker describes or opens a model
BUSY_BEAT = 0.1
#: exit status of a worker whose device is lost
DEVICE_LOST = 75

#: longest log text; a worker cannot flood the front end with one line
LOG_CHARACTERS = 64 * 1024
#: mismatched outputs that are reported for one model; a model may make up a name for each response
MOST_REPORTED = 16

# mask of the listed outputs (0 = all), correlation id, priority, timeout us, deadline ns; flags, id bytes, extra bytes,
# block bytes, where its data starts, slot of its sequence
REQUEST = struct.Struct("<QQQQQIIIIIi")

# output slot: offset, capacity; bytes of the part before the data; us to poll for the next frame before sleeping
EXECUTE_HEAD = struct.Struct("<QQII")

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

NEED = struct.Struct("<QI?")  # NEED_OUTPUT: bytes, token, and whether the slot of the batch is given back unused
SLOT = struct.Struct("<IIQQ")  # OUTPUT_SLOT: channel, token, offset, capacity; the reason follows when that is 0
CANCELLATION = struct.Struct("<II")  # CANCEL, PAUSE, RESUME: channel, the request's index; the id is the batch's


class FrameKind(IntEnum):
    """Frame kinds. `->` front end to worker, `<-` worker to front end."""

    EXECUTE = 1  # -> data: a batch
    REPLY = 2  # <- data: its replies
    NEED_OUTPUT = 3  # <- data: the outputs of this batch (0: of a decoupled model) need an arena slot of this size
    OUTPUT_SLOT = 4  # -> control: here it is, or the reason why not
    PARTIAL = 5  # <- data: one of 0 to n replies of a decoupled model
    EXECUTE_EACH = 7  # -> data: requests to execute one after the other, each alone, answered together in one REPLY
    CANCEL = 6  # -> control: the client of a running request has disconnected
    ARENA = 8  # -> control: tensors of another model lie in this descriptor's memory; the id is its number
    ARENA_GONE = 9  # -> control: none do any more; the same of a REGION
    PAUSE = 10  # -> control: the client of a decoupled model's request reads too slowly: its sender waits
    RESUME = 11  # -> control: it need not wait any more
    REGION = 12  # -> control: a client's shared memory; descriptor: its file; the id is its number among the arenas
    CUDA_REGION = 13  # -> control: the same of a GPU's memory; a handle instead of a descriptor
    DISCARD = 14  # -> a model that was described will not be opened
    HELLO = 16  # <- started
    DESCRIBE = 17  # -> complete this configuration
    DESCRIBED = 18  # <-
    OPEN = 19  # -> load a model; descriptors: the arena, one data channel for each instance
    OPENED = 20  # <-
    FAILED = 21  # <-> in place of the expected answer: code, text
    CLOSE = 22  # -> finalize and forget a model
    CLOSED = 23  # <-
    HEALTH = 24  # -> is the model ready?
    HEALTH_REPLY = 25  # <-
    HEARTBEAT = 26  # <- from a thread of its own: the interpreter is not stuck
    LOG = 27  # <- level, text
    METRIC = 28  # <- an update of a model's own metrics
    CALL = 29  # <- the model asks the server: load, unload, is it ready, memory for the inputs of an INFER
    CALL_RESULT = 30  # ->
    INFER = 31  # <- the model calls another model (business logic scripting, `calls`); the id is the call's
    INFER_RESPONSE = 32  # -> one of the responses to it
    INFER_CANCEL = 33  # <- the model wants no (further) response to it
    INFER_FREE = 34  # <- the model has released the outputs in a slot; the id is the slot's token
    INFER_REST = 35  # <- the instance waits for the answers to these calls, and for nothing else
    DECODE = 40  # -> codec: make a request of a body; descriptor: the arena
    ENCODE = 41  # -> codec: make a body of a response; descriptor: the arena
    CODED = 42  # <- codec: done, or refused


class FrameError(Exception):
    """The bytes are not a valid frame."""


@slotted
class Frame:
    """A frame whose payload has arrived completely."""

    kind: int
    count: int
    id: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """Return the payload of a control frame.

        Raises:
            FrameError: it is not a JSON object.
        """
        return parse_json(self.payload)


def parse_json(payload: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the JSON object in a payload.

    Raises:
        FrameError: it is none.
    """
    data = bytes(payload)
    try:
        value = json.loads(data)
        if b"\\ud" in data or b"\\uD" in data:  # half a surrogate pair is no text: no log, page or reply could have it
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise FrameError(f"found {type(value).__name__}, expected a JSON object")
    return value


def frame(kind: int, frame_id: int = 0, payload: bytes = b"", count: int = 0) -> bytes:
    """Return a whole frame."""
    return HEADER.pack(len(payload), VERSION, kind, count, frame_id) + payload


def json_frame(kind: int, frame_id: int, value: dict[str, Any]) -> bytes:
    """Return a control frame with a JSON object."""
    return frame(kind, frame_id, json.dumps(value).encode())


def failed_frame(frame_id: int, error: EdgeServeError) -> bytes:
    """Return a FAILED frame, the answer to a question that could not be answered."""
    return json_frame(FrameKind.FAILED, frame_id, {"code": triton_code(error), "text": error.message})


def error_of(value: dict[str, Any]) -> EdgeServeError:
    """Return the error that a frame describes by its `code` and `text`; Internal if the code is unknown."""
    code = value.get("code")
    cls = BY_TRITON_CODE.get(code, Internal) if isinstance(code, int) else Internal
    return cls(str(value.get("text", "")))


def slot_frame(channel: int, token: int, offset: int, capacity: int, reason: str = "") -> bytes:
    """Return an OUTPUT_SLOT frame, the answer to NEED_OUTPUT; `capacity` 0 refuses it, with the reason."""
    return frame(FrameKind.OUTPUT_SLOT, 0, SLOT.pack(channel, token, offset, capacity) + reason.encode())


def parse_header(data: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int, int, int]:
    """Return the payload length, kind, count, and ID of the header at `position`, which must be there.

    Raises:
        FrameError: another version, or a length that no frame has.
    """
    length, version, kind, count, frame_id = HEADER.unpack_from(data, position)
    if version != VERSION or length > LONGEST:
        raise FrameError(f"found a frame header of version {version} and {length} bytes, expected version {VERSION}")
    return length, kind, count, frame_id


class Splitter:
    """Cuts a stream into frames; for control channels, whose frames are small."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with this data.

        Raises:
            FrameError: see `parse_header`; the stream is of no use any more.
        """
        buffer, position, frames = self._data, 0, []
        buffer += data
        while position + HEADER_SIZE <= len(buffer):
            length, kind, count, frame_id = parse_header(buffer, position)
            end = position + HEADER_SIZE + length
            if end > len(buffer):
                break
            frames.append(Frame(kind, count, frame_id, bytes(buffer[position + HEADER_SIZE : end])))
            position = end
        del buffer[:position]
        return frames
