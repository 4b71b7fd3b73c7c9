"""`pb_utils.Tensor` in the memory of a GPU, on the host CudaApi."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Iterator

import numpy as np
import pytest

from edge_serve.backends.base import Reply
from edge_serve.backends.cuda import device_data
from edge_serve.backends.cuda.api import CudaApi
from edge_serve.backends.cuda.device_data import is_on_device, outputs_on_host, upload
from edge_serve.backends.python.api import dlpack, request
from edge_serve.backends.python.api.errors import TritonModelException
from edge_serve.backends.python.api.request import MemoryType, PreferredMemory
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.errors import Unavailable
from edge_serve.messages.tensors import DataType, InferTensor
from tests.backends.cuda.counting import CountingCuda

LARGE = 20_000


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingCuda]:
    """Yield the CUDA of this process; all memory is freed in the end."""
    made = CountingCuda()

    def this_one() -> CudaApi:
        return made

    for module in (device_data, dlpack):
        monkeypatch.setattr(module, "process_cuda", this_one)
    yield made
    if made.open_handles()["memory"]:
        gc.collect()
    assert made.open_handles()["memory"] == 0


class Producer:
    """An array on a device, as a framework exports it.

    Attributes:
        streams: what consumers asked for.
    """

    def __init__(self, values: object, datatype: DataType = DataType.FP32, device: int = 0) -> None:
        self.array = np.asarray(values, datatype.numpy)
        self.datatype = datatype
        self.data = upload(self.array.tobytes(), device)
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.data.device

    def __dlpack__(self, stream: object = None) -> object:
        self.streams.append(stream)
        return dlpack.export_gpu(self.data, self.datatype, self.array.shape)


@pytest.mark.parametrize("datatype", [one for one in DataType if one is not DataType.BYTES])
def test_tensor_of_another_framework_stays_on_the_gpu(cuda: CountingCuda, datatype: DataType) -> None:
    producer = Producer([[1, 0, 1]], datatype, device=1)
    cuda.copies.clear()

    tensor = Tensor.from_dlpack("OUT", producer)

    assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("OUT", [1, 3], datatype.value)
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 1)
    assert producer.streams == [1], "the default stream, on which the output is copied"
    assert cuda.copies == []
    wire = tensor.as_wire()
    assert (wire.name, wire.datatype, wire.shape) == ("OUT", datatype, (1, 3))
    assert bytes(wire.data) == producer.array.tobytes()


def test_numpy_has_no_memory_of_a_gpu(cuda: CountingCuda) -> None:
    tensor = Tensor.from_dlpack("OUT", Producer([1]))
    with pytest.raises(TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumPy\.$"):
        tensor.as_numpy()


class Strided(Producer):
    """Exports every `step`-th element of the first axis."""

    def __init__(self, values: object, step: int) -> None:
        super().__init__(values)
        self.step = step

    def __dlpack__(self, stream: object = None) -> object:
        capsule = super().__dlpack__(stream)
        content = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor
        ndim = content.ndim
        rows = math.prod(self.array.shape[1:])
        self.strides = (ctypes.c_int64 * ndim)(self.step * rows, *(n // 4 for n in self.array.strides[1:]))
        content.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        content.shape[0] = -(-self.array.shape[0] // self.step)
        return capsule


def test_strides_of_the_first_axis_are_refused(cuda: CountingCuda) -> None:
    """As `hidden[:, 0]` of PyTorch: a copy takes consecutive bytes."""
    for values in (np.arange(6), np.arange(12).reshape(6, 2)):
        with pytest.raises(TritonModelException, match="not contiguous"):
            Tensor.from_dlpack("OUT", Strided(values, step=2))
    assert (
        bytes(Tensor.from_dlpack("OUT", Strided(np.arange(6), step=1)).as_wire().data)
        == Producer(range(6)).array.tobytes()
    )
    one_row = Tensor.from_dlpack("OUT", Strided(np.arange(2).reshape(2, 1), step=2))
    assert (one_row.shape(), np.frombuffer(one_row.as_host_wire().data, np.float32).tolist()) == ([1, 1], [0])


def test_capsule_is_taken_once_and_its_memory_lives_as_long_as_the_tensor(cuda: CountingCuda) -> None:
    producer = Producer([1, 2])
    capsule = producer.__dlpack__()
    tensor = Tensor.from_dlpack("OUT", capsule)
    with pytest.raises(TritonModelException, match="has been used already"):
        Tensor.from_dlpack("OUT", capsule)
    del producer, capsule
    gc.collect()
    assert cuda.open_handles()["memory"] == 1

    again = Tensor.from_dlpack("IN", tensor.to_dlpack())
    del tensor
    gc.collect()
    assert np.frombuffer(again.as_host_wire().data, np.float32).tolist() == [1, 2]
    del again
    gc.collect()
    assert cuda.open_handles()["memory"] == 0


def test_consumer_on_another_stream_waits_for_the_default_one(cuda: CountingCuda) -> None:
    tensor = Tensor.from_dlpack("OUT", Producer([1]))
    waited: list[int] = []
    cuda.stream_synchronize = waited.append  # type: ignore[method-assign,assignment]  # noted alone
    for stream in (None, 1, -1):
        tensor.__dlpack__(stream=stream)
    assert waited == []
    tensor.__dlpack__(stream=7)
    assert waited == [0]
    del cuda.stream_synchronize


def test_large_output_is_copied_when_its_place_is_known(cuda: CountingCuda) -> None:
    producer = Producer(np.arange(LARGE))
    cuda.copies.clear()
    (output,) = InferenceResponse([Tensor.from_dlpack("OUT", producer)]).as_reply({"OUT"}).outputs

    assert is_on_device(output.data)
    assert cuda.copies == []
    slot = memoryview(bytearray(4 * LARGE))
    output.data.copy_into(slot)
    assert np.frombuffer(slot, np.float32).tolist() == list(range(LARGE))
    assert [one.nbytes for one in cuda.copies] == [4 * LARGE]


def test_outputs_outside_of_a_worker_are_taken_to_the_host(cuda: CountingCuda) -> None:
    reply = InferenceResponse([Tensor.from_dlpack("OUT", Producer(np.ones(LARGE)))]).as_reply({"OUT"})
    outputs_on_host(reply)
    assert reply.outputs[0].array().sum() == LARGE


def test_thread_keeps_its_device(cuda: CountingCuda) -> None:
    cuda.set_device(0)
    assert bytes(Tensor.from_dlpack("OUT", Producer([5], DataType.UINT8, device=1)).as_wire().data) == b"\x05"
    assert cuda.get_device() == 0


def test_input_on_a_gpu_is_passed_on_where_it_lies(cuda: CountingCuda) -> None:
    data = upload(bytes(4 * LARGE), 0)
    tensor = Tensor.received(InferTensor("IN", DataType.FP32, (1, LARGE), data))  # type: ignore[arg-type]
    assert (tensor.is_cpu(), tensor.shape(), isinstance(tensor, Tensor)) == (False, [1, LARGE], True)
    found, _ = dlpack.take(tensor.to_dlpack())
    assert isinstance(found, dlpack.OnGpu)
    assert (found.data.pointer, found.shape, found.datatype) == (data.pointer, (1, LARGE), DataType.FP32)
    assert tensor.as_wire().data is data  # type: ignore[comparison-overlap]  # cast to Buffer


def test_preferred_memory_decides_where_the_outputs_of_a_call_lie(cuda: CountingCuda) -> None:
    values = np.arange(4, dtype=np.int32)
    outputs = [
        InferTensor("A", DataType.INT32, (4,), values.tobytes()),
        InferTensor("B", DataType.BYTES, (1,), b"\x01\x00\x00\x00x"),
    ]
    numbers, text = InferenceResponse.of(Reply(outputs), gpu=1).output_tensors()
    assert numbers.__dlpack_device__() == (2, 1)
    assert bytes(numbers.as_wire().data) == values.tobytes()
    assert (text.is_cpu(), text.as_numpy().tolist()) == (True, [b"x"])
    cuda.fail("cudaMalloc", 2)
    assert InferenceResponse.of(Reply(outputs), gpu=0).output_tensors()[0].is_cpu(), "no memory is left there"
    assert PreferredMemory(MemoryType.TRITONSERVER_MEMORY_GPU, 3)._gpu == 3
    assert PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU, 3)._gpu == -1
    for number in (-1, 1 << 40):  # Triton takes any number; there is no such GPU
        assert PreferredMemory(MemoryType.TRITONSERVER_MEMORY_GPU, number)._gpu == -1
    with pytest.raises(TypeError, match="preferred_device_id"):
        PreferredMemory(MemoryType.TRITONSERVER_MEMORY_GPU, 1 << 63)


def test_call_of_another_model_takes_inputs_to_the_host(cuda: CountingCuda) -> None:
    tensor = Tensor.from_dlpack("IN", Producer(np.ones(LARGE)))
    made = request.InferenceRequest(inputs=[tensor], requested_output_names=["OUT"], model_name="m")
    (wire,) = [one.as_host_wire() for one in made.inputs()]
    assert isinstance(wire.data, memoryview)
    assert np.frombuffer(wire.data, np.float32).sum() == LARGE


def test_without_cuda_the_text_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> CudaApi:
        raise Unavailable("CUDA cannot be used: cuda-bindings: not installed")

    monkeypatch.setattr(dlpack, "process_cuda", none)

    class Foreign:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("it is not asked")

    with pytest.raises(
        TritonModelException, match=r"when GPU is not available\. Copy the tensor .* CUDA cannot be used: cu"
    ):
        Tensor.from_dlpack("OUT", Foreign())
    response = InferenceResponse.of(Reply([InferTensor("A", DataType.UINT8, (1,), b"x")]), gpu=0)
    assert response.output_tensors()[0].is_cpu()
