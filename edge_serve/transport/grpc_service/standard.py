"""The standard services of gRPC: health (`Check` is in `calls`) and server reflection."""

from __future__ import annotations

import importlib
from typing import Any

from google.protobuf.message import DecodeError

from edge_serve.errors import Internal
from edge_serve.protocol.grpc.infer import Unreadable
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.calls import NOT_SERVING, SERVING
from edge_serve.transport.v2.operations import CallService

WATCH = "/grpc.health.v1.Health/Watch"


class Watchers:
    """Notifies the watchers of the server's readiness.

    Attributes:
        open_calls: the calls to notify.
    """

    def __init__(self, service: CallService) -> None:
        self._service = service
        self.open_calls: set[_Watcher] = set()

    def open(self, call: GrpcCall) -> _Watcher:
        """Return the conversation that answers a call."""
        return _Watcher(call, self)

    def status(self) -> bytes:
        """Return a HealthCheckResponse."""
        return SERVING if self._service.ready() else NOT_SERVING

    def notify(self) -> None:
        """Notify the watchers if the readiness has changed."""
        if self.open_calls:
            status = self.status()
            for watcher in list(self.open_calls):
                watcher.notify(status)


class _Watcher:
    """One Watch call. The service that its request names does not matter."""

    def __init__(self, call: GrpcCall, watchers: Watchers) -> None:
        self._call = call
        self._watchers = watchers
        self._sent = b""
        self._waiting = 0

    def on_message(self, message: Message) -> None:
        """Handle the request."""
        message.release()
        self._watchers.open_calls.add(self)
        self.notify(self._watchers.status())

    def on_end(self) -> None:
        """Fail the call if it has no request; otherwise its answers continue."""
        if self not in self._watchers.open_calls:
            self._call.fail(Internal("a Watch call has one message, none came"))

    def on_gone(self) -> None:
        """Handle the end of the call."""
        self._watchers.open_calls.discard(self)

    def on_taken(self, size: int, messages: int = 1) -> None:
        """Handle that the client has read `size` bytes that waited."""
        self._waiting -= size

    def notify(self, status: bytes) -> None:
        """Send a status, unless the client has it or does not read."""
        if status != self._sent and not self._waiting:
            self._sent = status
            self._waiting += self._call.write((status,), len(status))

    def finish_when_answered(self) -> None:
        """End the watch with NOT_SERVING, because the server stops."""
        self.notify(NOT_SERVING)
        self._call.finish()


#: paths of the method, whose answers (`protocol.grpc.reflection`) are imported with its first call
REFLECTION = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


def open_reflection(call: GrpcCall) -> _Questions:
    """Return the conversation that answers a reflection call."""
    return _Questions(call, importlib.import_module("edge_serve.protocol.grpc.reflection").answer)


class _Questions:
    """One reflection call. Does not read on while the client does not read its answers."""

    def __init__(self, call: GrpcCall, answer: Any) -> None:
        self._call = call
        self._answer = answer
        self._waiting = 0

    def on_message(self, message: Message) -> None:
        """Answer a question."""
        data = bytes(message.data)
        message.release()
        try:
            reply = self._answer(data)
        except DecodeError:
            self._call.fail(Unreadable())
            return
        self._waiting += self._call.write((reply,), len(reply))
        if self._waiting:
            self._call.pause()

    def on_end(self) -> None:
        """Finish the call: no question follows."""
        self._call.finish()

    def finish_when_answered(self) -> None:
        """Finish the call: every question is answered when it arrives."""
        self._call.finish()

    def on_gone(self) -> None:
        """Do nothing: no work is under way."""

    def on_taken(self, size: int, messages: int = 1) -> None:
        """Handle that the client has read `size` bytes that waited."""
        self._waiting -= size
        if not self._waiting:
            self._call.resume()
