"""Tensors in another model's arena: the worker reads them there."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edge_serve.errors import Internal
from edge_serve.messages.infer import InferRequest, RequestedOutput
from edge_serve.messages.tensors import DataType, Handle, InferTensor, Shared, Unseen
from edge_serve.workers.child.memory import arena_imports
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.memory import arena_exports
from edge_serve.workers.memory.arena import Arena, Budget, Slot
from edge_serve.workers.memory.arena_exports import ArenaExports
from edge_serve.workers.memory.regions import SharedMemoryRegions
from edge_serve.workers.wire.frames import FrameKind, parse_header
from edge_serve.workers.wire.layout import OFFSET_BITS, TENSOR
from tests.stories import played
from tests.workers.harness import config, request, run, serving, values

COUNT = 100_000


def lent(arena: Arena, number: int = 0) -> tuple[Slot, InferTensor]:
    """An input whose bytes lie in `arena`."""
    slot = arena.allocate(4 * COUNT)
    slot.view[:] = np.arange(number, number + COUNT, dtype=np.int32).tobytes()
    return slot, Handle.of(InferTensor("INPUT0", DataType.INT32, (1, COUNT), slot.view, slot.offset), arena)


def mapped(pid: int, name: str) -> list[str]:
    """The rights of the mappings that a process has of an arena."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if f"edge-serve:{name}" in line]


@played
async def test_a_tensor_of_another_arena_is_read_where_it_lies(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=COUNT)) as served:
        other = Arena("other", Budget(1 << 24))
        for number in range(3):
            slot, tensor = lent(other, number)
            used = served.arena.used_bytes
            batch = served.send(InferRequest("echo", inputs=[tensor]))
            pending = served.model._placed[0].placement.channels()[0]._pending[batch]
            assert not pending.copies
            expected = pending.slot.capacity if pending.slot is not None else 0
            assert served.arena.used_bytes - used == -(-expected // mmap.PAGESIZE) * mmap.PAGESIZE
            reply = await served.listener.reply()
            assert values(reply.replies[0])[-1] == COUNT - 1 + number
            assert reply.lease is not None
            reply.lease.release()
            slot.release()
        (pid,) = served.model.pids()
        assert mapped(pid, "other") == ["r--s"]

        other.close()

        small = InferRequest("echo", inputs=[InferTensor("INPUT0", DataType.INT32, (1, 1), bytes(4))])
        while mapped(pid, "other"):
            await served.ask(small)


def test_a_worker_that_has_no_descriptor_left_for_an_arena_ends_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=COUNT)) as served:
            other = Arena("other", Budget(1 << 24))
            slot, tensor = lent(other)
            assert (await served.ask(request(do="exhaust"))).replies[0].error is None
            served.send(InferRequest("echo", inputs=[tensor]))
            assert "ended with exit status 1" in (await served.listener.lost()).message
            assert "a descriptor from the server did not arrive" in caplog.text
            await served.listener.back()
            served.send(InferRequest("echo", inputs=[tensor]))
            reply = await served.listener.reply()
            assert values(reply.replies[0])[-1] == COUNT - 1
            if reply.lease is not None:
                reply.lease.release()
            slot.release()
            other.close()

    caplog.set_level("INFO")
    run(work())


@played
async def test_a_worker_that_was_started_again_is_lent_the_arena_again(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=COUNT)) as served:
        other = Arena("other", Budget(1 << 24))
        slot, tensor = lent(other)
        for _ in range(2):
            reply = await served.ask(InferRequest("echo", inputs=[tensor]))
            assert values(reply.replies[0])[-1] == COUNT - 1
            assert reply.lease is not None
            reply.lease.release()
            os.kill(served.model.pids()[0], 9)
            await served.listener.lost()
            await served.listener.back()
        assert len(other.on_close) == 0
        slot.release()
        other.close()


@pytest.fixture
def regions(tmp_path: Path) -> SharedMemoryRegions:
    """Return the regions of a client, with the region `r` in the file `k`."""
    (tmp_path / "k").write_bytes(bytes(64))
    made = SharedMemoryRegions(str(tmp_path))
    made.register("r", "k", 0, 64)
    return made


class Sent:
    """Takes frames; remembers their kinds and numbers."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int]] = []

    def __call__(self, data: bytes, fds: Sequence[int]) -> None:
        _, kind, _, number = parse_header(data)
        self.frames.append((kind, number))
        assert len(fds) == (kind in (FrameKind.ARENA, FrameKind.REGION))


def test_each_arena_is_sent_once_and_taken_back_when_it_closes() -> None:
    sent = Sent()
    exports = ArenaExports(sent)
    own, first, second = (Arena(name, Budget(1 << 24)) for name in ("own", "first", "second"))
    inputs = [lent(arena)[1] for arena in (first, second, first, own)]
    loose = InferTensor("x", DataType.INT8, (1,), b"1")

    placed = exports.export([*inputs, loose], own)

    assert [tensor.offset >> OFFSET_BITS for tensor in placed[:4]] == [1, 2, 1, 0]
    assert placed[3].offset >= 0
    assert placed[4] is loose
    assert sent.frames == [(FrameKind.ARENA, 1), (FrameKind.ARENA, 2)]

    first.close()
    assert sent.frames[2:] == [(FrameKind.ARENA_GONE, 1)]
    exports.close()
    second.close()
    assert len(sent.frames) == 3
    own.close()


def test_an_arena_that_is_closed_is_not_lent() -> None:
    sent = Sent()
    gone = Arena("gone", Budget(1 << 24))
    _, tensor = lent(gone)
    gone.close()
    own = Arena("own", Budget(1 << 24))

    assert ArenaExports(sent).export([tensor], own) == [tensor]
    assert not sent.frames
    own.close()


def test_memory_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_imports, "_WAIT_SECONDS", 0.01)

    with pytest.raises(Internal, match="did not arrive"):
        ArenaImports().at(7 << OFFSET_BITS, 4)


def test_a_region_is_sent_once_and_revoked_with_its_last_reference(regions: SharedMemoryRegions) -> None:
    sent = Sent()
    exports = ArenaExports(sent)
    own, other = (Arena(name, Budget(1 << 24)) for name in ("own", "other"))
    there = regions.find("r", 8, 4)
    inputs = [lent(other)[1], Shared("x", DataType.INT32, (1,), Unseen.buffer(4), -1, there.region, there.offset)]

    (_, placed), (output,) = exports.export(inputs, own), exports.export_places([RequestedOutput("y", place=there)])

    assert placed.offset == 2 << OFFSET_BITS | 8
    assert output.place is not None
    assert output.place.offset == placed.offset
    assert sent.frames == [(FrameKind.ARENA, 1), (FrameKind.REGION, 2)]

    regions.unregister("")
    del there, inputs
    assert len(sent.frames) == 2, "a request still has it"
    del output
    assert sent.frames[2:] == [(FrameKind.ARENA_GONE, 2)]
    exports.close()
    own.close()
    other.close()


def test_numbers_that_are_not_in_use_are_given_again(
    regions: SharedMemoryRegions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may register a region for each request."""
    monkeypatch.setattr(arena_exports, "_HIGHEST_NUMBER", 4)
    sent = Sent()
    exports = ArenaExports(sent)
    other = Arena("other", Budget(1 << 24))

    def export(name: str) -> int:
        regions.register(name, "k", 0, 64)
        (output,) = exports.export_places([RequestedOutput("y", place=regions.find(name, 8, 4))])
        assert output.place is not None
        return output.place.offset >> OFFSET_BITS

    numbers = [export("first")]
    exports.export([lent(other)[1]], None)
    for _ in range(4):
        numbers.append(export("again"))
        regions.unregister("again")
    regions.unregister("first")
    other.close()
    numbers += [export(name) for name in "abcd"]

    assert numbers == [1, 3, 4, 3, 4, 1, 2, 3, 4]
    assert sent.frames[1] == (FrameKind.ARENA, 2)
    exports.close()


def test_the_highest_number_of_a_region_fits_into_a_frame(regions: SharedMemoryRegions) -> None:
    exports = ArenaExports(Sent())
    exports._next_number = arena_exports._HIGHEST_NUMBER
    there = regions.find("r", 8, 4)

    (placed,) = exports.export(
        [Shared("x", DataType.INT32, (1,), Unseen.buffer(4), -1, there.region, there.offset)], None
    )

    assert len(TENSOR[0].pack(0, 0, 0, 0, placed.offset, 4)) == TENSOR[0].size
    assert exports._next_number == 1
    exports.close()


def test_no_region_is_announced_after_the_end(regions: SharedMemoryRegions) -> None:
    sent = Sent()
    exports = ArenaExports(sent)
    exports.export_places([RequestedOutput("y", place=regions.find("r", 8, 4))])
    exports.close()

    regions.unregister("")

    assert sent.frames == [(FrameKind.REGION, 1)]
