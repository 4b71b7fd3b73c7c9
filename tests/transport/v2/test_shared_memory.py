"""Registering system shared memory over HTTP, and requests that name it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Shared
from tests.transport.v2_scene import Door

SYSTEM = "/v2/systemsharedmemory"


def door(directory: Path, size: int = 64) -> Door:
    """One where `/k` is a shared memory object."""
    (directory / "k").write_bytes(bytes(size))
    made = Door()
    made.service.regions.directory = str(directory)
    return made


def register(at: Door, name: str = "r", **body: object) -> tuple[int, str]:
    exchange = at.call("POST", f"{SYSTEM}/region/{name}/register", json.dumps(body).encode())
    return exchange.status, exchange.error if exchange.content else ""


def test_a_region_is_registered_and_unregistered(tmp_path: Path) -> None:
    at = door(tmp_path, 8192)
    assert register(at, key="/k", byte_size=16) == (200, "")
    assert register(at, "s%2F1", key="k", offset=4096, byte_size=32) == (200, "")
    one = {"name": "r", "key": "/k", "offset": 0, "byte_size": 16}
    other = {"name": "s/1", "key": "k", "offset": 4096, "byte_size": 32}
    assert at.call("GET", f"{SYSTEM}/status").json == [one, other]
    assert at.call("GET", f"{SYSTEM}/region/s%2F1/status").json == [other]
    assert at.call("GET", "/v2/cudasharedmemory/status").json == []

    assert at.call("POST", f"{SYSTEM}/region/r/unregister").status == 200
    assert at.call("GET", f"{SYSTEM}/status").json == [other]
    assert at.call("POST", f"{SYSTEM}/unregister").status == 200
    assert at.call("GET", f"{SYSTEM}/status").json == []


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "Shared memory register request has no 'key' field"),
        (b'{"byte_size":4}', 400, "Shared memory register request has no 'key' field"),
        (b'{"key":"/k"}', 400, "Shared memory register request has no 'byte_size' field"),
        (b'{"key":7,"byte_size":4}', 500, "attempt to access JSON non-string as string"),
        (b'{"key":"/k","byte_size":-4}', 500,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (b'{"key":"/k","byte_size":4,"offset":"0"}', 500,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ],
)  # fmt: skip
def test_bodies_that_register_nothing(tmp_path: Path, body: bytes, status: int, text: str) -> None:
    exchange = door(tmp_path).call("POST", f"{SYSTEM}/region/r/register", body)
    assert (exchange.status, exchange.error) == (status, text)


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_region_has_a_name(tmp_path: Path, kind: str) -> None:
    exchange = door(tmp_path).call("POST", f"/v2/{kind}sharedmemory/register", b"{")
    assert (exchange.status, exchange.error) == (
        400,
        f"'region name' is necessary to register {kind} shared memory region",
    )


def test_the_body_does_not_count_where_shared_memory_is_off(tmp_path: Path) -> None:
    at = door(tmp_path)
    at.service.allows_shm = False
    assert at.call("POST", f"{SYSTEM}/region/r/register", b"{").error == "no shared memory"
    assert at.call("POST", "/v2/cudasharedmemory/unregister").error == "no shared memory"


def test_a_request_names_a_region(tmp_path: Path) -> None:
    at = door(tmp_path)
    register(at, key="k", byte_size=64)
    at.service.later = True
    where = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 8}
    item = {"name": "X", "datatype": "INT32", "shape": [2], "parameters": where}
    wanted = {"name": "Y", "parameters": {**where, "shared_memory_offset": 16}}
    at.infer(json.dumps({"inputs": [item], "outputs": [wanted]}).encode())

    (request,) = at.service.requests
    (tensor,) = request.inputs
    assert isinstance(tensor, Shared)
    assert request.shared
    assert (tensor.place, len(tensor.data)) == (8, 8)
    place = request.outputs[0].place
    assert place is not None
    assert (place.region, place.offset, place.size) == (tensor.region, 16, 8)
    with pytest.raises(TypeError):
        bytes(tensor.data)


CUDA = "/v2/cudasharedmemory"


def register_cuda(at: Door, **body: object) -> tuple[int, str]:
    exchange = at.call("POST", f"{CUDA}/region/g/register", json.dumps(body).encode())
    return exchange.status, exchange.error if exchange.content else ""


def test_memory_of_a_gpu_is_registered_and_unregistered(tmp_path: Path) -> None:
    at = door(tmp_path)
    handle = base64.b64encode(bytes(range(64))).decode()
    assert register_cuda(at, raw_handle={"b64": handle}, device_id=1, byte_size=16) == (200, "")
    one = {"name": "g", "device_id": 1, "byte_size": 16}
    assert at.call("GET", f"{CUDA}/region/g/status").json == at.call("GET", f"{CUDA}/status").json == [one]
    place = at.service.regions.find("g", 8, 8)
    assert (place.region.handle, place.offset) == (bytes(range(64)), 8)  # type: ignore[attr-defined]  # a CudaRegion
    text = "The region named 'g' is registered as CUDA shared memory, not system shared memory"
    assert at.call("GET", f"{SYSTEM}/region/g/status").error == text
    register(at, key="/k", byte_size=16)
    text = "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    assert at.call("GET", f"{CUDA}/region/r/status").error == text
    assert at.call("POST", f"{CUDA}/unregister").status == 200
    assert at.call("GET", f"{CUDA}/status").json == []
    assert [region["name"] for region in at.call("GET", f"{SYSTEM}/status").json] == ["r"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "Shared memory register request has no 'raw_handle' field"),
        (b'{"raw_handle":{},"device_id":0,"byte_size":4}', 500, "attempt to access non-existing object member 'b64'"),
        (b'{"raw_handle":"","device_id":0,"byte_size":4}', 500, "attempt to access non-existing object member 'b64'"),
        (b'{"raw_handle":{"b64":7},"device_id":0,"byte_size":4}', 500, "attempt to access JSON non-string as string"),
        (b'{"raw_handle":{"b64":""},"device_id":0}', 500, "attempt to access non-existing object member 'byte_size'"),
        (b'{"raw_handle":{"b64":""},"byte_size":4}', 500, "attempt to access non-existing object member 'device_id'"),
        (b'{"raw_handle":{"b64":"AAAA"},"byte_size":4,"device_id":-1}', 500,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ],
)  # fmt: skip
def test_bodies_that_register_no_memory_of_a_gpu(tmp_path: Path, body: bytes, status: int, text: str) -> None:
    exchange = door(tmp_path).call("POST", f"{CUDA}/region/g/register", body)
    assert (exchange.status, exchange.error) == (status, text)


def test_handle_that_is_not_base64_is_empty(tmp_path: Path) -> None:
    at = door(tmp_path)
    register_cuda(at, raw_handle={"b64": "no base64!"}, device_id=0, byte_size=16)
    assert at.service.regions.find("g", 0, 1).region.handle == b""  # type: ignore[attr-defined]  # a CudaRegion


def test_registration_that_fails_later_is_answered(tmp_path: Path) -> None:
    at = door(tmp_path)
    at.service.control_error = InvalidArgument("no such memory")
    assert register_cuda(at, raw_handle={"b64": ""}, device_id=0, byte_size=16) == (400, "no such memory")
