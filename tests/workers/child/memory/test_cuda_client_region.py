"""A client's memory of a GPU as a worker sees it: opened once, copied, closed, and what is said when it is gone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edge_serve.backends.base import DeviceLost, Reply
from edge_serve.backends.cuda import device_data
from edge_serve.backends.cuda.device_data import is_on_device, upload
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.memory.cuda_client_region import CudaClientRegion
from edge_serve.workers.child.memory.cuda_probe import refusal
from edge_serve.workers.child.memory.shared_request import SharedRequest
from edge_serve.workers.wire.layout import OFFSET_BITS
from tests.backends.cuda.counting import CountingCuda

NUMBERS = np.arange(64, dtype=np.uint8).tobytes()


class Client(CountingCuda):
    """Another process, with 64 bytes on GPU 0."""

    def __init__(self) -> None:
        super().__init__()
        self.pointer = self.malloc(64)
        self.handle = self.ipc_handle(self.pointer)
        self.put(NUMBERS)

    def put(self, data: bytes) -> None:
        array = np.frombuffer(data, np.uint8)
        self.memcpy_async(self.pointer, array.ctypes.data, len(data), 0)
        self.stream_synchronize(0)

    def get(self) -> bytes:
        made = np.empty(64, np.uint8)
        self.memcpy_async(made.ctypes.data, self.pointer, 64, 0)
        self.stream_synchronize(0)
        return made.tobytes()


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CountingCuda:
    """Return the CUDA of this process."""
    made = CountingCuda()
    monkeypatch.setattr(device_data, "process_cuda", lambda: made)
    return made


def region(client: Client, device: int = 0) -> CudaClientRegion:
    return CudaClientRegion("r", device, 64, client.handle)


def opened(cuda: CountingCuda) -> int:
    return cuda.open_handles()["memory"]


def read_in_threads(one: CudaClientRegion) -> list[bytes]:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(bytes(one.read(8, 4)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_region_is_opened_once_by_its_first_tensor_and_closed_with_the_last(cuda: CountingCuda, client: Client) -> None:
    made = region(client)
    assert opened(cuda) == 0
    assert read_in_threads(made) == [NUMBERS[8:12]] * 4
    assert opened(cuda) == 1

    data = made.on_device(8, 4)
    del made
    assert opened(cuda) == 1
    assert bytes(data) == NUMBERS[8:12]
    del data
    assert opened(cuda) == 0


def test_writing_copies_from_the_host_and_on_the_device(cuda: CountingCuda, client: Client) -> None:
    made = region(client)
    made.write(0, b"host")
    data = upload(b"device", 1)
    cuda.copies.clear()
    made.write(4, data)
    assert client.get() == b"hostdevice" + NUMBERS[10:]
    assert [one.source for one in cuda.copies] == [data.pointer]


def test_freed_memory_is_named_and_fails_only_its_request(cuda: CountingCuda, client: Client) -> None:
    client.free(client.pointer)
    with pytest.raises(InvalidArgument, match=r"'r' cannot be opened: cudaIpcOpenMemHandle failed with .* again$"):
        region(client).read(0, 4)
    again = Client()
    assert bytes(region(again).read(0, 4)) == NUMBERS[:4]


def shared(imports: ArenaImports, on_device: bool = False) -> SharedRequest:
    place = 1 << OFFSET_BITS
    value = {"model": "m", "outputs": [["OUT", place, 64, "OUT"]]}
    return SharedRequest(imports, "", value, copies=True, on_device=on_device)


@pytest.mark.parametrize("stays", [True, False])
def test_input_stays_on_the_device_for_a_backend_that_takes_it(cuda: CountingCuda, client: Client, stays: bool) -> None:
    imports = ArenaImports()
    imports.add_cuda_region(1, {"name": "r", "device": 0, "byte_size": 64, "handle": client.handle.hex()})
    found = imports.region(1 << OFFSET_BITS | 8)
    assert isinstance(found, CudaClientRegion)

    request = shared(imports, stays)
    numbers = request.input(found, "A", DataType.INT32, (2,), 1 << OFFSET_BITS | 8, 8)
    odd = request.input(found, "C", DataType.INT32, (1,), 1 << OFFSET_BITS | 9, 4)
    text = request.input(found, "B", DataType.BYTES, (1,), 1 << OFFSET_BITS | 8, 8)

    assert (is_on_device(numbers.data), bytes(numbers.data)) == (stays, NUMBERS[8:16])
    assert not is_on_device(odd.data), "a kernel that reads it would end the context"
    assert bytes(odd.data) == NUMBERS[9:13]
    assert not is_on_device(text.data), "strings are checked"
    assert "incomplete string data" in str(request.error)
    imports.remove(1)


@pytest.mark.parametrize("call", ["cudaIpcOpenMemHandle", "cudaStreamSynchronize"])
def test_device_that_is_lost_ends_the_worker(cuda: CountingCuda, client: Client, call: str) -> None:
    imports = ArenaImports()
    imports.add_cuda_region(1, {"name": "r", "device": 0, "byte_size": 64, "handle": client.handle.hex()})
    cuda.fail(call, 719)
    request = shared(imports)

    reply = request.answer(Reply([InferTensor("OUT", DataType.UINT8, (4,), b"abcd")]), None)

    assert isinstance(reply.error, DeviceLost)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, ""),
        ({"byte_size": 65}, "byte_size is 65, but the memory has 64 bytes"),
        ({"handle": bytes(64).hex()}, "cudaIpcOpenMemHandle failed with cudaErrorInvalidValue (1): invalid argument: "
         "does the process that made the memory on GPU 0 run, and is it another one?"),
        ({"device": 9}, "cudaSetDevice failed with cudaErrorInvalidDevice (101): invalid device ordinal: does "
         "the process that made the memory on GPU 9 run, and is it another one?"),
    ],
)  # fmt: skip
def test_probe_says_why_memory_may_not_be_registered(client: Client, asked: dict[str, object], text: str) -> None:
    cuda = CountingCuda()
    frame = {"name": "r", "device": 0, "byte_size": 64, "handle": client.handle.hex(), **asked}
    assert refusal(cuda, frame) == text
    assert opened(cuda) == 0


def test_memory_that_became_smaller_is_refused(client: Client, cuda: CountingCuda) -> None:
    """An access beyond its end would end the context of all models in the process."""
    larger = CudaClientRegion("r", 0, 65, client.handle)
    with pytest.raises(InvalidArgument, match="'r' has 65 bytes, but the memory of its handle now has 64"):
        larger.read(0, 4)
    assert not cuda._opened.sizes
