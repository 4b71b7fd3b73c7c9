"""A stand-in for `onnxruntime-gpu`: the installed ONNX Runtime, whose CUDA provider computes on the CPU over the host
CudaApi. Workers of tests that find it in `tests/stand_ins` get the installed module with the session of this file.

Device memory of the host CudaApi is memory of the process, so the CPU binds the same addresses. As on a device, outputs
are there when the stream has got to them and not before, and what is bound to the device must lie there. As nodes do
that a real session runs on the host, it reads inputs at once, so the caller must have waited for their copies.
`deferred` counts the runs whose pinned memory is not released yet: a run after which the session waits releases it.

The producer's name in a model is a script: `slow MS` takes the device so long, `refuse` fails as a run that the library
refuses, `lose` loses the device in the call, and `lose later` when the stream gets there. `hold MS` keeps the GIL so
long when the session is opened, as the library does up to 1.23.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge_serve.backends.cuda.api import CudaError

ON_GPU = ("TensorrtExecutionProvider", "CUDAExecutionProvider")
#: the library's own text (core/providers/cuda/cuda_call.cc)
LOST = (
    "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; "
    "file=cuda_execution_provider.cc ; line=446 ; expr=cudaStreamSynchronize(stream);"
)
REFUSED = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv. CUDNN_STATUS_BAD_PARAM"


Providers = Sequence[tuple[str, dict[str, str]]]


class StandInValue:
    """An output on the device."""

    def __init__(self, pointer: int, shape: Sequence[int]) -> None:
        self._pointer, self._shape = pointer, shape

    def data_ptr(self) -> int:
        return self._pointer

    def shape(self) -> Sequence[int]:
        return self._shape


def _binding_on(host: Any, onnxruntime: Any) -> Any:
    """Return the class IOBinding of `onnxruntime`, for memory of the host CudaApi."""

    def reached(pointer: int) -> None:
        """Raise CudaError for memory that a device does not reach."""
        try:
            host.allocation_size(pointer)
        except CudaError:
            host.host_device_pointer(pointer)

    class StandInBinding(onnxruntime.IOBinding):  # type: ignore[misc]
        def __init__(self, session: Any) -> None:
            super().__init__(session)
            self.memory: dict[int, tuple[int, int]] = {}
            self.values: list[StandInValue] = []
            self.placed = False

        def bind_input(
            self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
        ) -> None:
            assert device_type == "cuda"
            reached(buffer_ptr)
            super().bind_input(name, "cpu", 0, element_type, shape, buffer_ptr)

        def bind_output(self, name: str, device_type: str, device_id: int, *placed: Any) -> None:
            assert device_type == "cuda"
            if placed:
                reached(placed[-1])
            super().bind_output(name, "cpu", 0, *placed)
            self.placed = bool(placed)

        def get_outputs(self) -> list[StandInValue]:
            return self.values

        def move(self, stream: int) -> None:
            """Let the outputs arrive on the device in the order of the stream."""
            self.values = []
            for index, value in enumerate(super().get_outputs()):
                if self.placed:
                    self.values.append(StandInValue(value.data_ptr(), value.shape()))
                    continue
                nbytes = value.tensor_size_in_bytes()
                pointer, size = self.memory.get(index, (0, 0))
                if not pointer or nbytes > size:
                    if pointer:
                        host.free(pointer)
                    pointer = host.malloc(max(256, nbytes))
                    self.memory[index] = (pointer, max(256, nbytes))
                if nbytes:
                    host.memset_async(pointer, 0xEE, nbytes, stream)
                    host.memcpy_async(pointer, value.data_ptr(), nbytes, stream)
                self.values.append(StandInValue(pointer, value.shape()))

        def __del__(self) -> None:
            with suppress(CudaError, AttributeError):
                for pointer, _ in self.memory.values():
                    host.free(pointer)

    return StandInBinding


def session_on(host: Any, onnxruntime: Any) -> Any:
    """Return the class InferenceSession of `onnxruntime`, with the providers of a GPU on the host CudaApi."""
    binding = _binding_on(host, onnxruntime)

    class StandInSession(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: Any = None, providers: Providers = (), **more: Any) -> None:
            gpu = {name: values for name, values in providers if name in ON_GPU}
            self.stream = int(next(iter(gpu.values()), {}).get("user_compute_stream", 0))
            for values in gpu.values():
                assert int(values["device_id"]) < host.device_count()
                host.stream_synchronize(int(values.get("user_compute_stream", 0)))  # of a stream that there is
            super().__init__(path, options, providers=[one for one in providers if one[0] not in ON_GPU], **more)
            self.names = [name for name, _ in providers]
            self.deferred = 0
            match self.get_modelmeta().producer_name.split():
                case ["hold", milliseconds]:
                    ctypes.PyDLL(None).usleep(int(milliseconds) * 1000)

        def get_providers(self) -> list[str]:
            names: list[str] = getattr(self, "names", None) or super().get_providers()
            return names

        def io_binding(self) -> Any:
            return binding(self)

        def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
            assert run_options.get_run_config_entry("gpu_graph_id") == "-1"
            self.deferred += 1
            super().run_with_iobinding(iobinding, run_options)
            match self.get_modelmeta().producer_name.split():
                case ["slow", milliseconds]:
                    host.run(lambda: time.sleep(int(milliseconds) / 1e3), self.stream)
                case ["refuse"]:
                    raise RuntimeError(REFUSED)
                case ["lose"]:
                    host.run(_fault, self.stream)
                    with suppress(CudaError):
                        host.stream_synchronize(self.stream)
                    raise RuntimeError(LOST)
                case ["lose", "later"]:
                    host.run(_fault, self.stream)
            iobinding.move(self.stream)
            if run_options.get_run_config_entry("disable_synchronize_execution_providers") == "0":
                host.stream_synchronize(self.stream)
                self.deferred = 0

    return StandInSession


def _fault() -> None:
    raise ValueError("a kernel that reads where it should not")


def _installed() -> Any:
    """Load the installed module under its own name, in place of this one."""
    here = Path(__file__).parents[1].resolve()
    places = [place for place in sys.path if Path(place or ".").resolve() != here]
    found = importlib.machinery.PathFinder.find_spec("onnxruntime", places)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["onnxruntime"] = module
    found.loader.exec_module(module)
    return module


if __name__ == "onnxruntime":
    from cuda.bindings.runtime import host

    module = _installed()
    available = [ON_GPU[1], *module.get_available_providers()]
    module.get_available_providers = lambda: available
    module.InferenceSession = session_on(host, module)
