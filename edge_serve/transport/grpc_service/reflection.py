"""Server reflection: each message of a call is a question, and each has one answer."""

from __future__ import annotations

import importlib
from typing import Any

from google.protobuf.message import DecodeError

from edge_serve.protocol.grpc.infer import Unreadable
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message

#: where it is called; what answers (`protocol.grpc_reflection`) is not imported before somebody asks
REFLECTION = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


class Reflection:
    """Answers calls."""

    def __init__(self) -> None:
        self._answers: Any = None

    def open(self, call: GrpcCall) -> _Questions:
        """What answers a call."""
        if self._answers is None:
            self._answers = importlib.import_module("edge_serve.protocol.grpc.reflection")
        return _Questions(call, self._answers.answer)


class _Questions:
    """One call. Nothing more is read from a client that does not read its answers."""

    def __init__(self, call: GrpcCall, answer: Any) -> None:
        self._call = call
        self._answer = answer
        self._waiting = 0

    def on_message(self, message: Message) -> None:
        """A question."""
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
        """No further one comes."""
        self._call.finish()

    def on_gone(self) -> None:
        """Nobody listens."""

    def on_taken(self, size: int) -> None:
        """The client has read on."""
        self._waiting -= size
        if not self._waiting:
            self._call.replenish()
