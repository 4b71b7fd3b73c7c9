"""One instance in the worker, with the test as its front end and its backend."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import cast

import numpy as np
import pytest

from edge_serve.backends.base import BackendRequest, Reply, Timing
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import INLINE_BYTES, DataType, InferTensor
from edge_serve.workers.child.instance import Receiver
from edge_serve.workers.child.memory import arena_imports
from edge_serve.workers.wire.frames import HEADER_SIZE, FrameKind, frame
from edge_serve.workers.wire.layout import OFFSET_BITS
from tests.footprint import footprint
from tests.workers.child.instance_scene import InstanceScene, Slot, instance_scene
from tests.workers.harness import request, values

Execute = Callable[[Sequence[BackendRequest]], list[Reply]]


class Backend:
    """Does what the test says."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        return self._execute(batch)

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        pass


def scene(
    execute: Execute, *, decoupled: bool = False, iterative: bool = False
) -> AbstractContextManager[InstanceScene]:
    return instance_scene(Backend(execute), decoupled=decoupled, iterative=iterative)


def echo(batch: Sequence[BackendRequest]) -> list[Reply]:
    return [
        Reply([InferTensor("OUTPUT0", one.inputs[0].datatype, one.inputs[0].shape, one.inputs[0].data)])
        for one in batch
    ]


def elsewhere(number: int) -> InferRequest:
    """A request whose first input lies in another model's arena."""
    return InferRequest(
        "echo", inputs=[InferTensor("INPUT0", DataType.INT32, (1, 16), bytes(64), number << OFFSET_BITS)]
    )


@pytest.mark.parametrize("each", [False, True])
def test_an_arena_that_does_not_arrive_costs_its_request(monkeypatch: pytest.MonkeyPatch, each: bool) -> None:
    monkeypatch.setattr(arena_imports, "_WAIT_SECONDS", 0.05)
    with scene(echo) as here:
        for batch_id in (1, 2):
            here.send(batch_id, request(), elsewhere(7), request(), each=each)
            found, replies = here.receive()
            assert found == batch_id
            assert [reply.error is None for reply in replies] == [True, False, True]
            assert "the memory of an input did not arrive" in str(replies[1].error)
        here.send(3, request(), each=each)
        assert here.receive()[1][0].error is None


class Interrupted:
    """A socket. The handler of a signal raises in its last read, which has taken the last of `parts` before."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def recv_into(self, buffer: memoryview, *_: int) -> int:
        part = self.parts.pop(0)
        buffer[: len(part)] = part
        if not self.parts:
            raise TimeoutError
        return len(part)


@pytest.mark.parametrize("size", [100, 100_000])
def test_an_interrupted_receiver_knows_whether_it_has_read(size: int) -> None:
    first, second = (frame(FrameKind.EXECUTE, number, bytes(size)) for number in (1, 2))
    head, rest = first[:5000], first[5000:]
    before = [head, rest] if rest else [head]
    for parts, nothing in (([b""], True), ([second[:50]], False), ([second[:50], second[50:60]], False)):
        receiver = Receiver(cast(socket.socket, Interrupted(*before, *parts)))
        last = receiver.receive()
        assert last is not None
        assert bytes(last) == first
        with pytest.raises(TimeoutError):
            receiver.receive()
        assert receiver.has_read_nothing(last) is nothing
    receiver = Receiver(cast(socket.socket, Interrupted(b"")))
    with pytest.raises(TimeoutError):
        receiver.receive()
    assert receiver.has_read_nothing(bytearray(HEADER_SIZE))


def test_a_batch_that_cannot_be_read_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: int, size: int) -> memoryview:
        raise MemoryError("no memory is left")

    with scene(echo) as here:
        monkeypatch.setattr(here.imports, "at", fail)
        here.send(1, request(), elsewhere(7))
        assert ["MemoryError" in str(reply.error) for reply in here.receive()[1]] == [True, True]
        here.send(2, request())
        assert here.receive()[1][0].error is None


def test_a_cancelled_request_stays_cancelled_beside_many_others() -> None:
    kept: list[BackendRequest] = []

    def keep(batch: Sequence[BackendRequest]) -> list[Reply]:
        kept.extend(batch)
        return [Reply() for _ in batch]

    with scene(keep, decoupled=True) as here:
        before = footprint(here.instance)
        for batch_id in range(1, 5001):
            here.send(batch_id, request())
            here.receive()
            here.instance.cancel(batch_id, 0)
            if batch_id > 1:
                kept[1].send(None, True)  # type: ignore[misc]  # decoupled: there is one
                del kept[1]
                here.receive()
                here.instance.cancel(batch_id, 0)  # too late
        assert kept[0].is_cancelled()
        assert footprint(here.instance) < before + 100, "one mark is left"
        kept[0].send(None, True)  # type: ignore[misc]
        here.receive()


def test_a_mark_that_overtakes_its_batch_holds_and_one_that_comes_too_late_does_not_stay() -> None:
    seen: list[bool] = []

    def look(batch: Sequence[BackendRequest]) -> list[Reply]:
        seen.append(batch[0].is_cancelled())
        return echo(batch)

    with scene(look) as here:
        here.instance.cancel(2, 0)
        for batch_id in (1, 2):
            here.send(batch_id, request())
            here.receive()
        assert seen == [False, True]
        here.send(3, request())
        here.receive()
        before = footprint(here.instance)
        for index in range(100):
            here.instance.cancel(2, index)
        assert footprint(here.instance) < before + 20


def test_the_marks_of_a_request_that_failed_are_removed() -> None:
    def fail(batch: Sequence[BackendRequest]) -> list[Reply]:
        raise ValueError("no")

    with scene(fail, decoupled=True) as here:
        before = footprint(here.instance)
        for batch_id in range(1, 101):
            here.instance.cancel(batch_id, 0)
            here.send(batch_id, request())
            here.receive()
        assert footprint(here.instance) < before + 50


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("when", ["before the run", "during the run", "after the run"])
def test_a_model_that_keeps_a_request_for_its_next_run_hears_that_the_client_is_gone(
    when: str, decoupled: bool
) -> None:
    kept: list[BackendRequest] = []

    def keep(batch: Sequence[BackendRequest]) -> list[Reply]:
        kept.append(batch[1])
        if when == "during the run":
            here.instance.cancel(1, 1)
        return [Reply(rescheduled=True) for _ in batch]

    with scene(keep, decoupled=decoupled, iterative=True) as here:
        if when == "before the run":
            here.instance.cancel(1, 1)
        here.send(1, request(), request())
        here.receive()
        if when == "after the run":
            here.instance.cancel(1, 1)
        here.instance.cancel(1, 0)  # the model has not kept it
        here.send(2, request(), request())
        here.receive()
        first, second = kept
        assert (first.is_cancelled(), second.is_cancelled()) == (True, False)
        kept.clear()
        del first, second
        here.instance.cancel(1, 1)
        assert not here.instance._cancellations.marks


def in_one_array(size: int) -> Execute:
    """A model that writes each output, of `size` times the values of the input, to the same array."""
    output = np.zeros((1, 16 * size), np.int32)

    def execute(batch: Sequence[BackendRequest]) -> list[Reply]:
        made = []
        for one in batch:
            output[:] = np.tile(one.inputs[0].array(), size)
            made.append(Reply([InferTensor("OUTPUT0", DataType.INT32, output.shape, output.data.cast("B"))]))
        return made

    return execute


def test_requests_one_by_one_get_their_own_answers_from_a_model_that_uses_its_output_again() -> None:
    with scene(in_one_array(1)) as here:
        here.send(1, request(), request(range(16, 32)), request(deadline_ns=1), request(range(32, 48)), each=True)
        first, second, late, last = here.receive()[1]
    assert [values(one)[0] for one in (first, second, last)] == [0, 16, 32]
    assert late.error is not None


@pytest.mark.parametrize(("expected", "asks"), [(0, [(1, True), (2, False), (4, False)]), (1, [(2, False), (4, False)]),
                                                (3, [])])  # fmt: skip
def test_large_answers_of_one_batch_keep_their_data_when_they_outgrow_its_slot(
    expected: int, asks: list[tuple[int, bool]]
) -> None:
    """The slot that came with the batch has room for `expected` answers."""
    size, large = 2 * INLINE_BYTES // 64, 2 * INLINE_BYTES
    with scene(in_one_array(size)) as here:
        here.send(7, *map(request, (range(16), range(16, 32), range(32, 48))), each=True, slot=(0, expected * large))
        slot = Slot(0, here.arena[: expected * large])
        for answers, unused in asks:
            nbytes, token, is_unused = here.receive_need()
            assert (nbytes, is_unused) == (answers * large, unused)
            place = slot.offset + 4 * large
            here.instance.grant_slot(token, place, nbytes, "")
            slot = Slot(place, here.arena[place : place + nbytes])
        replies = here.receive(slot)[1]
    assert [values(one) for one in replies] == [list(range(start, start + 16)) * size for start in (0, 16, 32)]


def test_an_answer_asks_for_no_more_memory_than_there_is_before_it_fails() -> None:
    large = 2 * INLINE_BYTES

    def execute(batch: Sequence[BackendRequest]) -> list[Reply]:
        first = int(batch[0].inputs[0].array().flat[0])
        output = np.full((1, (4 if first == 0 else 1) * large // 4), first, np.int32)
        return [Reply([InferTensor("OUTPUT0", DataType.INT32, output.shape, output.data.cast("B"))])]

    with scene(execute) as here:
        here.send(7, request(), request(range(16, 32)), each=True)
        nbytes, token, unused = here.receive_need()
        assert (nbytes, unused) == (4 * large, True), "as much as the first answer needs"
        here.instance.grant_slot(token, 0, nbytes, "")
        nbytes, token, _ = here.receive_need()
        assert nbytes == 8 * large
        here.instance.grant_slot(token, 0, 0, "no memory")
        nbytes, token, _ = here.receive_need()
        assert nbytes == 5 * large, "as much as both answers need"
        here.instance.grant_slot(token, 4 * large, nbytes, "")
        first, second = here.receive(Slot(4 * large, here.arena[4 * large : 9 * large]))[1]
    assert (len(values(first)), values(second)[0]) == (large, 16)


def test_large_answer_without_memory_fails_alone() -> None:
    with scene(in_one_array(2 * INLINE_BYTES // 64)) as here:
        here.send(7, request(), request(range(16, 32)), each=True, slot=(4096, 2 * INLINE_BYTES))
        here.instance.grant_slot(here.receive_need()[1], 0, 0, "no memory")
        first, second = here.receive(Slot(4096, here.arena[4096 : 4096 + 2 * INLINE_BYTES]))[1]
    assert values(first)[:16] == list(range(16))
    assert "no memory" in str(second.error)
