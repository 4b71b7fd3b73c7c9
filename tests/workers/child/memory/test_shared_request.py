"""Requests whose tensors lie in a client's shared memory, in a real worker. The front end never sees their bytes."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from edge_serve.backends.base import Reply
from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, Parameter, RequestedOutput
from edge_serve.messages.tensors import BY_NUMBER, Buffer, DataType, InferTensor, Shared, Unseen, is_unseen, join_bytes
from edge_serve.workers.child.memory.arena_imports import ArenaImports, ClientRegion
from edge_serve.workers.child.memory.shared_request import SharedRequest
from edge_serve.workers.front.frames.batch import insert_stored
from edge_serve.workers.front.process import exit_reason
from edge_serve.workers.memory.regions import SharedMemoryRegions
from edge_serve.workers.wire.frames import FrameError
from tests.stories import played
from tests.workers.harness import config, request, serving, survives, values

COUNT = 100_000
NBYTES = 4 * COUNT
OUT = 500_000


class Client:
    """A file of shared memory, registered as `r`."""

    def __init__(self, directory: Path, size: int = 1 << 20) -> None:
        self.path = directory / f"client-{os.getpid()}"
        self.path.write_bytes(bytes(size))
        self.regions = SharedMemoryRegions(str(directory))
        self.regions.register("r", self.path.name, 0, size)

    def put(self, data: bytes, offset: int = 0) -> None:
        with open(self.path, "r+b") as file:
            file.seek(offset)
            file.write(data)

    def numbers(self, offset: int, count: int) -> list[int]:
        found: list[int] = np.fromfile(self.path, "<i4", count, offset=offset).tolist()
        return found

    def input(self, datatype: DataType, shape: tuple[int, ...], offset: int, size: int) -> Shared:
        place = self.regions.find("r", offset, size)
        return Shared("INPUT0", datatype, shape, Unseen.buffer(size), -1, place.region, place.offset)

    def request(
        self, count: int = COUNT, size: int = NBYTES, out: int | None = OUT, **parameters: Parameter
    ) -> InferRequest:
        """Echo `count` numbers from the start of the region to `out`, which has `size` bytes."""
        outputs = []
        if out is not None:
            outputs.append(RequestedOutput("OUTPUT0", place=self.regions.find("r", out, size, "OUT")))
        tensor = self.input(DataType.INT32, (1, count), 0, 4 * count)
        return InferRequest("echo", inputs=[tensor], outputs=outputs, parameters=parameters, shared=True)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    made = Client(tmp_path)
    made.put(np.arange(COUNT, dtype="<i4").tobytes())
    return made


def mappings(pid: int, path: Path) -> list[str]:
    """The rights of a process's mappings of a file, and its descriptors of it."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    rights = [line.split()[1] for line in lines if str(path) in line]
    fds = Path(f"/proc/{pid}/fd").iterdir()
    return rights + ["fd" for fd in fds if os.path.exists(fd) and os.readlink(fd) == str(path)]


def refusal(reply: Reply) -> str:
    assert isinstance(reply.error, InvalidArgument), reply
    return reply.error.message


@pytest.mark.parametrize("count", [4, COUNT])
@played
async def test_tensors_are_read_and_written_in_the_clients_memory(tmp_path: Path, client: Client, count: int) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        for first in (0, 7):
            client.put(first.to_bytes(4, "little"))
            answer = await served.ask(client.request(count))
            (output,) = answer.replies[0].outputs
            assert (output.name, output.shape, len(output.data)) == ("OUTPUT0", (1, count), 4 * count)
            assert is_unseen(output.data)
            assert client.numbers(OUT, count) == [first, *range(1, count)]
            assert answer.lease is None
        (pid,) = served.model.pids()
        assert set(mappings(pid, client.path)) == ({"r--s", "rw-s", "fd"} if count == COUNT else {"fd"})
        assert mappings(os.getpid(), client.path) == ["fd"]

        client.regions.unregister("")
        gc.collect()
        while mappings(pid, client.path):
            await served.ask(request())
        assert mappings(os.getpid(), client.path) == []


@played
async def test_other_tensors_of_the_request_travel_as_ever(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=COUNT)) as served:
        row = np.arange(COUNT, dtype="<i4").reshape(1, -1)
        asked = client.request()
        asked.inputs.append(InferTensor("INPUT1", DataType.INT32, (1, COUNT), (row + 1).tobytes()))
        asked.outputs.insert(0, RequestedOutput("OUTPUT1"))

        answer = await served.ask(asked, request(row))

        first, second = answer.replies
        assert [tensor.name for tensor in first.outputs] == ["OUTPUT0", "OUTPUT1"]
        assert is_unseen(first.outputs[0].data)
        assert values(first, 1)[-1] == COUNT
        assert client.numbers(OUT, COUNT)[-1] == COUNT - 1
        assert values(second)[-1] == COUNT - 1
        assert answer.lease is not None
        answer.lease.release()


@played
async def test_the_error_of_an_output_that_does_not_fit_has_the_clients_name(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        answer = await served.ask(client.request(4, 15), client.request(4, 16, OUT + 16))
        small, enough = answer.replies
        assert small.error is not None
        assert small.error.http_status == 500
        assert small.error.message == (
            "shared memory size specified with the request for output 'OUT' (15 bytes) should be at least 16 bytes "
            "to hold the results"
        )
        assert client.numbers(OUT, 4) == [0, 0, 0, 0]
        assert client.numbers(OUT + 16, 4) == [0, 1, 2, 3]
        assert enough.error is None


@played
async def test_a_file_that_became_smaller_fails_its_requests_only(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        await served.ask(client.request())
        (pid,) = served.model.pids()
        os.truncate(client.path, 64)
        for count in (32, COUNT):
            answer = await served.ask(client.request(count, out=None), request())
            assert "has 64 bytes now" in refusal(answer.replies[0])
            assert values(answer.replies[1]) == list(range(16))
        answer = await served.ask(client.request(4))
        assert f"has 64 bytes now, {OUT + 16} are needed" in refusal(answer.replies[0])
        assert os.path.getsize(client.path) == 64
        assert served.model.pids() == [pid]


@played
async def test_a_file_that_shrinks_while_it_is_read_ends_the_worker_and_nothing_else(
    tmp_path: Path, client: Client
) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        batch = served.send(client.request(out=None, do="until_cancelled"))
        (pid,) = served.model.pids()
        while "r--s" not in mappings(pid, client.path):  # made after the file was measured
            await asyncio.sleep(0.001)
        os.truncate(client.path, 0)
        served.model.cancel(0, batch, 0)
        lost = await served.listener.lost()
        assert "SIGBUS" in lost.message
        await survives(served)
        os.truncate(client.path, 1 << 20)
        assert (await served.ask(client.request())).replies[0].error is None


def test_sigbus_is_explained() -> None:
    assert exit_reason(-7) == (
        "was ended by SIGBUS (it read a mapped file that had been made smaller: if clients use shared memory, one did "
        "that)"
    )


STRINGS = join_bytes([b"ab", b"", b"c" * 9])


BAD_STRINGS = [
    ((1, 2), len(STRINGS), "[request id: 7] unexpected number of string elements 3 for inference input 'INPUT0' "
                           "for model 'echo', expecting 2"),
    ((1, 4), len(STRINGS), "[request id: 7] expected 4 string elements for inference input 'INPUT0' for model "
                           "'echo', got 3"),
    ((1, 3), len(STRINGS) - 1, "incomplete string data for inference input 'INPUT0', expecting string of length 9 "
                               "but only 8 bytes available"),
]  # fmt: skip


@played
async def test_strings_are_checked_in_the_worker(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1, datatype="TYPE_STRING")) as served:
        client.put(STRINGS)
        good = client.input(DataType.BYTES, (1, 3), 0, len(STRINGS))
        outputs = [RequestedOutput("OUTPUT0", place=client.regions.find("r", OUT, 100))]
        for shape, size, text in BAD_STRINGS:
            client.put(bytes(len(STRINGS)), OUT)
            bad = client.input(DataType.BYTES, shape, 0, size)
            answer = await served.ask(
                InferRequest("echo", id="7", inputs=[bad], shared=True),
                InferRequest("echo", inputs=[good], outputs=outputs, shared=True),
            )
            assert refusal(answer.replies[0]) == text
            assert answer.replies[1].error is None
            assert client.path.read_bytes()[OUT : OUT + len(STRINGS)] == STRINGS


@played
async def test_a_row_of_a_sequence_that_cannot_be_read_keeps_its_place(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        rows = [client.request(COUNT, out=None), request(range(COUNT))]
        for slot, one in enumerate(rows):
            one.sequence_slot = slot
        os.truncate(client.path, 64)
        answer = await served.ask(*rows)
        assert "has 64 bytes now" in refusal(answer.replies[0])
        assert values(answer.replies[1])[-1] == COUNT - 1
        assert answer.lease is not None
        answer.lease.release()


@played
async def test_each_response_of_a_decoupled_model_is_written(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1, decoupled=True)) as served:
        served.send(client.request(do="partials", times=2))
        for number in range(2):
            kind, _, (_, _, reply, final, lease) = await served.listener.next()
            assert (kind, final, lease) == ("partial", number == 1, None)
            assert is_unseen(reply.outputs[0].data)
            assert reply.parameters["number"] == number
        assert client.numbers(OUT, COUNT)[-1] == COUNT - 1
        await served.listener.reply()


@played
async def test_a_worker_that_was_started_again_gets_the_region_again(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        for _ in range(2):
            assert (await served.ask(client.request())).replies[0].error is None
            os.kill(served.model.pids()[0], 9)
            await served.listener.lost()
            await served.listener.back()


@pytest.mark.parametrize("fault", [OSError("no such thing"), MemoryError()])
def test_an_error_of_the_system_is_one_of_the_request(fault: Exception) -> None:
    class Refusing(ClientRegion):
        def __init__(self) -> None:
            self.name = "r"

        def read(self, offset: int, size: int, *, copy: bool = False) -> Buffer:
            raise fault

        def write(self, offset: int, data: Buffer) -> None:
            raise fault

    class Knowing(ArenaImports):
        def region(self, place: int) -> ClientRegion:
            return Refusing()

    asked = {"model": "m", "outputs": [["Y", 0, 4, "Y"]]}
    reading, writing = (SharedRequest(Knowing(), "", asked, copies=False) for _ in range(2))
    reading.input(Refusing(), "X", DataType.INT32, (1,), 0, 4)
    refused = (
        reading.answer(Reply(), None),
        writing.answer(Reply([InferTensor("Y", DataType.INT8, (4,), bytes(4))]), None),
    )

    assert [str(reply.error) for reply in refused] == [
        f"input 'X' in shared memory cannot be read: {fault if str(fault) else 'no memory'}",
        f"an output cannot be put into shared memory: {type(fault).__name__}: {fault}",
    ]


@pytest.mark.parametrize(
    "stored",
    [
        [[0, "Y", DataType.INT32.value, [2], 7]],
        [[0, "Y", DataType.INT32.value, [-2], 8]],
        [[0, "Y", DataType.BYTES.value, [2], -8]],
        [[0, 7, DataType.INT32.value, [2], 8]],
        [[0, "Y", DataType.INT32.value, ["2"], 8]],
    ],
)
def test_nonsense_of_a_worker_is_found(stored: object) -> None:
    with pytest.raises(FrameError, match="was not stored as"):
        insert_stored([], stored)


def test_stored_outputs_stand_where_the_model_had_them() -> None:
    outputs = [InferTensor(name, DataType.INT8, (1,), b"1") for name in "ac"]
    insert_stored(outputs, [[1, "b", DataType.INT32.value, [2], 8], [3, "d", DataType.BYTES.value, [1], 9]])
    assert [tensor.name for tensor in outputs] == ["a", "b", "c", "d"]
    assert BY_NUMBER[DataType.INT32.value] is outputs[1].datatype
