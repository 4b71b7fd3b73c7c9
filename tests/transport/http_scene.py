"""A server and its clients on one loop, an application that records, and a clock that stands still."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import Room
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.door.listeners import Listener, listen_tcp
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.http.door_state import HttpLimits
from edge_serve.transport.http.server import HttpServer
from tests.leases import Slot


class Recorder:
    """Answers `200` with the path and the body's length, unless a test sets it to hold answers or to do otherwise."""

    def __init__(self, handle: Callable[[Exchange], None] | None = None, *, hold: bool = False) -> None:
        self.exchanges: list[Exchange] = []
        self.bodies: list[bytes] = []
        self.slots: list[Slot] = []
        self.abandoned: list[str] = []
        self.hold = hold
        self.places = False
        self.refusal: EdgeServeError | None = None
        self._handle = handle

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        return ()

    def check(self, head: RequestHead, length: int) -> None:
        pass

    def place(self, head: RequestHead, length: int) -> Room | None:
        if self.refusal is not None:
            raise self.refusal
        if not self.places:
            return None
        self.slots.append(Slot(length))
        return self.slots[-1]

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.bodies.append(bytes(exchange.body))
        path = exchange.head.path
        exchange.on_cancelled = lambda: self.abandoned.append(path)
        if self._handle is not None:
            self._handle(exchange)
        elif not self.hold:
            self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        exchange.reply(200, (f"{exchange.head.path} {len(exchange.body)}".encode(),), content_type="text/plain")


class StandingClock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A connection that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, fields: str = "") -> None:
        self.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n".encode())

    def post(self, path: str, body: bytes, fields: str = "") -> None:
        self.send(f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body)

    async def taken(self) -> None:
        """Let the loop run until the server has read what was sent."""
        sock = self.writer.get_extra_info("socket")
        await until(lambda: not struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
        for _ in range(3):  # the bytes are in the server's socket, and its loop is this one
            await asyncio.sleep(0)

    async def reply(self, *, head_only: bool = False) -> Reply:
        return await asyncio.wait_for(self._reply(head_only), 10)

    async def _reply(self, head_only: bool) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        if "transfer-encoding" in headers and not head_only:
            body = await self._chunks()
        elif head_only or "content-length" not in headers:
            body = b""
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(lines[0].split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await asyncio.wait_for(self.reader.read(-1), 5)

    async def closed(self) -> bool:
        """Whether the server has closed, without saying more."""
        with contextlib.suppress(ConnectionResetError):
            return await self.rest() == b""
        return True

    def abort(self) -> None:
        """Reset the connection, unless it is closed."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return body


class Scene:
    """See the module."""

    def __init__(
        self,
        application: Recorder,
        limits: HttpLimits,
        tls: Callable[[], ssl.SSLContext] | None = None,
        sharing: SharedLimits | None = None,
    ) -> None:
        self.application = application
        self.clock = StandingClock()
        self.server = HttpServer(application, limits, self.clock, tls=tls, sharing=sharing)
        self.port = 0
        self.clients: list[Client] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        """Connect, with TLS if there is a context."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16, ssl=context))
        self.clients.append(client)
        return client

    def pass_time(self, seconds: float) -> None:
        """Let the server see where its connections stand, and look again after `seconds`."""
        self.server.sweep()
        self.clock.seconds += seconds
        self.server.sweep()


async def until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Let the loop run until the condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def scene(
    application: Recorder | None = None,
    limits: HttpLimits | None = None,
    listeners: list[Listener] | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
    sharing: SharedLimits | None = None,
) -> AsyncIterator[Scene]:
    """A running server; its clients are closed at the end."""
    here = Scene(application or Recorder(), limits or HttpLimits(), tls, sharing)
    listeners = listeners or listen_tcp("127.0.0.1", 0)
    if not isinstance(listeners[0].sock.getsockname(), str):
        here.port = listeners[0].sock.getsockname()[1]
    await here.server.start(listeners)
    try:
        yield here
    finally:
        for client in here.clients:
            client.abort()
        await here.server.drain(0.1)
        await asyncio.sleep(0)
