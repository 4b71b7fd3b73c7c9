"""An instance that takes its next batch while one runs, with the test as its front end, its backend, and its device."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from edge_serve.backends.base import BackendRequest, DeviceLost, OutputMemory, Reply, Timing
from edge_serve.errors import Internal
from edge_serve.messages.tensors import INLINE_BYTES, DataType, InferTensor
from edge_serve.workers.child.batch import TIMEOUT_EXPIRED
from edge_serve.workers.child.instance import Instance
from edge_serve.workers.child.pipelined import PipelinedInstance, kind_of
from edge_serve.workers.wire.frames import DEVICE_LOST, HEADER_SIZE, NEED, FrameKind, parse_header
from edge_serve.workers.wire.layout import TensorLayout
from tests.workers.child.instance_scene import Slot, instance_scene
from tests.workers.harness import PATIENCE, config, request, values


class Device:
    """A `QueueingInstance` whose device runs a batch when the test says so."""

    seats = 2

    def __init__(self) -> None:
        #: batches that have begun, in order, each with what it waits for
        self.begun: SimpleQueue[threading.Event] = SimpleQueue()
        self.fails_in_begin: BaseException | None = None
        self.fails_in_finish: BaseException | None = None
        self.output_bytes = 0

    def begin(self, batch: Sequence[BackendRequest], outputs: OutputMemory, timing: Timing) -> Any:
        fault, self.fails_in_begin = self.fails_in_begin, None
        if fault is not None:
            raise fault
        ran = threading.Event()
        view = outputs.allocate(self.output_bytes) if self.output_bytes else None
        self.begun.put(ran)
        return ran, [self._reply(one, view) for one in batch]

    def finish(self, begun: Any) -> list[Reply]:
        ran, replies = begun
        assert ran.wait(PATIENCE)
        fault, self.fails_in_finish = self.fails_in_finish, None
        if fault is not None:
            raise fault
        made: list[Reply] = replies
        return made

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        raise AssertionError

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def _reply(self, one: BackendRequest, view: memoryview | None) -> Reply:
        if view is None:
            return Reply([InferTensor("OUTPUT0", DataType.INT32, one.inputs[0].shape, bytes(one.inputs[0].data))])
        view[:] = bytes(range(256)) * (len(view) // 256)
        return Reply([InferTensor("OUTPUT0", DataType.INT32, (1, len(view) // 4), view)])


def test_next_batch_begins_while_one_runs_and_answers_keep_the_order() -> None:
    device = Device()
    with instance_scene(device) as one:
        one.send(1, request())
        one.send(2, request(range(16, 32)))
        first, second = device.begun.get(timeout=PATIENCE), device.begun.get(timeout=PATIENCE)
        second.set()
        first.set()

        answers = [one.receive(), one.receive()]

    assert [(number, values(replies[0])) for number, replies in answers] == [
        (1, list(range(16))),
        (2, list(range(16, 32))),
    ]


def test_requests_one_by_one_begin_one_after_the_other_and_are_answered_together() -> None:
    device = Device()
    with instance_scene(device) as one:
        one.send(1, request(), request(range(16, 32)), each=True)
        for _ in range(2):
            device.begun.get(timeout=PATIENCE).set()
        batch_id, replies = one.receive()

    assert batch_id == 1
    assert [values(reply) for reply in replies] == [list(range(16)), list(range(16, 32))]


def test_request_past_its_deadline_is_not_executed() -> None:
    device = Device()
    with instance_scene(device) as one:
        one.send(1, request(deadline_ns=1))
        _, (late,) = one.receive()
        one.send(2, request(), request(deadline_ns=1))
        device.begun.get(timeout=PATIENCE).set()
        _, replies = one.receive()

    assert late.error is not None
    assert late.error.message == TIMEOUT_EXPIRED
    assert [reply.error is None for reply in replies] == [True, False]


@pytest.mark.parametrize("place", ["begin", "finish"])
def test_error_fails_its_own_batch(place: str) -> None:
    device = Device()
    with instance_scene(device) as one:
        setattr(device, f"fails_in_{place}", Internal("no"))
        one.send(1, request())
        if place == "finish":
            device.begun.get(timeout=PATIENCE).set()
        _, (failed,) = one.receive()
        one.send(2, request())
        device.begun.get(timeout=PATIENCE).set()
        _, (good,) = one.receive()

    assert failed.error is not None
    assert failed.error.message == "no"
    assert good.error is None


def test_worker_that_has_lost_its_device_ends_once_both_batches_are_answered_and_takes_no_further_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that go on sending would keep it alive, and each of their requests would fail."""
    device, ended, statuses = Device(), threading.Event(), []

    def note(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(os, "_exit", note)
    with instance_scene(device) as one:
        device.fails_in_finish = DeviceLost("gone")
        one.send(1, request())
        one.send(2, request())
        first, second = device.begun.get(timeout=PATIENCE), device.begun.get(timeout=PATIENCE)
        first.set()
        batch_id, (failed,) = one.receive()
        assert (batch_id, type(failed.error)) == (1, Internal)
        one.send(3, request())
        with contextlib.suppress(Empty):  # it begins only if the fault is there
            device.begun.get(timeout=0.1).set()
        assert statuses == []
        second.set()
        assert one.receive()[0] == 2
        assert ended.wait(PATIENCE)
        one.ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.ours.recv(1)
        one.ours.setblocking(True)

    assert statuses[0] == DEVICE_LOST


def test_channel_closes_when_no_batch_can_be_answered_any_more(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The front end then restarts the worker. Without it, each later request would wait without an end."""

    def broken(*arguments: Any) -> bytes:
        raise MemoryError("none left")

    device = Device()
    with instance_scene(device) as one:
        monkeypatch.setattr(one.instance, "_encode", broken)
        one.ours.settimeout(2)
        one.send(1, request())
        device.begun.get(timeout=PATIENCE).set()
        assert one.receiver.receive() is None
    assert "MemoryError: none left" in capfd.readouterr().err


def test_output_in_the_slot_of_its_reply_is_not_copied() -> None:
    device = Device()
    device.output_bytes = 2 * INLINE_BYTES
    with instance_scene(device) as one:
        put = one.arena[4096 : 4096 + 4 * INLINE_BYTES]
        one.send(1, request(), slot=(4096, 4 * INLINE_BYTES))
        device.begun.get(timeout=PATIENCE).set()
        _, (reply,) = one.receive(Slot(4096, put))

    assert reply.outputs[0].offset == 4096
    assert bytes(put[2 * INLINE_BYTES :]) == bytes(2 * INLINE_BYTES), "a copy would lie behind the first"


def test_batch_without_a_slot_asks_for_one_by_its_number() -> None:
    device = Device()
    device.output_bytes = 2 * INLINE_BYTES
    with instance_scene(device) as one:
        one.send(7, request())
        asked = one.receiver.receive()
        assert asked is not None
        _, kind, _, batch_id = parse_header(asked)
        nbytes, token, _ = NEED.unpack_from(asked, HEADER_SIZE)
        one.instance.grant_slot(token, 8192, nbytes, "")
        device.begun.get(timeout=PATIENCE).set()
        _, (reply,) = one.receive(Slot(8192, one.arena[8192 : 8192 + nbytes]))

    assert (kind, batch_id, nbytes) == (FrameKind.NEED_OUTPUT, 7, 2 * INLINE_BYTES)
    assert reply.outputs[0].offset == 8192


def test_instance_with_one_seat_and_decoupled_models_have_one_thread() -> None:
    device = Device()
    assert kind_of(device, TensorLayout(config())) is PipelinedInstance
    assert kind_of(device, TensorLayout(config(decoupled=True))) is Instance
    device.seats = 1
    assert kind_of(device, TensorLayout(config())) is Instance
