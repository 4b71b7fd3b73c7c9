"""The gRPC door: accepts connections, sweeps their timeouts, drains. `GrpcConnection` does the work of one (ADR 12)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from edge_serve.clock import Clock
from edge_serve.messages.peer import Peer
from edge_serve.protocol.http2_frames import Code, goaway
from edge_serve.protocol.routes import Group
from edge_serve.transport.accepting import Acceptor
from edge_serve.transport.access import Access
from edge_serve.transport.call_service import CallService
from edge_serve.transport.grpc_asked import GrpcSettings, Method, Understanding
from edge_serve.transport.grpc_call import GrpcCall, Streaming, Unary
from edge_serve.transport.grpc_calls import INFERENCE, Call, Calls
from edge_serve.transport.grpc_connection import GrpcConnection
from edge_serve.transport.grpc_health import WATCH, Watchers
from edge_serve.transport.grpc_infer import GrpcInference
from edge_serve.transport.grpc_keepalive import KeepaliveSettings
from edge_serve.transport.grpc_messages import Message
from edge_serve.transport.grpc_reflection import REFLECTION, Reflection
from edge_serve.transport.grpc_shared import GrpcLimits, Shared
from edge_serve.transport.grpc_stream import GrpcInferService
from edge_serve.transport.grpc_tls import TlsGrpcConnection
from edge_serve.transport.handshakes import Handshakes
from edge_serve.transport.http_shared import HttpCounters
from edge_serve.transport.listeners import Listener, peer_of
from edge_serve.transport.reloaded import Reloaded
from edge_serve.transport.retiring import retire
from edge_serve.transport.sharing import Sharing
from edge_serve.transport.tls import TlsSocket

log = logging.getLogger(__name__)

MODEL_INFER = INFERENCE + "ModelInfer"
MODEL_STREAM_INFER = INFERENCE + "ModelStreamInfer"

#: kinds of clients that are remembered: local ones, others, and those with certificates one by one
_PEERS = 64


class GrpcService(CallService, GrpcInferService, Protocol):
    """What this door needs of service.Service."""


class GrpcServer:
    """Serves gRPC on any number of listeners, on the running loop.

    Args:
        tls: what new connections are given, looked at again in every sweep; None = no TLS.
        access: who may do what; None = everybody everything.
        sharing: limits that hold for all doors together; None = none.

    Attributes:
        counters: connections that were refused and handshakes that failed; the rest is not counted here.
    """

    def __init__(
        self,
        service: GrpcService,
        clock: Clock,
        settings: GrpcSettings | None = None,
        *,
        keepalive: KeepaliveSettings | None = None,
        limits: GrpcLimits | None = None,
        tls: Reloaded[ssl.SSLContext] | None = None,
        access: Access | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._settings = settings or GrpcSettings()
        self._keepalive = keepalive or KeepaliveSettings()
        self._limits = limits or GrpcLimits()
        self._clock = clock
        self._tls = tls
        self._watchers = Watchers(service)
        self._methods = _methods(service, clock, self._watchers)
        self._understandings: dict[Peer, Understanding] = {}
        self._access = access
        self._sharing = sharing or Sharing()
        #: what a connection is counted under, where they are
        self._keys: dict[GrpcConnection, str] = {}
        self.counters = HttpCounters()
        if access is not None:
            access.tell(self)
        self._acceptor = Acceptor(self._admit)
        self._listeners: list[Listener] = []
        self._shared: Shared | None = None
        self._handshakes: Handshakes | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where it listens, for people."""
        return ", ".join(listener.name for listener in self._listeners)

    async def start(self, listeners: Iterable[Listener]) -> None:
        """Accept from now on; `drain` closes the listeners."""
        loop = asyncio.get_running_loop()
        if self._shared is None:
            most = min(self._settings.max_message, self._sharing.memory.limit)
            self._shared = Shared(loop, self._clock, self._limits, self._keepalive, most, self._sharing)
            self._shared.on_closed = self._on_closed if self._sharing.addresses.limit else None
            tls = self._tls
            if tls is not None:
                self._handshakes = Handshakes(loop, lambda: tls.value, self._limits.handshake_timeout)
            self._sweep_and_again()
        for listener in listeners:
            self._listeners.append(listener)
            self._acceptor.add(listener)

    async def drain(self, timeout: float) -> int:
        """Stop accepting, answer what is in flight; after `timeout` seconds close the rest.

        Returns:
            The number of connections that were closed before their last answer was sent.
        """
        self._acceptor.stop()
        if self._handshakes is not None:
            self._handshakes.close()
        shared = self._shared
        if shared is None:
            return 0
        self._watchers.close()
        for connection in list(shared.connections):
            connection.drain()
        if shared.connections:
            emptied = shared.loop.create_future()
            shared.emptied = partial(_resolve, emptied)
            await asyncio.wait([emptied], timeout=timeout)
        cut_off = sum(connection.owes for connection in shared.connections)
        for connection in list(shared.connections):
            connection.close()
        if self._timer is not None:
            self._timer.cancel()
        return cut_off

    async def retire(self, timeout: float) -> None:
        """Accept nothing more, and let clients go without a failed call, at most `timeout` seconds; then `drain`."""
        self._acceptor.stop()
        self._watchers.close()
        shared, handshakes = self._shared, self._handshakes
        if shared is not None:
            opening = (lambda: 0) if handshakes is None else handshakes.__len__
            await retire(lambda: shared.connections, opening, timeout)

    def sweep(self) -> None:
        """Do what is due at every connection, tell watchers of health, and look for new certificates."""
        if self._shared is not None:
            now_ns = self._clock.now_ns()
            for connection in list(self._shared.connections):
                connection.check_time(now_ns)
        self._watchers.look()
        if self._tls is not None:
            self._tls.look()

    def _sweep_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._keepalive.sweep_interval(), self._sweep_and_again)
        self.sweep()

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        shared, handshakes = self._shared, self._handshakes
        assert shared is not None, "listeners come after it"
        if len(shared.connections) + (0 if handshakes is None else len(handshakes)) >= self._limits.connections:
            self.counters.connections_refused += 1
            _turn_away(sock, "the server has as many connections open as it may")
            return
        addresses = self._sharing.addresses
        key = addresses.key(listener.sock, address)
        if not addresses.take(key):
            _turn_away(sock, "your address has as many connections open as it may")
        elif handshakes is None:
            understanding = self._understanding_of(peer_of(listener, address))
            self._open(GrpcConnection(sock, shared, understanding), key)
        else:
            opened, failed = partial(self._on_opened, listener, address, key), partial(self._on_failed, key)
            handshakes.begin(sock, opened, failed)

    def _on_opened(self, listener: Listener, address: Any, key: str, sock: TlsSocket) -> None:
        assert self._shared is not None, "listeners come after it"
        peer = replace(peer_of(listener, address), certificate=sock.certificate)
        self._open(TlsGrpcConnection(sock, self._shared, self._understanding_of(peer)), key)

    def _open(self, connection: GrpcConnection, key: str) -> None:
        assert self._shared is not None, "listeners come after it"
        self._shared.connections.add(connection)
        if key:
            self._keys[connection] = key

    def _on_failed(self, key: str) -> None:
        self.counters.handshakes_failed += 1
        self._sharing.addresses.give(key)

    def _on_closed(self, connection: GrpcConnection) -> None:
        self._sharing.addresses.give(self._keys.pop(connection, ""))

    def _understanding_of(self, peer: Peer) -> Understanding:
        """How heads of this client are read; the same for all that are alike."""
        known = self._understandings.get(peer)
        if known is None:
            gate = None if self._access is None else self._access.gate(peer)
            known = Understanding(self._methods, self._settings, gate)
            if len(self._understandings) >= _PEERS:
                self._understandings.clear()
            self._understandings[peer] = known
        return known

    def forget(self) -> None:
        """Who may do what has changed."""
        if self._shared is not None:
            for connection in self._shared.connections:
                connection.forget_heads()


def _methods(service: GrpcService, clock: Clock, watchers: Watchers) -> dict[str, Method]:
    """All that can be called, by path."""
    inference = GrpcInference(service, clock)
    reflection = Reflection()
    methods: dict[str, Method] = {
        path: Unary(call.group, _answering(call)) for path, call in Calls(service).table.items()
    }
    methods[MODEL_INFER] = Unary(Group.INFERENCE, inference.infer, True, inference.place)
    methods[MODEL_STREAM_INFER] = Streaming(Group.INFERENCE, inference.stream, True, inference.place)
    methods[WATCH] = Streaming(Group.HEALTH, watchers.open)
    for path in REFLECTION:
        methods[path] = Streaming(Group.METADATA, reflection.open)
    return methods


def _answering(call: Call) -> Callable[[GrpcCall, Message], None]:
    def answer(to: GrpcCall, message: Message) -> None:
        call.run(message.data, to)

    return answer


def _turn_away(sock: socket.socket, reason: str) -> None:
    with sock:
        try:
            sock.send(goaway(0, Code.ENHANCE_YOUR_CALM, reason))
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
