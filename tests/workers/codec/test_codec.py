"""Codec processes answer as the loop's codec does, and no job leaks memory, however it ends."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import mmap
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Buffer, DataType, InferTensor
from edge_serve.protocol.v2 import generate
from edge_serve.protocol.v2.infer import InferDecoder, InferEncoder
from edge_serve.workers.codec.codec import Codec
from edge_serve.workers.codec.job import Body, CodecJob, Encoded, Refused
from edge_serve.workers.memory import arena as arena_module
from edge_serve.workers.memory.arena import Arena, Budget
from tests.stories import played
from tests.workers.harness import PATIENCE

SIGNATURE = Signature(
    "m",
    "1",
    "python",
    0,
    {
        "N": TensorSpec("N", DataType.FP64, (-1,), optional=True),
        "S": TensorSpec("S", DataType.BYTES, (-1,), optional=True),
    },
    {"Y": TensorSpec("Y", DataType.FP32, (-1,), labels=("cat", "dog"))},
    required=1,
)
LIMIT = 1 << 20


class Scene:
    """A codec, a model's arena, and the outcomes of jobs."""

    def __init__(self, codec: Codec, budget: Budget) -> None:
        self.codec = codec
        self.budget = budget
        self.arena = Arena("m", budget)
        self.told: list[Any] = []

    def body(
        self,
        data: bytes,
        *,
        in_arena: bool = True,
        length: int | None = None,
        compressed: bool = False,
        generate: bool = False,
    ) -> Body:
        arena, lease, held = None, None, memoryview(data)
        if in_arena:
            arena, lease = self.arena, self.arena.allocate(len(data))
            lease.view[: len(data)] = data
            held = lease.view[: len(data)]
        text = None if length is None else str(length)
        return Body(SIGNATURE, "1", arena, held, lease, text, compressed, LIMIT, generate)

    async def decode(self, body: Body) -> InferRequest:
        """The request of a body.

        Raises:
            EdgeServeError: why it is none.
        """
        request: InferRequest = await _outcome(lambda done: self.codec.decode(body, done))
        return request

    async def encode(self, response: InferResponse, request: InferRequest, accept: str = "identity") -> Encoded:
        """The buffers of a reply."""
        encoded: Encoded = await _outcome(lambda done: self.codec.encode(response, request, SIGNATURE, accept, done))
        return encoded

    def start(self, body: Body) -> CodecJob:
        """Start a job and keep its outcome in `told`."""
        return self.codec.decode(body, self.told.append)

    async def pid(self) -> int:
        """Return the number of a running process; start one if there is none."""
        (await self.decode(self.body(numbers(1)))).lease.release()  # type: ignore[union-attr]  # it has one
        (pid,) = self.codec.pids()
        return pid


async def _outcome(start: Callable[[Callable[[Any], None]], Any]) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    start(future.set_result)  # a second call would raise
    outcome = await asyncio.wait_for(future, PATIENCE)
    if isinstance(outcome, Refused):
        raise outcome.error
    return outcome


async def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(budget: int = 64 << 20, **settings: Any) -> AsyncIterator[Scene]:
    """Run a codec, and check that no memory or process is left at the end."""
    account = Budget(budget)
    codec = Codec(account, **settings)
    here = Scene(codec, account)
    try:
        yield here
        assert account.used == 0, "a slot was never given back"
    finally:
        await codec.stop()
        here.arena.close()
    assert codec.pids() == []


Story = Callable[[Scene], Awaitable[None]]


@pytest.fixture(scope="module")
def together() -> Iterator[Callable[[Story], None]]:
    """Runs stories that leave the process alone, one after the other with the same process."""
    loop, account = asyncio.new_event_loop(), Budget(64 << 20)
    codec = Codec(account)

    async def told(story: Story) -> None:
        here = Scene(codec, account)
        try:
            await asyncio.wait_for(story(here), PATIENCE)
            await until(lambda: account.used == 0)  # a slot that a thread still clears is released after that
        finally:
            here.arena.close()

    yield lambda story: loop.run_until_complete(told(story))
    loop.run_until_complete(codec.stop())
    loop.close()
    assert codec.pids() == []


def item(name: str, data: Any, datatype: str = "FP64") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


def request_json(*inputs: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"inputs": inputs, **members}, separators=(",", ":")).encode()


def numbers(count: int) -> bytes:
    """A body whose tensors fit where its text was."""
    return request_json(item("N", [0.123456789012345 + i for i in range(count)]))


def short_numbers(count: int) -> bytes:
    """A body whose tensors are larger than its text."""
    return request_json(item("N", [1] * count))


def plain(request: InferRequest) -> tuple[Any, ...]:
    """Return the fields of a request that a model sees."""
    tensors = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    fields = (request.model_name, request.model_version, request.id, request.parameters, request.correlation_id)
    return (tensors, request.outputs, *fields, request.flags, request.priority, request.timeout_us, request.rows)


def in_loop(data: bytes, length: int | None = None) -> InferRequest:
    return InferDecoder(LIMIT).decode(SIGNATURE, "1", data, length)


# ---- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_arena", [True, False])
def test_a_codec_process_decodes_requests_as_the_loop_does(in_arena: bool, together: Callable[[Story], None]) -> None:
    parameters = {"sequence_id": 7, "sequence_start": True, "priority": 2, "timeout": 9, "mine": "ä"}
    outputs = [{"name": "Y", "parameters": {"classification": 2}}]
    full = request_json(
        item("N", [1.5, float("-1e300")]), item("S", ["", "äö"], "BYTES"), id="r", parameters=parameters,
        outputs=outputs,
    )  # fmt: skip

    async def story(here: Scene) -> None:
        for data in (full, numbers(2000), short_numbers(5000), request_json(item("N", []))):
            request = await here.decode(here.body(data, in_arena=in_arena))
            assert plain(request) == plain(in_loop(data))
            assert request.validated is SIGNATURE
            if request.lease is not None:
                request.lease.release()
                request.lease.release()
            assert here.budget.used == 0

    together(story)


@pytest.mark.parametrize("in_arena", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b'{"N":[0.5,1.25],"S":["","x"],"id":"r","temperature":0.5,"parameters":{"stream":true}}',
        json.dumps({"N": [0.123456789 + i for i in range(3000)]}).encode(),
        json.dumps({"N": [1] * 9000}).encode(),
        b'{"S":"a prompt"}',
    ],
    ids=["full", "numbers", "short numbers", "text"],
)
def test_a_codec_process_decodes_generate_as_the_loop_does(
    data: bytes, in_arena: bool, together: Callable[[Story], None]
) -> None:
    async def story(here: Scene) -> None:
        request = await here.decode(here.body(data, in_arena=in_arena, generate=True))
        assert plain(request) == plain(generate.read(data, SIGNATURE, "1", LIMIT))
        assert request.lease is not None
        request.lease.release()

    together(story)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"N":"x"}', b'{"N":1,"N":2}', b'{"odd":[1]}'])
def test_a_codec_process_refuses_generate_as_the_loop_does(data: bytes, together: Callable[[Story], None]) -> None:
    with pytest.raises(EdgeServeError) as expected:
        generate.read(data, SIGNATURE, "1", LIMIT)

    async def story(here: Scene) -> None:
        with pytest.raises(type(expected.value)) as found:
            await here.decode(here.body(data, generate=True))
        assert found.value.message == expected.value.message

    together(story)


def test_tensors_are_written_over_their_text_when_they_fit(together: Callable[[Story], None]) -> None:
    async def story(here: Scene) -> None:
        body = here.body(numbers(1000))
        assert body.lease is not None
        held = here.budget.used
        request = await here.decode(body)

        assert request.lease is body.lease
        assert here.budget.used == held
        (tensor,) = request.inputs
        assert body.lease.offset <= tensor.offset < body.lease.offset + len(body.lease.view)
        request.lease.release()

    together(story)


def test_tensors_longer_than_their_text_get_new_memory_and_the_text_is_released(
    together: Callable[[Story], None],
) -> None:
    async def story(here: Scene) -> None:
        body = here.body(short_numbers(20_000))
        request = await here.decode(body)

        assert request.lease is not body.lease
        assert request.lease is not None
        assert len(request.lease.view) >= 160_000
        assert here.budget.used < len(request.lease.view) + 8192
        request.lease.release()

    together(story)


def test_binary_tensors_stay_where_they_are(together: Callable[[Story], None]) -> None:
    data = np.arange(500, dtype=np.float64).tobytes()
    text = json.dumps(
        {"inputs": [{"name": "N", "datatype": "FP64", "shape": [500], "parameters": {"binary_data_size": len(data)}}]}
    )
    text += " " * (-len(text) % 64)

    async def story(here: Scene) -> None:
        body = here.body(text.encode() + data, length=len(text))
        assert body.lease is not None
        request = await here.decode(body)

        assert request.lease is body.lease
        assert request.inputs[0].offset == body.lease.offset + len(text)
        assert bytes(request.inputs[0].data) == data
        request.lease.release()

    together(story)


@pytest.mark.parametrize("in_arena", [True, False])
def test_compressed_bodies(in_arena: bool, together: Callable[[Story], None]) -> None:
    data = numbers(3000)

    async def story(here: Scene) -> None:
        request = await here.decode(here.body(gzip.compress(data), in_arena=in_arena, compressed=True))
        assert plain(request) == plain(in_loop(data))
        assert request.lease is not None
        request.lease.release()

    together(story)


@pytest.mark.parametrize("in_arena", [True, False])
@pytest.mark.parametrize(
    "data", [b"{", request_json(item("N", ["x"])), request_json(item("Z", [1])), b"x" * (LIMIT + 1)]
)
def test_a_codec_process_refuses_requests_as_the_loop_does(
    data: bytes, in_arena: bool, together: Callable[[Story], None]
) -> None:
    with pytest.raises(EdgeServeError) as expected:
        in_loop(data)

    async def story(here: Scene) -> None:
        with pytest.raises(EdgeServeError) as caught:
            await here.decode(here.body(data, in_arena=in_arena))
        assert (type(caught.value), caught.value.message) == (type(expected.value), expected.value.message)

    together(story)


@pytest.mark.parametrize(
    ("data", "compressed", "length"), [(b"no gzip", True, None), (b"{}", False, 3), (b"{}", False, -1)]
)
def test_a_body_that_cannot_be_inflated_or_cut_is_refused_before_the_request(
    data: bytes, compressed: bool, length: int | None, together: Callable[[Story], None]
) -> None:
    async def story(here: Scene) -> None:
        here.start(here.body(data, compressed=compressed, length=length))
        await until(lambda: here.told)
        (refused,) = here.told
        assert refused.before
        assert isinstance(refused.error, InvalidArgument)

    together(story)


@played
async def test_a_request_without_memory_for_its_tensors_is_refused_and_the_process_survives() -> None:
    async with scene(budget=512 * 1024) as here:
        pid = await here.pid()
        with pytest.raises(Unavailable, match="tensor memory"):
            await here.decode(here.body(short_numbers(100_000)))
        assert here.budget.used == 0
        assert await here.pid() == pid


# ---- replies ------------------------------------------------------------------------------------------------------


def reply(here: Scene, values: list[float], *, in_arena: bool = True) -> InferResponse:
    raw = np.array(values, np.float32).tobytes()
    response = InferResponse("m", "1", "r", parameters={"p": 1})
    data: Buffer = raw
    offset = -1
    if in_arena:
        slot = response.lease = here.arena.allocate(len(raw))
        slot.view[: len(raw)] = raw
        data, offset = slot.view[: len(raw)], slot.offset
    response.outputs = [InferTensor("Y", DataType.FP32, (len(values),), data, offset)]
    return response


@pytest.mark.parametrize("in_arena", [True, False])
@pytest.mark.parametrize("output", [RequestedOutput("Y"), RequestedOutput("Y", True), RequestedOutput("Y", False, 2)])
def test_a_codec_process_encodes_replies_as_the_loop_does(
    in_arena: bool, output: RequestedOutput, together: Callable[[Story], None]
) -> None:
    request = InferRequest("m", outputs=[output])

    async def story(here: Scene) -> None:
        response = reply(here, [0.5, 2.5], in_arena=in_arena)
        expected, length = InferEncoder().encode(response, request, SIGNATURE)
        text = b"".join(map(bytes, expected))
        encoded = await here.encode(response, request)

        assert b"".join(map(bytes, encoded.buffers)) == text
        assert encoded.length == length
        assert here.budget.used > 0
        encoded.lease.release()

    together(story)


@pytest.mark.parametrize("in_arena", [True, False])
def test_a_codec_process_encodes_responses_to_generate_as_the_loop_does(
    in_arena: bool, together: Callable[[Story], None]
) -> None:
    async def story(here: Scene) -> None:
        data = np.arange(9, dtype=np.float32).tobytes()
        lease, offset = None, -1
        if in_arena:
            lease = here.arena.allocate(len(data))
            lease.view[: len(data)] = data
            offset = lease.offset
        outputs = [
            InferTensor("Y", DataType.FP32, (9,), data, offset),
            InferTensor("one", DataType.INT32, (1,), bytes(4)),
        ]
        outputs = outputs if not in_arena else outputs[:1]
        response = InferResponse("m", "1", "id", outputs, {"b": True}, lease=lease)
        expected = generate.write(response)
        request = InferRequest("m")
        encoded = await _outcome(
            lambda done: here.codec.encode(response, request, SIGNATURE, "identity", done, generate=True)
        )
        assert (b"".join(encoded.buffers), encoded.length) == (expected, None)
        encoded.lease.release()

    together(story)


def test_binary_outputs_of_a_reply_stay_where_the_worker_wrote_them(together: Callable[[Story], None]) -> None:
    async def story(here: Scene) -> None:
        response = reply(here, [1.0] * 3000)
        assert response.lease is not None
        encoded = await here.encode(response, InferRequest("m", binary_default=True))
        response.lease.view[:4] = b"seen"

        assert bytes(encoded.buffers[-1][:4]) == b"seen"
        encoded.lease.release()

    together(story)


def test_a_text_reply_releases_the_outputs_at_once(together: Callable[[Story], None]) -> None:
    async def story(here: Scene) -> None:
        response = reply(here, [1.0] * 50_000)
        outputs = response.lease
        assert outputs is not None
        encoded = await here.encode(response, InferRequest("m"))

        assert encoded.lease is not outputs
        assert here.arena.used_bytes < 2 * len(outputs.view), "the outputs' memory is held with the text's"
        encoded.lease.release()

    together(story)


def test_compressed_replies(together: Callable[[Story], None]) -> None:
    async def story(here: Scene) -> None:
        encoded = await here.encode(reply(here, [1.0] * 3000), InferRequest("m"), "gzip")
        text = gzip.decompress(b"".join(map(bytes, encoded.buffers)))

        assert json.loads(text)["outputs"][0]["data"] == [1.0] * 3000
        encoded.lease.release()

    together(story)


def test_a_reply_that_cannot_be_written_is_an_error(together: Callable[[Story], None]) -> None:
    async def story(here: Scene) -> None:
        response = reply(here, [1.0, 2.0])
        response.outputs[0].shape = (3,)
        with pytest.raises(Internal, match="does not match size of output for 'Y'"):
            await here.encode(response, InferRequest("m"))

    together(story)


# ---- processes ----------------------------------------------------------------------------------------------------


@played
async def test_the_first_job_starts_a_process_and_an_idle_process_is_closed() -> None:
    async with scene(idle_seconds=0.05) as here:
        assert here.codec.pids() == []
        pid = await here.pid()
        await until(lambda: not here.codec.pids())
        await until(lambda: not os.path.exists(f"/proc/{pid}"))
        assert await here.pid() != pid


@played
async def test_jobs_share_few_processes_and_one_process_does_many() -> None:
    async with scene() as here:
        seen: set[int] = set()
        for _ in range(12):
            here.start(here.body(numbers(500), in_arena=False))
        while len(here.told) < 12:
            seen.update(here.codec.pids())
            assert len(here.codec.pids()) <= 2
            await asyncio.sleep(0.005)
        assert len(seen) <= 2
        for request in here.told:
            assert plain(request) == plain(in_loop(numbers(500)))
            request.lease.release()


@played
async def test_a_killed_process_fails_its_job_alone() -> None:
    async with scene(most=1) as here:
        pid = await here.pid()
        os.kill(pid, signal.SIGSTOP)
        here.start(here.body(numbers(10)))
        here.start(here.body(numbers(20)))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(here.told) == 2)

        lost, request = here.told
        assert isinstance(lost.error, Unavailable)
        assert "SIGKILL" in lost.error.message
        assert lost.error.message.endswith("while it read the body of this request; try again")
        assert plain(request) == plain(in_loop(numbers(20)))
        request.lease.release()


@played
async def test_a_process_that_dies_before_it_is_up_fails_its_job_alone() -> None:
    async with scene(most=1) as here:
        for count in (10, 20):
            here.start(here.body(numbers(count)))
        (pid,) = here.codec.pids()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(here.told) == 2)

        lost, request = here.told
        assert "SIGKILL" in lost.error.message
        assert plain(request) == plain(in_loop(numbers(20)))
        request.lease.release()


@played
async def test_jobs_fail_when_no_process_can_be_started_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_fork(*args: Any, **options: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    async with scene() as here:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_fork)
            with pytest.raises(Unavailable, match="cannot start worker codec"):
                await here.decode(here.body(numbers(10)))
        await here.pid()


@played
async def test_a_callback_that_raises_costs_neither_the_process_nor_other_jobs() -> None:
    outcomes: list[InferRequest | Refused] = []

    def broken(outcome: InferRequest | Refused) -> None:
        outcomes.append(outcome)
        raise ValueError("a fault of the caller")

    async with scene(most=1) as here:
        pid = await here.pid()
        here.codec.decode(here.body(numbers(10)), broken)
        assert await here.pid() == pid
        (outcome,) = outcomes
        assert isinstance(outcome, InferRequest)
        assert outcome.lease is not None
        outcome.lease.release()


@played
async def test_a_job_that_takes_too_long_ends_its_process() -> None:
    async with scene(job_seconds=0.3) as here:
        os.kill(await here.pid(), signal.SIGSTOP)
        with pytest.raises(Unavailable, match=r"a job took longer than 0\.3 s"):
            await here.decode(here.body(numbers(10)))
        await here.pid()


@played
async def test_a_waiting_job_is_cancelled_at_once() -> None:
    async with scene(most=1) as here:
        first = here.start(here.body(numbers(10)))
        second = here.start(here.body(numbers(20)))
        second.cancel()
        assert [type(refused.error) for refused in here.told] == [Cancelled]
        await until(lambda: len(here.told) == 2)
        first.cancel()  # too late, and without effect
        assert plain(here.told[1]) == plain(in_loop(numbers(10)))
        here.told[1].lease.release()


@played
async def test_a_cancelled_job_keeps_its_memory_while_its_process_works() -> None:
    async with scene() as here:
        pid = await here.pid()
        os.kill(pid, signal.SIGSTOP)
        job = here.start(here.body(numbers(10)))
        job.cancel()
        assert here.told == []
        assert here.budget.used > 0
        os.kill(pid, signal.SIGCONT)
        await until(lambda: here.told)

        assert [type(refused.error) for refused in here.told] == [Cancelled]
        assert here.budget.used == 0


@played
async def test_stop_fails_all_jobs() -> None:
    async with scene(most=1) as here:
        os.kill(await here.pid(), signal.SIGSTOP)
        for count in (1, 2):
            here.start(here.body(numbers(count)))
        await here.codec.stop(0.1)
        here.start(here.body(numbers(3)))

        assert [type(refused.error) for refused in here.told] == [Unavailable] * 3
        assert [refused.error.message for refused in here.told].count("Server exiting") == 2


def test_a_codec_without_memory_refuses_the_job_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str, size: int) -> tuple[int, mmap.mmap]:
        raise Unavailable("no descriptors")

    async def story() -> list[Encoded | Refused]:
        told: list[Encoded | Refused] = []
        codec = Codec(Budget(1 << 30))
        monkeypatch.setattr(arena_module, "_made", none)
        response = InferResponse("m", "1", "", [InferTensor("Y", DataType.INT32, (1,), bytes(4))])
        codec.encode(response, InferRequest("m"), SIGNATURE, "identity", told.append)
        await codec.stop()
        return told

    (outcome,) = asyncio.run(story())
    assert isinstance(outcome, Refused)
    assert outcome.error.message == "no descriptors"
