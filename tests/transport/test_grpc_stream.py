"""One stream: order, finals, errors, back-pressure and its end, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.protocol.grpc_infer import GrpcInferDecoder
from edge_serve.protocol.grpc_response import GrpcInferEncoder
from edge_serve.protocol.grpc_service_pb2 import ModelInferRequest, ModelStreamInferResponse
from edge_serve.tensors import DataType, Tensor
from edge_serve.transport import backlog
from edge_serve.transport.grpc_stream import PAUSE_REQUESTS, Stream, StreamOverrun
from edge_serve.workers.regions import Regions
from tests.transport.v2_scene import FakeServed

_X = {"X": TensorSpec("X", DataType.UINT8, (-1,))}
ORDINARY = Signature("m", "1", "python", 0, _X, _X, required=1)
DECOUPLED = Signature("d", "1", "python", 0, _X, _X, decoupled=True, required=1)
OnResponse = Callable[[InferResponse], None]


@dataclass
class Job:
    request: InferRequest
    on_response: OnResponse
    can_wait: bool = True
    cancelled: bool = False
    holds: list[bool] = field(default_factory=list)

    def cancel(self) -> None:
        self.cancelled = True

    def hold(self, held: bool) -> bool:
        self.holds.append(held)
        return self.can_wait

    def answer(self, data: bytes = b"", *, final: bool = True, error: EdgeServeError | None = None) -> None:
        outputs = [] if error else [Tensor("X", DataType.UINT8, (len(data),), data)]
        name = self.request.model_name
        self.on_response(InferResponse(name, "1", self.request.id, outputs, error=error, final=final))

    def end(self) -> None:
        self.on_response(InferResponse(self.request.model_name, "1", self.request.id, null=True))


@dataclass
class Scene:
    """A stream whose client sends what is put into `sent` (None = no more), and whose models answer when told."""

    can_wait: bool = True
    refusal: EdgeServeError | None = None
    jobs: list[Job] = field(default_factory=list)
    regions: Regions = field(default_factory=Regions)
    sent: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    written: list[ModelStreamInferResponse] = field(default_factory=list)
    may_write: asyncio.Event = field(default_factory=asyncio.Event)

    def exiting(self) -> bool:
        return False

    def lookup(self, name: str, version: str) -> FakeServed:
        if name not in ("m", "d"):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return FakeServed(ORDINARY if name == "m" else DECOUPLED)

    def infer(self, request: InferRequest, on_response: OnResponse) -> Job:
        job = Job(request, on_response, self.can_wait)
        self.jobs.append(job)
        if self.refusal is not None:
            job.answer(error=self.refusal)
        return job

    async def requests(self) -> AsyncIterator[bytes]:
        while (data := await self.sent.get()) is not None:
            yield data

    async def write(self, data: bytes) -> None:
        await self.may_write.wait()
        self.written.append(ModelStreamInferResponse.FromString(data))

    def send(self, model: str, request_id: str, *, wants_final: bool = False) -> None:
        made = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[b"x"])
        made.inputs.add(name="X", datatype="UINT8", shape=[1])
        if wants_final:
            made.parameters["triton_enable_empty_final_response"].bool_param = True
        self.sent.put_nowait(made.SerializeToString())

    def run(self, *, strict: bool = False) -> asyncio.Task[None]:
        decoder = GrpcInferDecoder(lambda name, version: self.lookup(name, version).signature, self.regions)
        stream = Stream(self, decoder, GrpcInferEncoder(), None, strict=strict)

        async def both() -> None:
            reading = asyncio.create_task(stream.read(self.requests()))
            try:
                await stream.write(self.write)
            finally:
                reading.cancel()
                stream.cancel()

        return asyncio.create_task(both())

    def ids(self) -> list[str]:
        return [one.infer_response.id for one in self.written]


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_ordinary_responses_leave_in_the_order_of_their_requests() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        for name in "abc":
            scene.send("m", name)
        await settle()
        for index in (2, 0, 1):
            scene.jobs[index].answer(b"y")
        scene.sent.put_nowait(None)
        await asyncio.wait_for(running, 5)

        assert scene.ids() == ["a", "b", "c"]
        assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in scene.written)

    asyncio.run(main())


def test_decoupled_responses_do_not_wait_for_ordinary_ones() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        scene.send("m", "slow")
        scene.send("d", "quick")
        await settle()
        scene.jobs[1].answer(b"1", final=False)
        scene.jobs[1].answer(b"2", final=False)
        scene.jobs[1].end()
        scene.sent.put_nowait(None)
        await settle()
        assert not running.done()
        scene.jobs[0].answer(b"3")
        await asyncio.wait_for(running, 5)

        assert scene.ids() == ["quick", "quick", "slow"]

    asyncio.run(main())


@pytest.mark.parametrize("wants_final", [False, True])
def test_an_empty_final_is_sent_to_whom_asks_for_it(wants_final: bool) -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        scene.send("d", "i", wants_final=wants_final)
        scene.sent.put_nowait(None)
        await settle()
        scene.jobs[0].end()
        await asyncio.wait_for(running, 5)

        finals = [one.infer_response.parameters["triton_final_response"].bool_param for one in scene.written]
        assert finals == [True] * wants_final
        assert all(not one.infer_response.outputs for one in scene.written)

    asyncio.run(main())


def test_errors_are_messages_in_their_place() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        scene.send("m", "a")
        scene.send("nope", "b")
        scene.send("m", "c")
        scene.sent.put_nowait(None)
        await settle()
        scene.jobs[1].answer(error=InvalidArgument("the model says no"))
        scene.jobs[0].answer(b"y")
        await asyncio.wait_for(running, 5)

        assert scene.ids() == ["a", "b", "c"]
        texts = [one.error_message for one in scene.written]
        assert texts == ["", "Request for unknown model: 'nope' is not found", "the model says no"]
        assert [one.infer_response.model_name for one in scene.written] == ["m", "", "m"]

    asyncio.run(main())


def test_what_is_refused_at_once_names_no_model() -> None:
    async def main() -> None:
        scene = Scene(refusal=InvalidArgument("the queue is full"))
        scene.may_write.set()
        running = scene.run()
        scene.send("m", "a")
        scene.sent.put_nowait(None)
        await asyncio.wait_for(running, 5)

        (one,) = scene.written
        assert (one.error_message, one.infer_response.model_name, one.infer_response.id) == (
            "the queue is full",
            "",
            "a",
        )

    asyncio.run(main())


def test_a_strict_stream_ends_with_its_first_error_and_cancels_the_rest() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run(strict=True)
        scene.send("m", "a")
        scene.send("nope", "b")
        with pytest.raises(NotFound, match="'nope' is not found"):
            await asyncio.wait_for(running, 5)

        assert scene.jobs[0].cancelled

    asyncio.run(main())


def test_bytes_that_are_no_message_end_the_stream() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        scene.sent.put_nowait(b"\xff")
        with pytest.raises(EdgeServeError, match="Unable to parse request"):
            await asyncio.wait_for(running, 5)

    asyncio.run(main())


def test_cancelling_the_stream_cancels_its_requests() -> None:
    async def main() -> None:
        scene = Scene()
        running = scene.run()
        scene.send("m", "a")
        scene.send("d", "b")
        await settle()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert [job.cancelled for job in scene.jobs] == [True, True]
        scene.jobs[0].answer(b"late")  # and what still comes is thrown away
        assert scene.written == []

    asyncio.run(main())


def test_senders_wait_while_the_client_does_not_read_and_go_on_when_it_does() -> None:
    async def main() -> None:
        scene = Scene()
        running = scene.run()
        scene.send("d", "a")
        await settle()
        (job,) = scene.jobs
        for _ in range(3):
            job.answer(bytes(backlog.HOLD_ABOVE // 2), final=False)
        assert job.holds == [True]
        scene.may_write.set()
        await settle()
        assert job.holds == [True, False]
        job.end()
        scene.sent.put_nowait(None)
        await asyncio.wait_for(running, 5)

        assert len(scene.written) == 3

    asyncio.run(main())


def test_a_stream_whose_senders_cannot_wait_ends_when_too_much_is_unread() -> None:
    async def main() -> None:
        scene = Scene(can_wait=False)
        running = scene.run()
        scene.send("d", "a")
        await settle()
        for _ in range(18):
            scene.jobs[0].answer(bytes(1024 * 1024), final=False)
        scene.may_write.set()
        with pytest.raises(StreamOverrun, match="left more than 16777216 bytes of it unread"):
            await asyncio.wait_for(running, 5)

        assert scene.jobs[0].cancelled

    asyncio.run(main())


def test_no_more_is_read_from_a_client_with_many_requests_under_way() -> None:
    async def main() -> None:
        scene = Scene()
        scene.may_write.set()
        running = scene.run()
        for index in range(PAUSE_REQUESTS + 10):
            scene.send("m", str(index))
        scene.sent.put_nowait(None)
        while len(scene.jobs) < PAUSE_REQUESTS:
            await asyncio.sleep(0)
        await settle()
        assert len(scene.jobs) == PAUSE_REQUESTS
        for job in scene.jobs:  # grows while it is walked
            job.answer(b"y")
            await settle()
        await asyncio.wait_for(running, 5)

        assert scene.ids() == [str(index) for index in range(PAUSE_REQUESTS + 10)]

    asyncio.run(main())
