"""`grpc.health.v1.Health/Watch`: the server's readiness, now and whenever it changes. `Check` is in `grpc_calls`."""

from __future__ import annotations

from typing import Protocol

from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.calls import NOT_SERVING, SERVING

WATCH = "/grpc.health.v1.Health/Watch"


class HealthService(Protocol):
    """What this needs of service.Service."""

    def ready(self) -> bool: ...


class Watchers:
    """Everybody who watches."""

    def __init__(self, service: HealthService) -> None:
        self._service = service
        self._open: set[_Watcher] = set()

    def open(self, call: GrpcCall) -> _Watcher:
        """What answers a call."""
        return _Watcher(call, self)

    def status(self) -> bytes:
        """A HealthCheckResponse."""
        return SERVING if self._service.ready() else NOT_SERVING

    def join(self, watcher: _Watcher) -> None:
        """It wants to hear of changes."""
        self._open.add(watcher)

    def part(self, watcher: _Watcher) -> None:
        """It does not any more."""
        self._open.discard(watcher)

    def look(self) -> None:
        """Tell what has changed since."""
        if self._open:
            status = self.status()
            for watcher in list(self._open):
                watcher.tell(status)

    def close(self) -> None:
        """The server stops: nobody needs to wait for that to change."""
        for watcher in list(self._open):
            watcher.tell(NOT_SERVING)
            watcher.finish()


class _Watcher:
    """One call; its request names a service, which does not count."""

    def __init__(self, call: GrpcCall, watchers: Watchers) -> None:
        self._call = call
        self._watchers = watchers
        self._told = b""
        self._waiting = 0

    def on_message(self, message: Message) -> None:
        """The request."""
        message.release()
        self._watchers.join(self)
        self.tell(self._watchers.status())

    def on_end(self) -> None:
        """There is one request only."""

    def on_gone(self) -> None:
        """Nobody listens."""
        self._watchers.part(self)

    def on_taken(self, size: int) -> None:
        """The client has read on."""
        self._waiting -= size

    def tell(self, status: bytes) -> None:
        """Say what is, unless that was said or nobody reads it."""
        if status != self._told and not self._waiting:
            self._told = status
            self._waiting += self._call.write((status,), len(status))

    def finish(self) -> None:
        """Say nothing more."""
        self._call.finish()
