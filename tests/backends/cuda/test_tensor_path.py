"""The copies of batches to a device and back, on the host CudaApi."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import DeviceLost, Timing
from edge_serve.backends.cuda.api import CudaError
from edge_serve.backends.cuda.device_data import DeviceData, address_of
from edge_serve.backends.cuda.path_settings import PathSettings, path_settings
from edge_serve.backends.cuda.tensor_path import (
    PlainOutputs,
    RegisteredMemory,
    Seat,
    TensorPath,
)
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable
from tests.backends.cuda.counting import CountingCuda

LARGE = 100_000


class Slot:
    """Memory of a reply; `size` bytes, none of which are given out twice."""

    inline = 32 * 1024

    def __init__(self, size: int) -> None:
        self.memory = memoryview(bytearray(size))
        self._used = 0

    def allocate(self, nbytes: int) -> memoryview:
        if self._used + nbytes > len(self.memory):
            raise Unavailable("no memory")
        self._used += nbytes
        return self.memory[self._used - nbytes : self._used]


class AllRegistered(RegisteredMemory):
    def covers(self, address: int, nbytes: int) -> bool:
        return True


class Device:
    """Two places on a device, whose run copies the first to the second."""

    def __init__(self, cuda: CountingCuda, path: TensorPath, nbytes: int) -> None:
        self.cuda, self.path, self.nbytes = cuda, path, nbytes
        self.source, self.target = cuda.malloc(nbytes), cuda.malloc(nbytes)

    def run(self, parts: list[bytes], memory: Slot | PlainOutputs, timing: Timing | None = None) -> list[bytes]:
        seat = self.path.take()
        size = sum(map(len, parts))
        self.path.copy_in(seat, [(self.source, parts)])
        self.cuda.run(lambda: self.cuda._copy(self.target, self.source, size), self.path.compute_stream)
        self.path.ran(seat)
        self.path.copy_out(seat, [(self.target, size)], memory, size)
        found = [bytes(one) for one in self.path.finish(seat, timing or Timing())]
        self.path.release(seat)
        return found


@pytest.fixture
def cuda() -> Iterator[CountingCuda]:
    """Yield a device; in the end nothing may be left open on it."""
    made = CountingCuda()
    yield made
    assert {kind: count for kind, count in made.open_handles().items() if kind != "memory"} == {
        "streams": 0,
        "events": 0,
        "graphs": 0,
    }


def held(until: threading.Event) -> Callable[[], None]:
    """Return a kernel that waits for an event."""

    def work() -> None:
        assert until.wait(20)

    return work


def read_nowhere() -> None:
    raise ValueError("a kernel that reads where it should not")


def random_bytes(nbytes: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def test_parts_follow_each_other_and_small_ones_are_copied_together(cuda: CountingCuda) -> None:
    path = TensorPath(cuda)
    parts = [random_bytes(size, size) for size in (10, 20, LARGE, 30)]

    assert Device(cuda, path, 2 * LARGE).run(parts, PlainOutputs()) == [b"".join(parts)]

    assert [one.nbytes for one in cuda.copies[:-1]] == [30, LARGE, 30]
    assert cuda.copies[1].source == address_of(parts[2]), "a large one is copied from where it lies"
    path.close()


def test_part_in_the_memory_of_a_gpu_is_copied_on_the_device(cuda: CountingCuda) -> None:
    path, first, last = TensorPath(cuda), random_bytes(20, 1), random_bytes(30, 2)
    there = cuda.malloc(64)
    cuda.memcpy_async(there, address_of(first), 20, 0)
    cuda.stream_synchronize(0)
    cuda.copies.clear()

    both: Any = [DeviceData(there, 20, 0), last]
    assert Device(cuda, path, 64).run(both, PlainOutputs()) == [first + last]

    assert [one.nbytes for one in cuda.copies[:-1]] == [20, 30]
    assert cuda.copies[0].source == there
    cuda.free(there)
    path.close()


def test_without_pinned_input_each_part_is_copied_from_where_it_lies(cuda: CountingCuda) -> None:
    path = TensorPath(cuda, settings=PathSettings(pinned_input=False))
    parts = [random_bytes(size, size) for size in (10, 20)]

    assert Device(cuda, path, 64).run(parts, PlainOutputs()) == [b"".join(parts)]

    assert [one.source for one in cuda.copies[:-1]] == [address_of(part) for part in parts]
    path.close()


def test_registered_slot_gets_its_output_in_one_copy(cuda: CountingCuda) -> None:
    path, slot = TensorPath(cuda, registered=AllRegistered()), Slot(2 * LARGE)

    assert Device(cuda, path, LARGE).run([random_bytes(LARGE)], slot) == [random_bytes(LARGE)]

    assert [one.target for one in cuda.copies[1:]] == [address_of(slot.memory)]
    path.close()


@pytest.mark.parametrize("pinned", [True, False])
def test_slot_that_is_not_registered_gets_its_output_in_one_copy_too(cuda: CountingCuda, pinned: bool) -> None:
    """Pinned memory for it would be beyond the pool, which is used up."""
    path, slot = TensorPath(cuda, settings=PathSettings(pinned_output=pinned)), Slot(2 * LARGE)
    device = Device(cuda, path, LARGE)
    before = cuda.open_handles()

    assert device.run([random_bytes(LARGE)], slot) == [random_bytes(LARGE)]

    assert [one.target for one in cuda.copies[1:]] == [address_of(slot.memory)]
    assert cuda.open_handles() == before
    path.close()


@pytest.mark.parametrize("memory", [PlainOutputs(), Slot(0)])
def test_large_output_without_a_slot_takes_no_pinned_memory(cuda: CountingCuda, memory: PlainOutputs | Slot) -> None:
    path = TensorPath(cuda)
    device = Device(cuda, path, LARGE)
    before = cuda.open_handles()

    assert device.run([random_bytes(LARGE)], memory) == [random_bytes(LARGE)]

    assert cuda.open_handles() == before
    path.close()


@pytest.mark.parametrize("pinned", [True, False])
def test_small_outputs_are_copied_through_pinned_memory_if_wanted(cuda: CountingCuda, pinned: bool) -> None:
    path = TensorPath(cuda, settings=PathSettings(pinned_input=False, pinned_output=pinned))
    device = Device(cuda, path, LARGE)
    before = cuda.open_handles()["memory"]

    assert [device.run([one], PlainOutputs()) for one in (b"first", b"second")] == [[b"first"], [b"second"]]

    assert cuda.open_handles()["memory"] - before == (2 if pinned else 0), "one of each seat"
    path.close()


def test_small_outputs_and_those_without_memory_are_bytes_of_their_own(cuda: CountingCuda) -> None:
    path, slot = TensorPath(cuda), Slot(1000)
    device = Device(cuda, path, LARGE)

    assert device.run([b"small"], slot) == [b"small"]
    assert device.run([random_bytes(LARGE)], slot) == [random_bytes(LARGE)]

    assert bytes(slot.memory) == bytes(1000)
    path.close()


@pytest.mark.parametrize("output_stream", [True, False])
def test_inputs_of_the_next_batch_are_copied_while_one_runs(cuda: CountingCuda, output_stream: bool) -> None:
    path = TensorPath(cuda, settings=PathSettings(output_stream=output_stream))
    places = [cuda.malloc(16) for _ in range(2)]
    may_end, next_is_copied = threading.Event(), threading.Event()

    first = path.take()
    path.copy_in(first, [(places[0], [b"a" * 16])])
    cuda.run(held(may_end), path.compute_stream)
    path.ran(first)
    path.copy_out(first, [(places[0], 16)], PlainOutputs(), 16)
    second = path.take()
    path.copy_in(second, [(places[1], [b"b" * 16])])
    cuda.run(next_is_copied.set, path._input_stream)
    assert next_is_copied.wait(20), "the input stream must not wait for the run"
    path.ran(second)
    path.copy_out(second, [(places[1], 16)], PlainOutputs(), 16)
    may_end.set()

    assert [bytes(path.finish(seat, Timing())[0]) for seat in (first, second)] == [b"a" * 16, b"b" * 16]
    path.close()


def test_third_batch_waits_for_a_seat(cuda: CountingCuda) -> None:
    path = TensorPath(cuda)
    first, _ = path.take(), path.take()
    taken = threading.Event()

    def take() -> None:
        path.take()
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()

    assert not taken.wait(0.05)
    path.release(first)
    assert taken.wait(20)
    thread.join()
    path.close()


def test_times_are_in_order(cuda: CountingCuda) -> None:
    path, timing = TensorPath(cuda), Timing()

    Device(cuda, path, LARGE).run([random_bytes(LARGE)], PlainOutputs(), timing)

    assert 0 < timing.input_end_ns <= timing.output_start_ns
    path.close()


def test_batch_that_fails_has_ended_and_its_seat_is_free(cuda: CountingCuda) -> None:
    path, ran = TensorPath(cuda, seats=1), threading.Event()
    seat = path.take()
    cuda.run(ran.set, path.compute_stream)

    with pytest.raises(InvalidArgument), path.failing(seat):
        raise InvalidArgument("no such input")

    assert ran.is_set()
    assert path.take() is seat
    path.close()


def test_batch_that_fails_does_not_wait_for_the_next_one(cuda: CountingCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    path, may_end = TensorPath(cuda, seats=1), threading.Event()
    seat, release = path.take(), path.release

    def release_to_next(seat: Seat) -> None:
        release(seat)
        cuda.run(held(may_end), path.compute_stream)

    monkeypatch.setattr(path, "release", release_to_next)
    with pytest.raises(Internal, match=r"^batch output"), path.failing(seat):
        raise Internal("batch output has 3 elements")

    may_end.set()
    path.close()


def test_call_that_finds_no_memory_has_advice(cuda: CountingCuda) -> None:
    path, place = TensorPath(cuda), cuda.malloc(16)
    seat = path.take()
    cuda.fail("cudaMemcpyAsync", 2)

    with pytest.raises(Internal, match=r"\(2\): out of memory; the device ran out"), path.failing(seat):
        path.copy_in(seat, [(place, [b"a" * 16])])

    assert not path.is_lost
    cuda.free(place)
    path.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Internal("batch output has 3 elements"), "^batch output has 3 elements; cudaStreamSynchronize .*illegal"),
        (CudaError("cudaMalloc", 2, "", "no memory"), "^cudaMalloc .* no memory; cudaStreamSynchronize .*illegal"),
        (InvalidArgument("no such input"), "^cudaStreamSynchronize .* an illegal memory access was encountered$"),
        (CudaError("cudaMalloc", 719, "", "launch failure"), "^cudaMalloc .*launch failure$"),
    ],
)
def test_error_of_a_batch_that_hides_a_lost_device_names_it(error: EdgeServeError, text: str) -> None:
    cuda = CountingCuda()
    path = TensorPath(cuda)

    def work() -> None:
        with path.failing(path.take()):
            cuda.run(read_nowhere, path.compute_stream)
            raise error

    with pytest.raises(DeviceLost, match=text):
        work()

    assert path.is_lost


@pytest.mark.parametrize("after", range(8))
def test_path_that_cannot_be_made_leaves_nothing_open(cuda: CountingCuda, after: int) -> None:
    cuda.fail("cudaEventCreateWithFlags", 2, after=after)
    with pytest.raises(CudaError):
        TensorPath(cuda)


def test_settings_of_a_configuration() -> None:
    assert path_settings({}) == PathSettings()
    told = {"cuda": {"output_copy_stream": True}, "output_pinned_memory": {"enable": False}}
    assert path_settings(told) == PathSettings(output_stream=True, pinned_output=False)


def test_priority_of_streams() -> None:
    found = [PathSettings(priority=f"PRIORITY_{name}").stream_priority(0, -5) for name in ("DEFAULT", "MAX", "MIN")]
    assert found == [0, -5, 0]
    assert PathSettings(priority="PRIORITY_MIN").stream_priority(2, -5) == 2
