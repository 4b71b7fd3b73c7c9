"""A client of the gRPC door that writes frames by hand, for what grpcio does not do."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from hpack import Decoder

from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, Code
from edge_serve.protocol.http2.heads import encode
from edge_serve.transport.door.listeners import listen_tcp
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc.door_state import GrpcLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings
from edge_serve.transport.grpc_service.server import GrpcServer
from tests.protocol.http2_scene import Time, data, frame_head, goaway_of, headers, reset_of
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService
from tests.transport.v2_scene import FakeService


def block(path: str = INFERENCE + "ModelInfer", method: str = "POST", **fields: str) -> bytes:
    """A head; underscores are hyphens."""
    given = {"content_type": "application/grpc", "te": "trailers", **fields}
    pseudo = [(b":method", method.encode()), (b":scheme", b"http"), (b":path", path.encode())]
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return encode(None, [*pseudo, *pairs])


def message(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


@dataclass
class Raw:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    decoder: Decoder = field(default_factory=Decoder)

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    def begin(self, stream: int, head: bytes, *, end: bool = False) -> None:
        self.send(headers(stream, end=end, block=head))

    def data(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        for at in range(0, len(payload), 16_384):
            last = at + 16_384 >= len(payload)
            self.send(data(stream, payload[at : at + 16_384], end=end and last))

    def call(self, stream: int, payload: bytes, path: str = INFERENCE + "ModelInfer", **fields: str) -> None:
        """A unary call."""
        self.begin(stream, block(path, "POST", **fields))
        self.data(stream, message(payload), end=True)

    async def frame(self) -> tuple[int, int, int, bytes]:
        size, kind, flags, stream = frame_head(await asyncio.wait_for(self.reader.readexactly(9), 5))
        return kind, flags, stream, await self.reader.readexactly(size)

    async def trailers(self, stream: int) -> dict[str, str]:
        """Return the trailers of a stream, or `reset` with its code."""
        while True:
            kind, flags, number, payload = await self.frame()
            if kind == HEADERS:
                fields = {str(name): str(value) for name, value in self.decoder.decode(payload)}
                if number == stream and flags & END_STREAM:
                    return fields
            elif kind == RST_STREAM and number == stream:
                return {"reset": reset_of(payload).name}
            elif kind == GOAWAY:
                raise AssertionError(payload)

    async def status(self, stream: int) -> tuple[int, str]:
        """grpc-status and grpc-message."""
        fields = await self.trailers(stream)
        return int(fields["grpc-status"]), fields.get("grpc-message", "")

    async def goaway(self) -> tuple[int, Code, str]:
        """The next one: last stream, code and text."""
        while True:
            kind, _, _, payload = await self.frame()
            if kind == GOAWAY:
                return goaway_of(payload)

    async def ended(self) -> bool:
        """The server has closed."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), 5):
                pass
        except ConnectionError:
            pass
        return True


@dataclass
class RawScene:
    """A door with a clock that tests move, and connections to it."""

    server: GrpcServer
    service: FakeService
    clock: Time
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, *, greet: bool = True, limit: int = 1 << 16) -> Raw:
        host, _, port = self.server.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
        self.writers.append(writer)
        raw = Raw(reader, writer)
        if greet:
            raw.send(PREFACE, frames.build_settings(()))
        return raw

    def sweep_after(self, seconds: float) -> None:
        """Let time pass; what is due is done twice, because waiting begins when it is first seen."""
        self.server.sweep()
        self.clock.pass_by(seconds)
        self.server.sweep()


@contextlib.asynccontextmanager
async def raw_scene(
    service: FakeService | None = None,
    settings: GrpcSettings | None = None,
    keepalive: KeepaliveSettings | None = None,
    limits: GrpcLimits | None = None,
    sharing: SharedLimits | None = None,
) -> AsyncIterator[RawScene]:
    """An open door."""
    clock = Time()
    service = service or GrpcFakeService()
    server = GrpcServer(service, clock, settings, keepalive=keepalive, limits=limits, sharing=sharing)
    await server.start(listen_tcp("127.0.0.1", 0))
    scene = RawScene(server, service, clock)
    try:
        yield scene
    finally:
        for writer in scene.writers:
            writer.close()
        await server.drain(0.5)
