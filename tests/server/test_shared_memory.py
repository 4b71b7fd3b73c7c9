"""System shared memory with Triton's own client: tensors that the front end neither copies nor maps."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, shared_memory

from tests.server.running import Running, python_model, running
from tests.server.test_ensembles import ADD, ADD_FACE, ensemble

COUNT = 200_000
NBYTES = 4 * COUNT
CACHED = ADD_FACE + "response_cache { enable: true }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root: Path = tmp_path_factory.mktemp("models")
    for name, face in (("add", ADD_FACE), ("more", ADD_FACE), ("cached", CACHED)):
        python_model(root, name, ADD, face)
    ensemble(root, "two", [("add", {"A": "X"}, "t"), ("more", {"A": "t", "B": "X"}, "Y")])
    ensemble(root, "both", [("add", {"A": "X"}, "T"), ("more", {"A": "T", "B": "X"}, "Y")])
    face = (root / "both" / "config.pbtxt").read_text()
    (root / "both" / "config.pbtxt").write_text(f'{face} output {{ name: "T" data_type: TYPE_FP32 dims: [ -1 ] }}')
    flags = ("--allow-client-shm=true", "--cache-config=local,size=1000000")
    with running(f"--model-repository={root}", *flags) as started:
        yield started


class Memory:
    """A shared memory object with room for three tensors, registered as `r`."""

    def __init__(self, server: Running) -> None:
        self.key = f"/edge-serve-test-{uuid.uuid4().hex}"
        self.client = httpclient.InferenceServerClient(server.url)
        self.handle = shared_memory.create_shared_memory_region("r", self.key, 3 * NBYTES)
        self.client.register_system_shared_memory("r", self.key, 3 * NBYTES)

    def close(self) -> None:
        self.client.unregister_system_shared_memory()
        self.client.close()
        shared_memory.destroy_shared_memory_region(self.handle)

    def put(self, values: Any, place: int = 0) -> None:
        shared_memory.set_shared_memory_region(self.handle, [np.asarray(values, np.float32)], offset=place * NBYTES)

    def get(self, place: int, count: int = COUNT) -> list[float]:
        found: list[float] = shared_memory.get_contents_as_numpy(
            self.handle, np.float32, (count,), offset=place * NBYTES
        ).tolist()
        return found

    def input(self, name: str, count: int = COUNT, place: int = 0) -> Any:
        made = httpclient.InferInput(name, [count], "FP32")
        made.set_shared_memory("r", 4 * count, offset=place * NBYTES)
        return made

    def output(self, name: str, place: int, nbytes: int = NBYTES) -> Any:
        made = httpclient.InferRequestedOutput(name)
        made.set_shared_memory("r", nbytes, offset=place * NBYTES)
        return made


@pytest.fixture
def memory(server: Running) -> Iterator[Memory]:
    made = Memory(server)
    yield made
    made.close()


def maps(pid: int, key: str) -> bool:
    return key in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("count", [4, COUNT])
def test_tensors_in_shared_memory(server: Running, memory: Memory, count: int) -> None:
    for first in range(2):
        memory.put(np.arange(first, count + first))
        answer = memory.client.infer("add", [memory.input("A", count)], outputs=[memory.output("OUT", 1)])

        assert answer.get_output("OUT") == {"name": "OUT", "datatype": "FP32", "shape": [count]}
        assert memory.get(1, count) == list(range(1 + first, count + 1 + first))
    assert not maps(server.process.pid, memory.key)


def test_shared_memory_beside_other_tensors(memory: Memory) -> None:
    memory.put(np.arange(COUNT))
    sent = httpclient.InferInput("B", [COUNT], "FP32")
    sent.set_data_from_numpy(np.full(COUNT, 5, np.float32))
    for binary in (False, True):
        wanted = httpclient.InferRequestedOutput("OUT", binary_data=binary)
        answer = memory.client.infer("add", [memory.input("A"), sent], outputs=[wanted])
        assert answer.as_numpy("OUT")[-1] == COUNT + 5
        memory.client.infer("add", [sent, memory.input("A")], outputs=[memory.output("OUT", 2)])
        assert memory.get(2)[-1] == COUNT + 5


@pytest.mark.parametrize("compressed", [False, True])
def test_large_json_names_a_region(server: Running, memory: Memory, compressed: bool) -> None:
    """Codec processes know no regions, and read the request all the same."""
    memory.put(np.arange(COUNT))
    where = {"shared_memory_region": "r", "shared_memory_byte_size": NBYTES}
    document: dict[str, Any] = {
        "inputs": [
            {"name": "A", "datatype": "FP32", "shape": [COUNT], "parameters": where},
            {"name": "B", "datatype": "FP32", "shape": [COUNT], "data": [2.5] * COUNT},
        ],
        "outputs": [{"name": "OUT", "parameters": {**where, "shared_memory_offset": NBYTES}}],
    }
    headers = {"Content-Encoding": "gzip"} if compressed else {}

    def ask() -> tuple[int, Any]:
        body = json.dumps(document).encode()
        body = gzip.compress(body, 1) if compressed else body
        reply = memory.client._post("v2/models/add/infer", body, headers, None)
        return reply.status_code, json.loads(reply.read())

    assert ask()[1]["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [COUNT]}]
    assert memory.get(1)[-1] == COUNT + 2.5
    document["outputs"][0]["parameters"]["shared_memory_region"] = "none"
    assert ask() == (404, {"error": "Unable to find shared memory region: 'none'"})


def test_a_large_answer_in_json_beside_one_in_shared_memory(memory: Memory) -> None:
    memory.put(np.arange(COUNT))
    shown = httpclient.InferRequestedOutput("Y", binary_data=False)
    answer = memory.client.infer("both", [memory.input("X")], outputs=[memory.output("T", 1), shown])
    assert answer.as_numpy("Y")[-1] == 2 * COUNT
    assert answer.get_output("T") == {"name": "T", "datatype": "FP32", "shape": [COUNT]}
    assert memory.get(1)[-1] == COUNT


@pytest.mark.parametrize("count", [4, COUNT])
def test_ensembles_read_and_write_it(memory: Memory, count: int) -> None:
    memory.put(np.arange(count))
    memory.client.infer("two", [memory.input("X", count)], outputs=[memory.output("Y", 2)])
    assert memory.get(2, count)[-1] == 2 * count

    wanted = [memory.output("T", 1), memory.output("Y", 2)]
    answer = memory.client.infer("both", [memory.input("X", count)], outputs=wanted)
    assert {entry["name"] for entry in answer.get_response()["outputs"]} == {"T", "Y"}
    assert (memory.get(1, count)[-1], memory.get(2, count)[-1]) == (count, 2 * count)

    with pytest.raises(InferenceServerException, match=r"for output 'Y' \(8 bytes\) should be at least \d+ bytes"):
        memory.client.infer("two", [memory.input("X", count)], outputs=[memory.output("Y", 2, 8)])


def test_tensors_that_the_front_end_cannot_see_are_not_cached(memory: Memory) -> None:
    for first in (0, 9):
        memory.put([first, 1])
        answer = memory.client.infer("cached", [memory.input("A", 2)])
        assert answer.as_numpy("OUT").tolist() == [first + 1, 2]


def test_requests_keep_a_region_that_is_unregistered(server: Running, memory: Memory) -> None:
    memory.put(np.arange(COUNT))
    inputs, outputs = [memory.input("A")], [memory.output("OUT", 1)]
    under_way = [memory.client.async_infer("add", inputs, outputs=outputs) for _ in range(4)]
    memory.client.infer("add", inputs)
    memory.client.unregister_system_shared_memory("r")
    for asked in under_way:
        asked.get_result()
    assert memory.get(1)[-1] == COUNT
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
        memory.client.infer("add", inputs)

    assert memory.key[1:] not in str([os.readlink(fd) for fd in Path(f"/proc/{server.process.pid}/fd").iterdir()])
    memory.client.infer("add", [_plain()])  # the worker has heard of it before this
    assert not any(maps(pid, memory.key) for pid in server.workers())


def _plain() -> Any:
    made = httpclient.InferInput("A", [1], "FP32")
    made.set_data_from_numpy(np.zeros(1, np.float32))
    return made


def test_regions_that_are_unregistered_leave_nothing(server: Running, memory: Memory) -> None:
    def descriptors() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (server.process.pid, *server.workers()))

    def use() -> None:
        memory.client.register_system_shared_memory("again", memory.key, NBYTES)
        again = httpclient.InferInput("A", [2], "FP32")
        again.set_shared_memory("again", 8)
        memory.client.infer("add", [again])
        memory.client.unregister_system_shared_memory("again")
        memory.client.infer("add", [_plain()])

    use()
    before = descriptors()
    for _ in range(20):
        use()
    assert descriptors() <= before + 1


def test_shared_memory_is_off_unless_it_is_allowed(tmp_path: Path) -> None:
    python_model(tmp_path, "add", ADD, ADD_FACE)
    refused = r"Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    with (
        running(f"--model-repository={tmp_path}") as server,
        httpclient.InferenceServerClient(server.url) as client,
    ):
        for act in (
            lambda: client.register_system_shared_memory("r", "/k", 64),
            lambda: client.register_cuda_shared_memory("r", b"handle", 0, 64),
            client.unregister_system_shared_memory,
            client.unregister_cuda_shared_memory,
        ):
            with pytest.raises(InferenceServerException, match=refused):
                act()
        assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []


def test_there_is_no_shared_memory_of_gpus(memory: Memory) -> None:
    with pytest.raises(InferenceServerException, match="CUDA shared memory region: 'g', GPUs not supported"):
        memory.client.register_cuda_shared_memory("g", b"handle", 0, 64)
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'g'"):
        memory.client.get_cuda_shared_memory_status("g")
    memory.client.unregister_cuda_shared_memory("g")
