"""An instance of a worker in a thread, with the test as its front end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from edge_serve.backends.base import BackendInstance, Reply
from edge_serve.messages.infer import InferRequest
from edge_serve.workers.child.instance import Receiver
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.pipelined import kind_of
from edge_serve.workers.front.frames.batch import decode_answers, encode_execute
from edge_serve.workers.wire.frames import HEADER_SIZE, NEED, PARTIAL_HEAD, REPLY_HEAD, FrameKind, parse_header
from edge_serve.workers.wire.layout import TensorLayout
from tests.workers.harness import PATIENCE, config


class Slot:
    """A slot as the front end knows it."""

    def __init__(self, offset: int, view: memoryview) -> None:
        self.offset = offset
        self.view = view


class InstanceScene:
    """An instance, and the front end's end of its channel."""

    def __init__(self, backend: BackendInstance, model_config: dict[str, Any]) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(PATIENCE)
        self.layout = TensorLayout(model_config)
        self.arena = memoryview(bytearray(1 << 20))
        self.imports = ArenaImports()
        kind = kind_of(backend, self.layout)
        self.instance = kind("m_0", 4, theirs, self.layout, self.arena, backend, self.imports)
        self.receiver = Receiver(self.ours)
        self.thread = threading.Thread(target=self.instance.run)
        self.thread.start()

    def send(self, batch_id: int, *requests: InferRequest, each: bool = False, slot: tuple[int, int] = (0, 0)) -> None:
        self.ours.sendall(encode_execute(self.layout, batch_id, requests, *slot, each))

    def receive(self, slot: Any = None) -> tuple[int, list[Reply]]:
        """Return the batch and the replies of the next frame."""
        received = self.receiver.receive()
        assert received is not None, "the channel was closed"
        _, kind, count, batch_id = parse_header(received)
        head = REPLY_HEAD if kind == FrameKind.REPLY else PARTIAL_HEAD
        *marks, _, meta = head.unpack_from(received, HEADER_SIZE)
        assert kind != FrameKind.REPLY or marks == sorted(marks)
        return batch_id, decode_answers(self.layout, received, HEADER_SIZE + head.size, meta, count, slot)[0]

    def receive_need(self) -> tuple[int, int, bool]:
        """Return the bytes, the token, and the mark of a NEED_OUTPUT, which must come next."""
        received = self.receiver.receive()
        assert received is not None, "the channel was closed"
        assert parse_header(received)[1] == FrameKind.NEED_OUTPUT
        nbytes, token, unused = NEED.unpack_from(received, HEADER_SIZE)
        return nbytes, token, unused


@contextlib.contextmanager
def instance_scene(
    backend: BackendInstance, *, decoupled: bool = False, iterative: bool = False
) -> Iterator[InstanceScene]:
    """Run an instance of this backend until the end of the context, where its thread must end."""
    sequences = {"sequence_batching": {"iterative_sequence": True}} if iterative else {}
    made = InstanceScene(backend, {**config(decoupled=decoupled), **sequences})
    try:
        yield made
    finally:
        made.ours.shutdown(socket.SHUT_WR)
        made.thread.join(PATIENCE)
        made.ours.close()
        assert not made.thread.is_alive()
