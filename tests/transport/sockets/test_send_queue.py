"""The send queue: bytes that the kernel takes, callbacks, and large buffers, which are not copied."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator

import pytest

from edge_serve.messages.tensors import Buffer
from edge_serve.transport.sockets.send_queue import SendQueue


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        yield left, right


def drain(queue: SendQueue, right: socket.socket) -> bytes:
    """Everything that is sent when the other side reads as it comes."""
    data = bytearray()
    while True:
        queue.flush()
        try:
            data += right.recv(100_000)
        except BlockingIOError:
            if not queue.pending:
                return bytes(data)


def test_order_and_callbacks(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    queue = SendQueue(left)
    sent: list[str] = []
    queue.push((b"ab", b"", memoryview(b"cd")), 4, lambda: sent.append("first"))
    queue.push((b"ef",), 2)
    queue.push((), 0, lambda: sent.append("empty"))
    assert sent == []
    queue.flush()

    assert (sent, queue.pending, queue.taken) == (["first", "empty"], 0, 6)
    assert right.recv(100) == b"abcdef"


def test_callbacks_wait_for_the_last_byte(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    queue = SendQueue(left)
    sent: list[str] = []
    queue.push((bytes(3_000_000),), 3_000_000, lambda: sent.append("large"))
    queue.flush()
    assert sent == []
    assert 0 < queue.pending < 3_000_000

    assert len(drain(queue, right)) == 3_000_000
    assert sent == ["large"]


def test_random_pushes_arrive_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    queue = SendQueue(left)
    rng = random.Random(1)
    expected = b""
    received = bytearray()
    sent: list[int] = []
    for number in range(300):
        parts: list[Buffer] = []
        for _ in range(rng.randrange(4)):
            data = rng.randbytes(rng.choice((0, 1, 50, 5_000, 100_000)))
            expected += data
            parts.append(rng.choice((bytes, bytearray, memoryview))(data))
        queue.push(parts, sum(map(len, parts)), lambda number=number: sent.append(number))  # type: ignore[misc]
        queue.flush()
        if rng.random() < 0.3:
            received += right.recv(1 << 20) if queue.taken > len(received) else b""
    received += drain(queue, right)

    assert received == expected
    assert sent == list(range(300))


def test_views_of_wide_items(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    queue = SendQueue(left)
    data = random.Random(2).randbytes(4_000_000)
    queue.push((b"head", memoryview(data).cast("d")), 4_000_004)  # type: ignore[arg-type]  # Buffer means views of any item

    assert drain(queue, right) == b"head" + data


def test_large_buffers_are_not_copied(pair: tuple[socket.socket, socket.socket]) -> None:
    left, _ = pair
    queue = SendQueue(left)
    data = bytes(5_000_000)
    before = sys.getrefcount(data)
    queue.push((b"head", data), 5_000_004)
    queue.flush()

    assert queue.pending > 0
    assert sys.getrefcount(data) == before + 1


def test_dropping_calls_every_callback_once(pair: tuple[socket.socket, socket.socket]) -> None:
    left, _ = pair
    queue = SendQueue(left)
    sent: list[str] = []
    queue.push((bytes(3_000_000),), 3_000_000, lambda: sent.append("a"))
    queue.push((b"x",), 1, lambda: sent.append("b"))
    queue.flush()
    queue.discard()
    queue.discard()

    assert (sent, queue.pending) == (["a", "b"], 0)


def test_flush_to_a_closed_connection_raises(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    right.close()
    queue = SendQueue(left)
    queue.push((b"x",), 1)
    with pytest.raises(OSError):
        queue.flush()
