"""The front end's end of a control channel, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.errors import Internal
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, Handle, InferTensor
from edge_serve.workers.front import frame_socket
from edge_serve.workers.front.process import Process, SharedProcessLost
from edge_serve.workers.front.workers import Hooks, OpenedModel, Workers
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.frames import CANCELLATION, HEADER, LONGEST, VERSION, FrameKind, frame
from tests.stories import played
from tests.workers.harness import Recorder, Served, config, request, run, serving, spec, values
from tests.workers.hostile import run_hostile_processes


def process_of(served: Served) -> Process:
    return served.model._placed[0].worker.process


def fill(process: Process) -> None:
    """Send frames without effect until the socket is full; the process must be stopped."""
    for _ in range(60):
        process.send(frame(FrameKind.CANCEL, 1, CANCELLATION.pack(0, 0)) * 1000)


def descriptors_of(path: Path) -> int:
    """How many descriptors of this process are open on a file."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found += os.path.samestat(os.stat(f"/proc/self/fd/{fd}"), path.stat())
    return found


@played
async def test_a_descriptor_that_waits_to_be_sent_is_a_duplicate(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        process, (pid,) = process_of(served), served.model.pids()
        os.kill(pid, signal.SIGSTOP)
        fill(process)
        other = Arena("other", Budget(1 << 24))
        assert process.exports._number(other)
        other.close()  # and its descriptors with it
        os.kill(pid, signal.SIGCONT)
        assert not await served.model.refusal(20)
        assert values((await served.ask(request())).replies[0]) == list(range(16))
        assert served.model.pids() == [pid]


@played
async def test_descriptors_that_were_never_sent_are_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        process, (pid,) = process_of(served), served.model.pids()
        os.kill(pid, signal.SIGSTOP)
        fill(process)
        marker = tmp_path / "marker"
        marker.touch()
        with marker.open("rb") as file:
            for _ in range(10):
                process.send(frame(FrameKind.ARENA, 1), (file.fileno(),))
        assert descriptors_of(marker) == 10
        os.kill(pid, signal.SIGKILL)
        await served.listener.lost()
        assert descriptors_of(marker) == 0
        await served.listener.back()


def test_a_frame_that_cannot_be_handled_ends_the_worker_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(update: object, worker: object) -> None:
        raise RuntimeError("the hook is broken")

    async def work() -> None:
        async with serving(tmp_path, config(), hooks=Hooks(metric=fail)) as served:
            served.send(request(do="metric"))
            while (event := await served.listener.next())[0] == "reply":
                pass
            assert "cannot be handled: RuntimeError: the hook is broken" in event[2].message
            await served.listener.back()
            assert values((await served.ask(request())).replies[0]) == list(range(16))

    run(work())
    assert "the hook is broken" in caplog.text


@pytest.mark.parametrize("moment", [FrameKind.HEALTH, FrameKind.EXECUTE])
def test_half_a_large_frame_of_a_dead_worker_leaves_no_memory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: FrameKind
) -> None:
    half = HEADER.pack(
        LONGEST - 1, VERSION, FrameKind.LOG if moment == FrameKind.HEALTH else FrameKind.REPLY, 0, 1
    ) + bytes(1 << 22)
    run_hostile_processes(monkeypatch, tmp_path, {moment: [half]}, {})
    monkeypatch.setattr(frame_socket, "GRACE", 0.1)

    async def work() -> None:
        async with serving(tmp_path) as served:
            old = weakref.ref(process_of(served))
            served.send(request())
            assert await served.model.refusal(0.1) or moment == FrameKind.EXECUTE
            while tracemalloc.get_traced_memory()[0] < 1 << 22:
                await asyncio.sleep(0.01)
            os.kill(served.model.pids()[0], signal.SIGKILL)
            await served.listener.lost()
            assert tracemalloc.get_traced_memory()[0] < 1 << 22
            await served.listener.back()
            await asyncio.sleep(frame_socket.GRACE + 0.2)  # the timer of a process that closed its channel
            assert old() is None, "nothing waits for a garbage collection"

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        run(work())
    finally:
        tracemalloc.stop()
        gc.enable()


@played
async def test_an_arena_that_cannot_be_mapped_costs_its_request_and_not_the_worker(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        process, (pid,), other = process_of(served), served.model.pids(), Arena("other", Budget(1 << 24))
        slot = other.allocate(1 << 16)
        there = InferTensor("INPUT0", DataType.INT32, (1, 1 << 14), slot.view, slot.offset)
        process.exports._known[other] = number = 99
        other.on_close.append(process.exports._remove)
        with (tmp_path / "empty").open("w+b") as empty:
            process.send(frame(FrameKind.ARENA, number), (empty.fileno(),))
        reply = await served.ask(InferRequest("echo", inputs=[Handle.of(there, other)]), request())
        assert "the memory of an input cannot be mapped" in str(reply.replies[0].error)
        assert values(reply.replies[1]) == list(range(16))
        assert served.model.pids() == [pid]
        slot.release()
        other.close()


@asynccontextmanager
async def opened_together(directory: Path, **deeds: str) -> AsyncIterator[list[OpenedModel | BaseException]]:
    """Models that are opened in one worker at the same time: `on_open` of each."""
    workers, arena = Workers(), Arena("all", Budget(1 << 24))

    async def open(name: str) -> OpenedModel:
        model = spec(directory, config(on_open=deeds[name]))
        made = ModelSpec(name, 1, model.model_directory, model.version_directory, model.config)
        return await workers.open(made, "echo", [InstanceSpec(name)], Recorder(), arena)

    results = await asyncio.gather(*map(open, deeds), return_exceptions=True)
    try:
        yield results
    finally:
        for one in results:
            if isinstance(one, OpenedModel):
                await one.close()
        await workers.stop()
        arena.close()


@played
async def test_each_model_of_a_process_that_dies_may_have_ended_it(tmp_path: Path) -> None:
    async with opened_together(tmp_path, waits="sleep", dies="exit") as results:
        assert list(map(type, results)) == [SharedProcessLost] * 2


@pytest.mark.slow
@played
async def test_a_model_for_which_the_process_was_killed_is_the_only_guilty_one(tmp_path: Path) -> None:
    async with opened_together(tmp_path, dies="exit") as results:
        assert list(map(type, results)) == [Internal]
    async with opened_together(tmp_path, a="", b="") as results:
        assert isinstance(results[0], OpenedModel)
        process = results[0]._placed[0].worker.process
        process.kill("was killed: model 'a' hangs in its warm-up", guilty="a")
        assert [type(process.loss(name, "")) for name in "ab"] == [Internal, SharedProcessLost]
