"""What does shared memory save with 8 MB tensors? In and out of a Python model, beside HTTP and beside Triton."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import bodies, load, peer
from benchmarks.report import Report
from benchmarks.servers import BESIDE, Server, edge_serve, repository, triton

#: a flag that Triton does not have
ALLOWED = "--allow-client-shm=true"
NBYTES = 8 << 20
ROUNDS, SECONDS = 5, 1.0
#: the ratio to Triton that the project requires
BAR = 1.0

_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
_CONFIG = """
name: "echo"
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def run() -> Report:
    """Measure latencies on one connection, in turn."""
    report = Report("shared_memory", "ms for a request with 8 MB in and 8 MB out (Python model, one connection)")
    values = np.random.default_rng(1).random(NBYTES // 4, dtype=np.float32)
    binary = bodies.picture_binary("echo", "INPUT0", values)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_models())
        servers = [stack.enter_context(edge_serve(folder, ALLOWED))]
        try:
            servers.append(stack.enter_context(triton(folder, *[ALLOWED][: bool(BESIDE)])))
        except peer.NoPeerError as error:
            report.notes.append(f"not measured beside Triton: {error}")
        for server in servers:
            stack.enter_context(_region(server, values))
        taken = {(server.name, way): [0.0] * 0 for server in servers for way in ("shared memory", "HTTP binary")}
        for _ in range(ROUNDS):
            for server in servers:
                taken[server.name, "shared memory"] += load.latencies(server, _request(server), SECONDS)[2:]
                taken[server.name, "HTTP binary"] += load.latencies(server, binary, SECONDS)[2:]
    for way in ("shared memory", "HTTP binary"):
        ours, *theirs = [statistics.median(taken[server.name, way]) * 1e3 for server in servers]
        ratio = theirs[0] / ours if theirs else None
        asked = BAR if way == "shared memory" else None
        row = {"tensors in": way, "edge-serve ms": ours, **{f"{one.name} ms": theirs[0] for one in servers[1:]}}
        report.rows.append({**row, "times as fast": ratio, "asked": asked})
    return report


@contextlib.contextmanager
def _models() -> Iterator[Path]:
    with repository([]) as folder:
        (folder / "echo/1").mkdir(parents=True)
        (folder / "echo/1/model.py").write_text(_MODEL)
        (folder / "echo/config.pbtxt").write_text(_CONFIG)
        yield folder


def _key(server: Server) -> str:
    return f"bench-{server.name}-{server.port}"


@contextlib.contextmanager
def _region(server: Server, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Iterator[None]:
    """Register a region with the input and space for the output after it."""
    path = Path("/dev/shm", _key(server))
    path.write_bytes(values.tobytes() + bytes(NBYTES))
    try:
        place = {"key": f"/{_key(server)}", "offset": 0, "byte_size": 2 * NBYTES}
        address = f"http://{server.address}/v2/systemsharedmemory/region/r/register"
        urllib.request.urlopen(address, json.dumps(place).encode()).close()
        load.latencies(server, _request(server), 0.001)
        if path.read_bytes()[NBYTES:] != values.tobytes():
            raise RuntimeError(f"{server.name} did not answer through shared memory")
        yield
    finally:
        os.unlink(path)


def _request(server: Server) -> bytes:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": NBYTES}
    sent = {"name": "INPUT0", "datatype": "FP32", "shape": [NBYTES // 4], "parameters": shared}
    wanted = {"name": "OUTPUT0", "parameters": {**shared, "shared_memory_offset": NBYTES}}
    body = json.dumps({"inputs": [sent], "outputs": [wanted]}).encode()
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
