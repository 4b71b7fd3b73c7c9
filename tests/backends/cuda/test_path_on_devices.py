"""The tensor path over each implementation of `CudaApi`, and on a GPU where there is one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from edge_serve.backends.base import ArenaMemory, Timing
from edge_serve.backends.cuda.api import CudaApi
from edge_serve.backends.cuda.device_data import address_of
from edge_serve.backends.cuda.path_settings import PathSettings
from edge_serve.backends.cuda.registered_arena import RegisteredArena
from edge_serve.backends.cuda.tensor_path import Seat, TensorPath
from tests.backends.cuda.test_cuda_api import cuda as cuda

STEP = 1 << 20
SIZE = 300_000


class Slots:
    """An arena of eight steps as workers map it. Outputs go to its last two."""

    inline = 32 * 1024

    def __init__(self) -> None:
        file = os.memfd_create("arena")
        os.ftruncate(file, 8 * STEP)
        self.memory = memoryview(mmap.mmap(file, 8 * STEP))
        os.close(file)
        self._used = 6 * STEP

    def allocate(self, nbytes: int) -> memoryview:
        self._used += -(-nbytes // 64) * 64
        return self.memory[self._used - -(-nbytes // 64) * 64 :][:nbytes]


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def registered(cuda: CudaApi, slots: Slots) -> Iterator[RegisteredArena]:
    """Yield the registration of the whole arena, in steps."""
    made = RegisteredArena(cuda, "m", 0, ArenaMemory(slots.memory, lambda nbytes: nbytes), STEP)
    made.acquire()
    made.covers(address_of(slots.memory), len(slots.memory))
    if (grower := made._grower) is not None:
        grower.join(60)
    assert made.nbytes == len(slots.memory)
    yield made
    made.release()


def begin(cuda: CudaApi, path: TensorPath, parts: list[memoryview], slots: Slots, places: tuple[int, int]) -> Seat:
    """Begin a batch whose run copies its input to its output."""
    seat, (source, target) = path.take(), places
    size = sum(map(len, parts))
    path.copy_in(seat, [(source, parts)])
    cuda.memcpy_async(target, source, size, path.compute_stream)
    path.ran(seat)
    path.copy_out(seat, [(target, size)], slots, size)
    return seat


@pytest.mark.parametrize("output_stream", [False, True])
def test_two_batches_on_their_way_come_back_right_over_the_ends_of_steps(
    cuda: CudaApi, slots: Slots, registered: RegisteredArena, output_stream: bool
) -> None:
    path = TensorPath(cuda, 2, PathSettings(output_stream=output_stream), registered=registered)
    pointers = [cuda.malloc(2 * SIZE) for _ in range(4)]
    slots.memory[: 6 * STEP] = np.random.default_rng(1).bytes(6 * STEP)
    batches = [
        [slots.memory[STEP - SIZE // 2 :][:SIZE], slots.memory[3 * STEP - 7 :][:SIZE]],
        [slots.memory[:SIZE], memoryview(b"small")],
    ]

    seats = [begin(cuda, path, one, slots, (pointers[n], pointers[n + 2])) for n, one in enumerate(batches)]

    for seat, batch in zip(seats, batches, strict=True):
        timing = Timing()
        (found,) = path.finish(seat, timing)
        assert bytes(found) == b"".join(batch)
        assert address_of(found) >= address_of(slots.memory) + 6 * STEP, "it lies in the reply's slot"
        assert seat.start_ns <= timing.input_end_ns <= timing.output_start_ns
        path.release(seat)
    path.close()
    for pointer in pointers:
        cuda.free(pointer)


def test_registered_memory_is_at_an_address_of_the_device(
    cuda: CudaApi, slots: Slots, registered: RegisteredArena
) -> None:
    slots.memory[2 * STEP + 5 : 2 * STEP + 8] = b"abc"
    stream, place = cuda.stream_create(), cuda.malloc(3)
    there = registered.device_address(address_of(slots.memory) + 2 * STEP + 5)
    cuda.memcpy_async(place, there, 3, stream)
    cuda.memcpy_async(address_of(slots.memory), place, 3, stream)
    cuda.stream_synchronize(stream)

    assert bytes(slots.memory[:3]) == b"abc"
    cuda.stream_destroy(stream)
    cuda.free(place)
