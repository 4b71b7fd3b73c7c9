"""Small measurements for the decisions in this folder: `python -m docs.adr.figures NAME`.

Each compares the real code with an alternative and prints medians of this machine.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import pickle
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from edge_serve.access.roles import Role
from edge_serve.clock import MonotonicClock
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.shared_memory import NamedRegions
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Buffer, DataType, InferTensor
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from edge_serve.protocol.grpc.infer import GrpcInferDecoder
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.protocol.grpc.wire import PREFIX
from edge_serve.protocol.http2 import frames as wire
from edge_serve.protocol.http2.connection import Http2
from edge_serve.protocol.http2.heads import StreamHead, encode
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.call_head import CallHead, GrpcSettings, HeadInterpreter, Method
from edge_serve.transport.grpc_service.infer import GrpcInference
from edge_serve.transport.v2.routes import RouteGroup
from edge_serve.workers.child.batch import decode_execute
from edge_serve.workers.front.frames.batch import encode_execute
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.layout import TensorLayout

PICTURE = 1 * 3 * 224 * 224 * 4
LARGE = 8 << 20


def microseconds(action: Callable[[], object], times: int) -> float:
    """Return the median time of one call."""
    taken = []
    for _ in range(times):
        before = time.perf_counter_ns()
        action()
        taken.append(time.perf_counter_ns() - before)
    return round(statistics.median(taken) / 1e3, 1)


def arenas() -> dict[str, float]:
    """Measure a segment for each request, and a slot of a long-lived arena: allocate, fill, release."""
    arena = Arena("figures", Budget(1 << 30))

    def fresh(data: bytes) -> None:
        fd = os.memfd_create("figures")
        os.ftruncate(fd, len(data))
        with mmap.mmap(fd, len(data)) as segment:
            segment[:] = data
        os.close(fd)

    def slot(data: bytes) -> None:
        lease = arena.allocate(len(data))
        lease.view[:] = data
        lease.release()

    found = {}
    for name, size in (("602 KB", PICTURE), ("8 MiB", LARGE)):
        data = bytes(size)
        found[f"{name}, a fresh memfd, us"] = microseconds(lambda data=data: fresh(data), 300)  # type: ignore[misc]  # the default binds the loop's value
        found[f"{name}, a slot, us"] = microseconds(lambda data=data: slot(data), 300)  # type: ignore[misc]  # as above
    return found


def frames() -> dict[str, float]:
    """Measure a request of two INT32[16] tensors to bytes and back, with our structs and with pickle."""
    tensor = {"data_type": "TYPE_INT32", "dims": [16]}
    names = ("INPUT0", "INPUT1")
    layout = TensorLayout({"name": "m", "max_batch_size": 8, "input": [{"name": name, **tensor} for name in names]})
    data = np.arange(16, dtype=np.int32).tobytes()
    requests = [InferRequest("m", inputs=[InferTensor(name, DataType.INT32, (1, 16), data) for name in names])]
    arena = memoryview(b"")
    frame = encode_execute(layout, 1, requests, 0, 0)
    pickled = pickle.dumps(requests, pickle.HIGHEST_PROTOCOL)
    return {
        "structs, bytes": len(frame),
        "pickle, bytes": len(pickled),
        "structs, write, us": microseconds(lambda: encode_execute(layout, 1, requests, 0, 0), 5000),
        "pickle, write, us": microseconds(lambda: pickle.dumps(requests, pickle.HIGHEST_PROTOCOL), 5000),
        "structs, read, us": microseconds(lambda: decode_execute(layout, bytearray(frame), arena, set()), 5000),
        "pickle, read, us": microseconds(lambda: pickle.loads(pickled), 5000),
    }


def packets() -> dict[str, int]:
    """Find the longest message of a SOCK_SEQPACKET pair; a stream has no such limit."""

    def fits(size: int) -> bool:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with left, right:
            left.setblocking(False)
            try:
                return left.send(bytes(size)) == size
            except OSError:
                return False

    low, high = 1, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"SOCK_SEQPACKET, longest message": low}


_READER = "import socket,sys; s=socket.socket(fileno=int(sys.argv[1])); b=bytearray(1<<20)\nwhile s.recv_into(b): pass"


def sending() -> dict[str, float]:
    """Measure the CPU time to send a head and 602 KB, with an asyncio transport and with `sendmsg` on a bare socket."""
    head, body = b"HTTP/1.1 200 OK\r\n\r\n", bytes(PICTURE)

    async def by_transport(sock: socket.socket, times: int) -> None:
        _, writer = await asyncio.open_connection(sock=sock)
        for _ in range(times):
            writer.writelines((head, body))
            await writer.drain()
        writer.transport.abort()

    async def by_socket(sock: socket.socket, times: int) -> None:
        loop, fd = asyncio.get_running_loop(), sock.fileno()
        for _ in range(times):
            parts = [memoryview(head), memoryview(body)]
            while parts:
                try:
                    sent = sock.sendmsg(parts)
                except BlockingIOError:
                    room = loop.create_future()
                    loop.add_writer(fd, room.set_result, None)
                    await room
                    loop.remove_writer(fd)
                    continue
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]

    def cpu(send: Callable[[socket.socket, int], Any], times: int = 400) -> float:
        listener = socket.create_server(("127.0.0.1", 0))
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        ours.setblocking(False)
        fd = theirs.fileno()
        reader = subprocess.Popen([sys.executable, "-c", _READER, str(fd)], pass_fds=[fd])
        theirs.close()
        before = time.process_time()
        asyncio.run(send(ours, times))
        taken = time.process_time() - before
        ours.close()
        listener.close()
        reader.wait()
        return round(taken / times * 1e6, 1)

    return {"asyncio transport, CPU us": cpu(by_transport), "bare socket, CPU us": cpu(by_socket)}


class Known(NamedTuple):
    """The version of every request."""

    signature: Signature


def grpc() -> dict[str, float]:
    """Measure a ModelInferRequest of two INT32[16] and its response: our codec, and protobuf without validation."""
    spec = {name: TensorSpec(name, DataType.INT32, (16,)) for name in ("INPUT0", "INPUT1")}
    signature = Signature("m", "1", "python", 8, spec, spec, required=2)
    message = ModelInferRequest(model_name="m", id="17", raw_input_contents=[bytes(64)] * 2)
    for name in spec:
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    data = message.SerializeToString()
    decoder, encoder = GrpcInferDecoder(lambda name, version: Known(signature), NamedRegions()), GrpcInferEncoder()
    request = decoder.decode(data)[0]
    response = InferResponse("m", "1", "17", request.inputs)

    def parse() -> list[InferTensor]:
        parsed = ModelInferRequest.FromString(data)
        return [
            InferTensor(one.name, DataType[one.datatype], tuple(one.shape), raw)
            for one, raw in zip(parsed.inputs, parsed.raw_input_contents, strict=True)
        ]

    def write() -> bytes:
        made = ModelInferResponse(model_name="m", model_version="1", id="17")
        for tensor in response.outputs:
            made.outputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
            made.raw_output_contents.append(bytes(tensor.data))
        return made.SerializeToString()

    return {
        "request by hand, us": microseconds(lambda: decoder.decode(data), 5000),
        "request by protobuf, us": microseconds(parse, 5000),
        "response by hand, us": microseconds(lambda: b"".join(encoder.encode(response, request, signature)[0]), 5000),
        "response by protobuf, us": microseconds(write, 5000),
    }


class _Echo:
    """A service with one model that answers at once, and the surroundings of one connection's calls."""

    regions = NamedRegions()
    arena = None
    loop: Any = None
    pending = 0

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.sent = b""

    def lookup(self, name: str, version: str) -> Any:
        return self

    def infer(
        self, served: object, request: InferRequest, on_response: Callable[[InferResponse], None], arrival: object
    ) -> Any:
        on_response(InferResponse(request.model_name, "1", request.id, request.inputs))
        return self

    def cancel(self) -> None: ...

    def serve(self, path: str) -> Http2:
        """Return a connection whose calls this service answers."""
        inference = GrpcInference(cast(Any, self), MonotonicClock())
        self._understanding = HeadInterpreter(
            {path: Method(RouteGroup.INFERENCE, Role.INFER, inference.infer)}, GrpcSettings()
        )
        self._http2 = Http2(cast(Any, self), cast(Any, self), MonotonicClock(), 1 << 20)
        return self._http2

    def open_stream(self, stream: int, head: StreamHead) -> GrpcCall:
        asked = head.meaning
        if not isinstance(asked, CallHead):
            asked = self._understanding.interpret(head)
        return GrpcCall(self._http2.table, cast(Any, self), stream, head.content_length, asked)

    def push(self, parts: Sequence[Buffer], size: int, on_sent: object = None) -> None:
        self.sent = b"".join(parts)

    add = push

    def flush_answer(self) -> None: ...


def http2() -> dict[str, float]:
    """Measure a ModelInfer of two INT32[16] from the client's bytes to the answer's, without socket and worker."""
    spec = {name: TensorSpec(name, DataType.INT32, (16,)) for name in ("INPUT0", "INPUT1")}
    echo = _Echo(Signature("m", "1", "python", 8, spec, spec, required=2))
    path = "/inference.GRPCInferenceService/ModelInfer"
    message = ModelInferRequest(model_name="m", id="17", raw_input_contents=[bytes(64)] * 2)
    for name in spec:
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    raw = message.SerializeToString()
    pairs = ((":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc"))
    head = encode(None, [(name.encode(), value.encode()) for name, value in pairs])
    body = PREFIX.pack(0, len(raw)) + raw
    connection = echo.serve(path)
    connection.receive(wire.PREFACE + wire.build_settings(()) + wire.build_window_update(0, 1 << 30))
    streams = iter(range(1, 1 << 30, 2))

    def call() -> None:
        stream = next(streams)
        connection.receive(
            wire.build_frame(wire.HEADERS, wire.END_HEADERS, stream, head)
            + wire.build_frame(wire.DATA, wire.END_STREAM, stream, body)
        )

    taken = microseconds(call, 5000)
    assert raw[-64:] in echo.sent, "it was answered"
    return {"a call, us": taken}


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arenas": arenas,
    "frames": frames,
    "grpc": grpc,
    "http2": http2,
    "packets": packets,
    "sending": sending,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or MEASUREMENTS:
        print(json.dumps({name: MEASUREMENTS[name]()}, indent=1))
