"""Frames over a socket: whole, in pieces, several at once; what breaks a channel; what a full socket queues."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edge_serve.workers.front.frame_socket import GRACE, FrameSocket
from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE, VERSION, frame
from tests.stories import played

FRAMES = [frame(2, 7, b"one", 1), frame(5, 8), frame(27, 9, b"three" * 100, 2)]
KNOWN = [(2, 1, 7, b"one"), (5, 0, 8, b""), (27, 2, 9, b"three" * 100)]


class Scene:
    """A socket with a worker's end, the frames that it received, and why it is broken."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.broken: list[tuple[str, float]] = []
        self.socket = FrameSocket(
            asyncio.get_running_loop(),
            ours,
            "channel",
            "model 'm'",
            self.on_frame,
            lambda *why: self.broken.append(why),
        )

    def on_frame(self, kind: int, count: int, frame_id: int, whole: bytes) -> None:
        if kind == 1:
            raise RuntimeError("no such batch")
        self.frames.append((kind, count, frame_id, whole[HEADER_SIZE:]))

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)


@asynccontextmanager
async def scene_of_socket() -> AsyncIterator[Scene]:
    made = Scene()
    try:
        yield made
    finally:
        made.socket.close()
        made.theirs.close()


@pytest.mark.parametrize("size", [1, 3, HEADER_SIZE, HEADER_SIZE + 1, 1000])
@played
async def test_frames_are_found_in_pieces_of_any_size(size: int) -> None:
    async with scene_of_socket() as scene:
        data = b"".join(FRAMES)
        for at in range(0, len(data), size):
            scene.theirs.sendall(data[at : at + size])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await scene.settle()
        assert scene.frames == KNOWN
        assert scene.broken == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEADER.pack(0, VERSION + 1, 2, 0, 1), "it broke the protocol: found a frame header of version"),
        (frame(1), "a message from it cannot be handled: RuntimeError: no such batch"),
    ],
)
@played
async def test_a_bad_frame_breaks_the_channel(data: bytes, reason: str) -> None:
    async with scene_of_socket() as scene:
        scene.theirs.sendall(data)
        await scene.settle()
        ((found, grace),) = scene.broken
        assert found.startswith(reason)
        assert grace == 0


@played
async def test_the_end_of_a_channel_gives_the_worker_time_to_end() -> None:
    async with scene_of_socket() as scene:
        scene.theirs.close()
        await scene.settle()
        assert scene.broken == [("it closed its channel", GRACE)]


@pytest.mark.parametrize("end", ["hang_up", "drain", "close"])
@played
async def test_nothing_is_reported_once_the_end_is_known(end: str) -> None:
    async with scene_of_socket() as scene:
        scene.theirs.sendall(FRAMES[0])
        scene.theirs.close()
        getattr(scene.socket, end)()
        await scene.settle()
        assert scene.broken == []
        assert scene.frames == (KNOWN[:1] if end != "close" else [])


@played
async def test_a_full_socket_queues_and_keeps_the_order() -> None:
    async with scene_of_socket() as scene:
        sent = [frame(2, number, bytes(100_000)) for number in range(20)]
        for one in sent:
            scene.socket.send(one)
        scene.theirs.setblocking(False)
        received, whole = bytearray(), b"".join(sent)
        while len(received) < len(whole):
            received += await asyncio.get_running_loop().sock_recv(scene.theirs, 1 << 16)
        assert received == whole


@played
async def test_a_descriptor_that_is_closed_breaks_the_channel() -> None:
    async with scene_of_socket() as scene:
        with tempfile.TemporaryFile() as file:
            number = file.fileno()
        scene.socket.send(FRAMES[0], [number])
        ((reason, grace),) = scene.broken
        assert "Bad file descriptor" in reason
        assert grace == 0


@played
async def test_a_closed_socket_takes_frames_and_discards_them() -> None:
    async with scene_of_socket() as scene:
        scene.socket.close()
        scene.socket.send(FRAMES[0])
        assert scene.broken == []
