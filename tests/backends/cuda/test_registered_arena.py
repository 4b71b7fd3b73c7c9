"""The registration of an arena with a device, step by step, on the host CudaApi."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_serve.backends import host
from edge_serve.backends.base import ArenaMemory, Timing
from edge_serve.backends.cuda.device_data import address_of
from edge_serve.backends.cuda.path_settings import PathSettings
from edge_serve.backends.cuda.registered_arena import RegisteredArena
from edge_serve.backends.cuda.tensor_path import PlainOutputs, TensorPath
from edge_serve.errors import Unavailable
from tests.backends.cuda.counting import CountingCuda

STEP = 64 * 1024


class Front:
    """The front end's side of an arena of four steps."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4 * STEP)
        self.asked: list[int] = []
        self.limit = 4 * STEP

    def pin(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        if nbytes > self.limit:
            raise Unavailable("no pinned memory left")
        return nbytes


class ArenaOutputs:
    """`OutputMemory` in a part of the arena."""

    inline = 0

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def allocate(self, nbytes: int) -> memoryview:
        return self._view[:nbytes]


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def cuda() -> CountingCuda:
    return CountingCuda()


@pytest.fixture
def arena(front: Front, cuda: CountingCuda) -> Iterator[RegisteredArena]:
    view = memoryview(front.memory)
    made = RegisteredArena(cuda, "m", 0, ArenaMemory(view, front.pin), STEP)
    made.acquire()
    yield made
    made.release()


def settle(arena: RegisteredArena) -> None:
    """Wait until no step is being registered."""
    if (grower := arena._grower) is not None:
        grower.join(20)


def start(front: Front) -> int:
    return address_of(memoryview(front.memory))


def test_steps_are_registered_as_far_as_tensors_lie(arena: RegisteredArena, front: Front) -> None:
    assert not arena.covers(start(front) + 100, STEP)
    settle(arena)

    assert front.asked == [STEP, 2 * STEP]
    assert arena.covers(start(front) + 100, STEP)
    assert not arena.covers(start(front) - 1, 2)
    assert arena.nbytes == 2 * STEP


def test_copy_over_the_end_of_a_step_is_made_in_pieces(
    arena: RegisteredArena, front: Front, cuda: CountingCuda
) -> None:
    """CUDA refuses a copy of memory that lies in two registrations, or in part of one, and any step may be the next."""
    view = memoryview(front.memory)
    view[:] = np.random.default_rng(1).bytes(len(view))
    front.limit = 2 * STEP
    arena.covers(start(front), 2 * STEP)
    settle(arena)
    path, device = TensorPath(cuda, registered=arena), cuda.malloc(4 * STEP)
    seat = path.take()

    path.copy_in(seat, [(device, [view[100:]])])
    path.ran(seat)
    path.copy_out(seat, [(device, 4 * STEP - 100)], PlainOutputs(), 0)
    assert path.finish(seat, Timing()) == [bytes(view[100:])]

    assert [one.nbytes for one in cuda.copies[:-1]] == [STEP - 100, STEP, STEP, STEP]
    path.close()


def test_copies_of_several_instances_do_not_wait_for_each_other(
    arena: RegisteredArena, front: Front, cuda: CountingCuda
) -> None:
    """One to memory that is not registered yet takes as long as the run before it."""
    front.limit, view = 0, memoryview(front.memory)
    one, other = (TensorPath(cuda, 1, PathSettings(pinned_output=False), arena) for _ in range(2))
    device, may_end, waits = cuda.malloc(16), threading.Event(), threading.Event()
    cuda.memset_async(device, 7, 16, 0)
    cuda.stream_synchronize(0)

    def work() -> None:
        waits.set()
        assert may_end.wait(20)

    def copy(path: TensorPath, at: int) -> None:
        path.copy_out(path.take(), [(device, 16)], ArenaOutputs(view[at:]), 16)

    cuda.run(work, one.compute_stream)
    thread = threading.Thread(target=copy, args=(one, 0))
    thread.start()
    assert waits.wait(20)
    copy(other, 32)
    assert (bytes(view[:16]), bytes(view[32:48])) == (bytes(16), b"\x07" * 16)
    may_end.set()
    thread.join()
    assert bytes(view[:16]) == b"\x07" * 16
    for path in (one, other):
        path.close()


def test_refusal_is_one_line_in_the_log_and_the_rest_stays_ordinary(
    arena: RegisteredArena, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(host, "log", lambda level, text: lines.append(text))
    front.limit = STEP
    for _ in range(3):
        assert not arena.covers(start(front), 2 * STEP)
        settle(arena)

    assert arena.covers(start(front), STEP)
    assert lines == [
        "model 'm': 65536 bytes of its tensor memory are registered with the device, and no more: no pinned memory "
        "left; copies of the rest are slower"
    ]


def test_any_error_ends_the_registration_and_nothing_else(
    front: Front, cuda: CountingCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(host, "log", lambda level, text: lines.append(text))

    def pin(nbytes: int) -> int:
        raise OSError(24, "Too many open files")

    arena = RegisteredArena(cuda, "m", 0, ArenaMemory(memoryview(front.memory), pin), STEP)
    arena.acquire()
    for _ in range(2):
        assert not arena.covers(start(front), STEP)
        settle(arena)
    arena.release()
    assert len(lines) == 1
    assert "no more: OSError: [Errno 24] Too many open files" in lines[0]


def test_registration_that_fails_leaves_the_memory_ordinary(
    arena: RegisteredArena, front: Front, cuda: CountingCuda
) -> None:
    cuda.fail("cudaHostRegister", 2)
    arena.covers(start(front), STEP)
    settle(arena)

    assert not arena.covers(start(front), STEP)
    assert arena.pieces(start(front), STEP) == [STEP]


def test_two_instances_start_one_registration(
    arena: RegisteredArena, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would register a step twice, and a batch would fail with the thread that is started twice."""
    made, make = [], threading.Thread

    def thread(**about: Any) -> threading.Thread:
        made.append(make(**about))
        if len(made) == 1:  # the second instance asks between the question and the answer of the first
            other = make(target=arena.covers, args=(start(front), 10))
            others.append(other)
            other.start()
            other.join(0.1)
        return made[-1]

    others: list[threading.Thread] = []
    monkeypatch.setattr("edge_serve.backends.cuda.registered_arena.threading.Thread", thread)
    assert not arena.covers(start(front), 10)
    monkeypatch.undo()
    others[0].join(20)
    for grower in made:
        grower.join(20)
    assert len(made) == 1
    assert arena.nbytes == STEP


def test_last_instance_unregisters_everything(front: Front, cuda: CountingCuda) -> None:
    before = cuda.open_handles()
    arena = RegisteredArena(cuda, "m", 0, ArenaMemory(memoryview(front.memory), front.pin), STEP)
    paths = [TensorPath(cuda, registered=arena) for _ in range(2)]
    arena.covers(start(front), 3 * STEP)
    settle(arena)
    paths[0].close()
    assert arena.covers(start(front), STEP)

    paths[1].close()

    assert not arena.covers(start(front), STEP)
    assert cuda.open_handles() == before
