"""Requests by Triton's own client."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient import grpc, http
from tritonclient.utils import shared_memory

from edge_serve.messages.tensors import Array
from tests.server.running import Running


class Region:
    """A region of shared memory that is registered with a server; tensors of FP32 lie in it one after the other."""

    def __init__(self, client: http.InferenceServerClient, size: int) -> None:
        key = f"/edge-serve-test-{uuid.uuid4().hex}"
        self.client = client
        self._handle = shared_memory.create_shared_memory_region("region", key, size)
        client.register_system_shared_memory("region", key, size)
        self._end = 0

    def close(self) -> None:
        """Unregister and remove it."""
        self.client.unregister_system_shared_memory("region")
        shared_memory.destroy_shared_memory_region(self._handle)

    def infer(self, model: str, inputs: Mapping[str, Array], outputs: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """Return outputs of these shapes. No tensor is in the request or in the answer."""
        given, wanted, places = [], [], {}
        for name, array in inputs.items():
            given.append(http.InferInput(name, list(array.shape), "FP32"))
            given[-1].set_shared_memory("region", array.nbytes, offset=self._end)
            shared_memory.set_shared_memory_region(self._handle, [array], offset=self._end)
            self._end += array.nbytes
        for name, shape in outputs.items():
            wanted.append(http.InferRequestedOutput(name))
            size = 4 * int(np.prod(shape))
            wanted[-1].set_shared_memory("region", size, offset=self._end)
            places[name] = self._end
            self._end += size
        answer = self.client.infer(model, given, outputs=wanted)
        assert [one["name"] for one in answer.get_response()["outputs"]] == [*outputs]
        return {name: self._read(places[name], shape) for name, shape in outputs.items()}

    def _read(self, place: int, shape: Sequence[int]) -> Array:
        found: Any = shared_memory.get_contents_as_numpy(self._handle, np.float32, list(shape), offset=place)
        return np.array(found)  # the region is removed


@contextlib.contextmanager
def region(server: Running, size: int = 1 << 16) -> Iterator[Region]:
    """A region of a server."""
    with http.InferenceServerClient(server.url, network_timeout=60) as client:
        made = Region(client, size)
        try:
            yield made
        finally:
            made.close()


_TYPES = {
    "bfloat16": "BF16",
    "object": "BYTES",
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


def infer(
    server: Running, model: str, inputs: Mapping[str, Array], *, over_grpc: bool = False, **options: Any
) -> dict[str, Array]:
    """Send a request with binary tensors; the outputs.

    Args:
        options: of the client's `infer`; `type_X` is the type of input X, where the array does not tell it.
    """
    library = grpc if over_grpc else http
    given = []
    for name, array in inputs.items():
        datatype = options.pop(f"type_{name}", "") or _TYPES.get(array.dtype.name, array.dtype.name.upper())
        given.append(library.InferInput(name, list(array.shape), datatype))
        given[-1].set_data_from_numpy(array)
    if over_grpc:
        with grpc.InferenceServerClient(server.wait_for_log(r"gRPC on (\S+)")[1]) as client:
            result = client.infer(model, given, client_timeout=60, **options)
            return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
    with http.InferenceServerClient(server.url, network_timeout=60, connection_timeout=60) as client:
        result = client.infer(model, given, **options)
        return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}
