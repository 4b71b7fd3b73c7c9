"""A worker's part in tests of backends: specs, requests, a host that records."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.backends.python import backend as python
from edge_serve.backends.python.instance import PythonInstance
from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import Array, DataType, InferTensor, from_array, from_numpy_type


def tensor(name: str, array: Array, datatype: DataType | None = None) -> InferTensor:
    """As it comes off the channel: bytes of its own, writable."""
    datatype = datatype or from_numpy_type(array.dtype)
    assert datatype is not None
    return InferTensor(name, datatype, array.shape, bytearray(from_array(array, datatype)))


def request(
    *inputs: InferTensor,
    outputs: Sequence[str] = ("OUTPUT0",),
    id: str = "",
    parameters: Mapping[str, Parameter] | None = None,
    send: Callable[[Reply | None, bool], None] | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    correlation_id: int = 0,
    flags: int = 0,
) -> BackendRequest:
    """A request with everything else at its default."""
    made = dict(parameters or {})
    return BackendRequest(id, list(inputs), tuple(outputs), made, correlation_id, flags, 0, 0, is_cancelled, send)


def number(value: int = 1) -> InferTensor:
    """INPUT0, INT32 [1]."""
    return tensor("INPUT0", np.array([value], np.int32))


class RecordingHost(host.Alone):
    """Keeps what models say."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.updates: list[host.MetricUpdate] = []

    def log(self, level: str, message: str) -> None:
        self.lines.append((level, message))

    def metric(self, update: host.MetricUpdate) -> None:
        self.updates.append(update)


@contextmanager
def installed(one: host.Host) -> Iterator[None]:
    """`one` is the host inside."""
    before = host.install(one)
    try:
        yield
    finally:
        host.install(before)


def model_spec(directory: Path, config: Mapping[str, Any] | None = None, version: int = 1) -> ModelSpec:
    """Return the description of a model directory that a worker receives."""
    made = {"name": directory.name, "max_batch_size": 0, "input": [], "output": [], **(config or {})}
    return ModelSpec(directory.name, version, directory, directory / str(version), made)


def write_model(directory: Path, source: str, file: str = "1/model.py") -> Path:
    """A model directory with this source as its file."""
    path = directory / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return directory


class PythonScene:
    """A directory to write Python models in, and everything closed at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = RecordingHost()
        self._open: list[tuple[python.PythonBackend, Sequence[PythonInstance]]] = []

    def open(
        self, source: str, config: Mapping[str, Any] | None = None, name: str = "m", instances: int = 1
    ) -> PythonInstance:
        """The first instance of a model with this source."""
        spec = model_spec(write_model(self.directory / name, source), config)
        backend = python.PythonBackend()
        self._open.append((backend, ()))
        opened = backend.open(spec, [InstanceSpec(f"{name}_{i}") for i in range(instances)])
        self._open[-1] = (backend, opened)
        return opened[0]

    def execute(self, body: str, *requests: BackendRequest, config: Mapping[str, Any] | None = None) -> list[Reply]:
        """Replies of a model whose `execute(self, requests)` is `body`."""
        return run(self.open(model_source(body), config), *requests)

    def close(self) -> None:
        """Close what is open."""
        for backend, instances in self._open:
            for instance in instances:
                instance.close()
            backend.close()
        self._open.clear()


def model_source(body: str) -> str:
    """A model file around the body of `execute`."""
    head = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
    return f"{head}    def execute(self, requests):\n{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"


def run(instance: PythonInstance, *requests: BackendRequest) -> list[Reply]:
    """Execute one batch."""
    return instance.execute(list(requests) or [request(number())], Timing())


def text_of(reply: Reply) -> str:
    """The single string of OUTPUT0."""
    assert reply.error is None, reply.error
    return str(reply.outputs[0].array().item().decode())
