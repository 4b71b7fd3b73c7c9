"""Program of a codec process: `python -m edge_serve.workers.codec.main CONTROL_FD PIPE_FD HEARTBEAT_SECONDS`.

Reads bodies and writes responses with the code that the front end uses for small ones. The process does one job at a
time and keeps nothing between two jobs. It sees the memory of several models, so it runs edge-serve's own code only.
Each job comes with the descriptor of the one arena that it needs.

Imports NumPy and orjson at its start, for the modules of `protocol/v2`: what is imported later would not be frozen.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import mmap
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy  # noqa: F401  # see above

from edge_serve.devices.host_memory import total_memory
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, Unparsable, triton_code
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.shared_memory import NamedRegions
from edge_serve.messages.tensors import Buffer, Shared
from edge_serve.protocol.inference import compression
from edge_serve.protocol.v2 import generate
from edge_serve.protocol.v2.infer import InferDecoder, InferEncoder, parse_header_length
from edge_serve.workers.child.process import Control, ForwardingHandler, beat, prepare_process
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.codec.messages import pack_request, pack_tensor, unpack_job, unpack_response, unpack_signature
from edge_serve.workers.wire.frames import NEED, SLOT, Frame, FrameKind, frame, json_frame
from edge_serve.workers.wire.layout import padded

log = logging.getLogger(__name__)

#: bytes of JSON in a request besides its tensors; the front end reads them in its loop
LONGEST_REST = 1 << 20
#: oom_score_adj (proc(5)); a worker has the front end's plus 500. So when memory runs out, the kernel kills this
#: process rather than a worker under the unit (front end: -250), and prefers neither where the front end has 0
_OOM_SCORE = "500"
#: heaps above this are returned to the kernel after a job
_TRIM_ABOVE = 64 << 20
_LEAST_MEMORY = 1 << 30


class HangUp(Exception):
    """The front end closed the control channel."""


class CodecSlot:
    """The arena of a job. Maps pieces of it to read them, and writes through the descriptor: where the machine has no
    memory, a write fails with an error, and a mapping would end the process."""

    def __init__(self, fd: int, need: Callable[[int], int]) -> None:
        self._fd = fd
        self._need = need
        self._next = 0

    def read(self, offset: int, size: int) -> memoryview:
        """Return the memory at `offset`."""
        if not size:
            return memoryview(b"")
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped = mmap.mmap(self._fd, offset - start + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
        return memoryview(mapped)[offset - start :]

    def use(self, offset: int, capacity: int, nbytes: int) -> bool:
        """Write into the job's own memory at `offset` from now on. Return whether `nbytes` fit."""
        self._next = padded(offset)
        return self._next + nbytes <= offset + capacity

    def ask(self, nbytes: int) -> None:
        """Get memory for `nbytes` from the front end, and write into it from now on.

        Raises:
            Unavailable: the front end has none.
        """
        self._next = self._need(nbytes)

    def put(self, data: Buffer) -> int:
        """Write `data` behind the last piece. Return its offset in the arena."""
        offset = at = self._next
        view = memoryview(data).cast("B")
        while view:
            try:
                written = os.pwrite(self._fd, view, at)
            except OSError as error:
                raise Unavailable(f"no memory for {len(view)} bytes of tensors: {error.strerror}") from error
            view, at = view[written:], at + written
        self._next = padded(at)
        return offset


class CodecServer:
    """Does jobs until the front end closes the control channel."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._waiting: list[Frame] = []

    def run(self) -> None:
        """Do one job after another."""
        with contextlib.suppress(HangUp, OSError):
            while True:
                received = self._receive()
                fd = self._control.descriptors.pop(0)
                try:
                    self._control.send(json_frame(FrameKind.CODED, received.id, self._answer(received, fd)))
                finally:
                    os.close(fd)
                del received
                _tidy_up()

    def _receive(self) -> Frame:
        while not self._waiting:
            frames = self._control.receive()
            if frames is None:
                raise HangUp
            self._waiting += frames
        return self._waiting.pop(0)

    def _answer(self, received: Frame, fd: int) -> dict[str, Any]:
        act = self._decode if received.kind == FrameKind.DECODE else self._encode
        try:
            return act(received, CodecSlot(fd, self._need))
        except EdgeServeError as refused:
            error = refused
        except MemoryError:
            error = Unavailable("not enough memory to read or write this much JSON; try again, or use binary tensors")
        except HangUp:
            raise
        except Exception:
            log.exception("a job of the codec failed")
            error = Internal("the server failed to read or write the body, its log says why")
        return _error_value(error)

    def _need(self, nbytes: int) -> int:
        self._control.send(frame(FrameKind.NEED_OUTPUT, 0, NEED.pack(nbytes, 1, False)))
        answer = self._receive()
        _, _, offset, capacity = SLOT.unpack_from(answer.payload)
        if not capacity:
            raise Unavailable(answer.payload[SLOT.size :].decode())
        return int(offset)

    # ---- requests -------------------------------------------------------------------------------------------------

    def _decode(self, received: Frame, slot: CodecSlot) -> dict[str, Any]:
        text, value, loose = unpack_job(received)
        signature, at, limit = unpack_signature(text), value["at"], value["max_input_size"]
        offset, size = at or (-1, 0)
        body: Buffer = slot.read(offset, size) if at else loose
        free = size
        if value["generate"]:
            request = generate.read(body, signature, value["version"], limit)
            return _request_answer(request, _place(request, slot, offset, free))
        try:
            if value["compressed"]:
                body, offset = compression.decompress(body, limit), -1
            length = parse_header_length(value["length"], len(body))
        except EdgeServeError as error:
            return {**_error_value(error), "before": True}
        decoder = InferDecoder(limit, regions=NamedRegions())
        request = decoder.decode(signature, value["version"], body, length, offset=offset)
        if offset >= 0 and length is not None:
            free = length  # binary tensors follow, and stay where they are
        return _request_answer(request, _place(request, slot, at[0] if at else -1, free))

    # ---- responses ------------------------------------------------------------------------------------------------

    def _encode(self, received: Frame, slot: CodecSlot) -> dict[str, Any]:
        _, value, loose = unpack_job(received)
        response, request, signature = unpack_response(value, slot.read, loose)
        buffers: list[Buffer]
        if value["generate"]:
            buffers, length = [generate.write(response)], None
        else:
            buffers, length = InferEncoder().encode(response, request, signature)
        if value["accept"] != "identity":
            buffers = [compression.compress(buffers, value["accept"])]
        there = {id(tensor.data): tensor.offset for tensor in response.outputs if tensor.offset >= 0}
        written = sum(padded(len(buffer)) for buffer in buffers if id(buffer) not in there)
        if written:
            slot.ask(written)
        pieces = []
        for buffer in buffers:
            at = there.get(id(buffer), -1)
            pieces.append([at if at >= 0 else slot.put(buffer), len(buffer)])
        return {"pieces": pieces, "length": length}


def _place(request: InferRequest, slot: CodecSlot, offset: int, free: int) -> list[list[Any]]:
    """Write the tensors over their own text, or into new memory when they are larger. Return their descriptions."""
    inputs = [tensor for tensor in request.inputs if type(tensor) is not Shared]
    moving = [tensor for tensor in inputs if tensor.offset < 0 and len(tensor.data)]
    nbytes = sum(padded(len(tensor.data)) for tensor in moving)
    if moving and (offset < 0 or not slot.use(offset, free, nbytes)):
        moving = [tensor for tensor in inputs if len(tensor.data)]
        slot.ask(sum(padded(len(tensor.data)) for tensor in moving))
    for tensor in moving:
        tensor.offset = slot.put(tensor.data)
    return [pack_tensor(tensor, tensor.offset if len(tensor.data) else -1) for tensor in request.inputs]


def _request_answer(request: InferRequest, tensors: list[list[Any]]) -> dict[str, Any]:
    """Return the answer for a request with these tensors.

    Raises:
        InvalidArgument: the rest of the request is too long.
    """
    answer = pack_request(request, tensors)
    rest = len(json.dumps(answer))
    if rest > LONGEST_REST:
        raise InvalidArgument(
            f"the request has {rest} bytes of JSON besides its tensors, at most {LONGEST_REST} are accepted"
        )
    return {"request": answer}


def _error_value(error: EdgeServeError) -> dict[str, Any]:
    unparsable = isinstance(error, Unparsable)  # has no code of its own
    return {"error": {"code": triton_code(error), "text": error.message, "unparsable": unparsable}}


def _tidy_up() -> None:
    """Collect garbage, and return free memory to the kernel.

    Garbage is collected between jobs only: during a job the collector would walk over millions of numbers.
    """
    gc.collect()
    with open("/proc/self/statm", "rb") as statm:
        resident, shared = map(int, statm.read().split()[1:3])
    if (resident - shared) * mmap.PAGESIZE > _TRIM_ABOVE:
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _limit_memory() -> None:
    """Limit the memory of the process, so that a body made to fill it ends its own job with a MemoryError."""
    limit = max(_LEAST_MEMORY, total_memory() // 2)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(_OOM_SCORE)


def main(arguments: list[str]) -> None:
    """Serve one front end, then return."""
    control = Control(socket.socket(fileno=int(arguments[0])))
    prepare_process(int(arguments[1]))
    _limit_memory()
    ForwardingHandler(Remote(control.send)).install()
    threading.Thread(target=beat, args=(control, float(arguments[2])), name="heartbeat", daemon=True).start()
    gc.disable()
    gc.freeze()
    control.send(frame(FrameKind.HELLO))
    CodecServer(control).run()


if __name__ == "__main__":
    main(sys.argv[1:])
