"""Server reflection: answers each message of a call with one message."""

from __future__ import annotations

import importlib
from typing import Any

from google.protobuf.message import DecodeError

from edge_serve.protocol.grpc.infer import Unreadable
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message

#: paths of the method, whose answers (`protocol.grpc.reflection`) are imported with its first call
REFLECTION = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


class Reflection:
    """Opens reflection calls."""

    def __init__(self) -> None:
        self._answers: Any = None

    def open(self, call: GrpcCall) -> _Questions:
        """Return the conversation that answers a call."""
        if self._answers is None:
            self._answers = importlib.import_module("edge_serve.protocol.grpc.reflection")
        return _Questions(call, self._answers.answer)


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
        if not self._waiting:
            self._call.replenish()

    def on_end(self) -> None:
        """Finish the call: no question follows."""
        self._call.finish()

    def on_gone(self) -> None:
        """Do nothing: no work is under way."""

    def on_taken(self, size: int) -> None:
        """Handle that the client has read `size` bytes that waited."""
        self._waiting -= size
        if not self._waiting:
            self._call.replenish()
