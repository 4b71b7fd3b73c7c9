"""One stream: order, finals, errors, back-pressure and its end, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Buffer, DataType, InferTensor
from edge_serve.messages.trace import Arrival
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferRequest, ModelStreamInferResponse
from edge_serve.protocol.grpc.infer import GrpcInferDecoder
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.transport.door.shared_limits import InFlight
from edge_serve.transport.grpc.call_head import CallHead
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.stream import PAUSE_REQUESTS, InferStream, StreamOverrun
from edge_serve.transport.sockets import backlog
from edge_serve.workers.memory.regions import SharedMemoryRegions
from tests.transport.v2_scene import FakeLease, FakeServed

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

    def set_paused(self, paused: bool) -> bool:
        self.holds.append(paused)
        return self.can_wait

    def jobs(self) -> tuple[()]:
        return ()

    def answer(
        self,
        data: bytes = b"",
        *,
        final: bool = True,
        error: EdgeServeError | None = None,
        lease: FakeLease | None = None,
    ) -> None:
        outputs = [] if error else [InferTensor("X", DataType.UINT8, (len(data),), data)]
        name = self.request.model_name
        self.on_response(InferResponse(name, "1", self.request.id, outputs, error=error, final=final, lease=lease))

    def end(self) -> None:
        self.on_response(InferResponse(self.request.model_name, "1", self.request.id, null=True))


@dataclass
class Scene:
    """A stream whose client sends when told to and whose models answer when told to. It is the call, too: what it
    `takes` is on its way, and everything else waits until `read`."""

    can_wait: bool = True
    refusal: EdgeServeError | None = None
    takes: bool = True
    strict: bool = False
    at_once: bytes | None = None
    asked: CallHead = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    regions: SharedMemoryRegions = field(default_factory=SharedMemoryRegions)
    written: list[ModelStreamInferResponse] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    status: EdgeServeError | str = ""
    paused: bool = False
    dropped: bool = False
    counted: list[tuple[str, str, int]] = field(default_factory=list)
    in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        self.asked = CallHead(strict=self.strict)
        decoder = GrpcInferDecoder(self.lookup, self.regions)
        call: Any = self

        def decode(message: Message, _: object) -> Any:
            return decoder.decode(message.data, None, message.offset)

        self.stream = InferStream(call, self, decode, GrpcInferEncoder(), None)

    # the service

    def live(self) -> bool:
        return True

    def lookup(self, name: str, version: str) -> FakeServed:
        if name not in ("m", "d"):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return FakeServed(ORDINARY if name == "m" else DECOUPLED)

    def lease(self, name: str, version: str, nbytes: int) -> None:
        return None

    def infer(
        self, served: object, request: InferRequest, on_response: OnResponse, arrival: Arrival | None = None
    ) -> Job:
        job = Job(request, on_response, self.can_wait)
        self.jobs.append(job)
        if self.refusal is not None:
            job.answer(error=self.refusal)
        elif self.at_once is not None:
            job.answer(self.at_once)
        return job

    def count_client_error(self, name: str, version: str, error: EdgeServeError) -> None:
        self.counted.append((name, version, error.http_status))

    # the call

    def write(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> int:
        data = b"".join(parts)
        assert len(data) == size
        self.written.append(ModelStreamInferResponse.FromString(data))
        if on_sent is not None:
            on_sent()
        if self.takes:
            return 0
        self.waiting.append(size)
        return size

    def finish(self) -> None:
        assert not self.status
        self.status = "OK"

    def fail(self, error: EdgeServeError) -> None:
        assert not self.status
        self.status = error
        self.stream.on_gone()

    def cut(self, error: EdgeServeError) -> None:
        self.dropped = True
        self.fail(error)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # the client

    def send(self, model: str, request_id: str, *, wants_final: bool = False) -> None:
        made = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[b"x"])
        made.inputs.add(name="X", datatype="UINT8", shape=[1])
        if wants_final:
            made.parameters["triton_enable_empty_final_response"].bool_param = True
        self.stream.on_message(Message(made.SerializeToString()))

    def end(self) -> None:
        self.stream.on_end()

    def read(self) -> None:
        """The client takes all that waits."""
        while self.waiting:
            self.stream.on_taken(self.waiting.pop(0))

    def ids(self) -> list[str]:
        return [one.infer_response.id for one in self.written]


def test_ordinary_responses_leave_in_the_order_of_their_requests() -> None:
    scene = Scene()
    for name in "abc":
        scene.send("m", name)
    for index in (2, 0, 1):
        scene.jobs[index].answer(b"y")
    assert scene.status == ""
    scene.end()

    assert scene.ids() == ["a", "b", "c"]
    assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in scene.written)
    assert scene.status == "OK"


def test_decoupled_responses_do_not_wait_for_ordinary_ones() -> None:
    scene = Scene()
    scene.send("m", "slow")
    scene.send("d", "quick")
    scene.jobs[1].answer(b"1", final=False)
    scene.jobs[1].answer(b"2", final=False)
    scene.jobs[1].end()
    scene.end()
    assert scene.status == ""
    scene.jobs[0].answer(b"3")

    assert scene.ids() == ["quick", "quick", "slow"]
    assert scene.status == "OK"


@pytest.mark.parametrize("wants_final", [False, True])
def test_an_empty_final_response_is_sent_on_request(wants_final: bool) -> None:
    scene = Scene()
    scene.send("d", "i", wants_final=wants_final)
    scene.end()
    scene.jobs[0].end()

    finals = [one.infer_response.parameters["triton_final_response"].bool_param for one in scene.written]
    assert finals == [True] * wants_final
    assert all(not one.infer_response.outputs for one in scene.written)
    assert scene.status == "OK"


def test_errors_are_messages_in_their_place() -> None:
    scene = Scene()
    scene.send("m", "a")
    scene.send("nope", "b")
    scene.send("m", "c")
    scene.end()
    scene.jobs[1].answer(error=InvalidArgument("the model says no"))
    scene.jobs[0].answer(b"y")

    assert scene.ids() == ["a", "b", "c"]
    texts = [one.error_message for one in scene.written]
    assert texts == ["", "Request for unknown model: 'nope' is not found", "the model says no"]
    assert [one.infer_response.model_name for one in scene.written] == ["m", "", "m"]
    assert scene.counted == [("nope", "", 404), ("m", "", 400)]


def test_a_refused_request_names_no_model() -> None:
    scene = Scene(refusal=InvalidArgument("the queue is full"))
    scene.send("m", "a")
    scene.end()

    (one,) = scene.written
    assert (one.error_message, one.infer_response.model_name, one.infer_response.id) == ("the queue is full", "", "a")
    assert scene.counted == [("m", "", 400)]
    assert scene.status == "OK"


def test_a_strict_stream_ends_with_its_first_error_and_cancels_the_rest() -> None:
    scene = Scene(strict=True)
    scene.send("m", "a")
    scene.send("m", "b")
    scene.send("nope", "c")
    assert not scene.status, "a request that was refused does not end it"
    scene.jobs[1].answer(error=Unavailable("no"))

    assert isinstance(scene.status, Unavailable)
    assert scene.jobs[0].cancelled


def test_bytes_that_are_no_message_end_the_stream() -> None:
    scene = Scene()
    scene.stream.on_message(Message(b"\xff"))

    assert isinstance(scene.status, EdgeServeError)
    assert scene.status.message == "Unable to parse request"


def test_requests_of_a_disconnected_client_are_cancelled() -> None:
    scene = Scene()
    scene.send("m", "a")
    scene.send("d", "b")
    scene.stream.on_gone()

    assert [job.cancelled for job in scene.jobs] == [True, True]
    scene.jobs[0].answer(b"late")  # and what still comes is thrown away
    assert scene.written == []


def test_large_outputs_are_sent_from_where_they_lie_and_given_back_then() -> None:
    scene = Scene()
    lease = FakeLease()
    scene.send("m", "a")
    scene.send("m", "b")
    scene.jobs[1].answer(bytes(20_000), lease=lease)
    assert (lease.released, scene.written) == (0, [])  # it waits for its turn
    scene.stream.on_gone()

    assert lease.released == 1


def test_senders_wait_while_the_client_does_not_read_and_go_on_when_it_does() -> None:
    scene = Scene(takes=False)
    scene.send("d", "a")
    (job,) = scene.jobs
    for _ in range(3):
        job.answer(bytes(backlog.PAUSE_ABOVE // 2), final=False)
    assert job.holds == [True]
    scene.read()
    assert job.holds == [True, False]
    job.end()
    scene.end()

    assert len(scene.written) == 3
    assert scene.status == "OK"


def test_a_stream_whose_senders_cannot_wait_ends_when_too_much_is_unread() -> None:
    scene = Scene(can_wait=False, takes=False)
    scene.send("d", "a")
    for _ in range(18):
        scene.jobs[0].answer(bytes(1024 * 1024), final=False)

    assert isinstance(scene.status, StreamOverrun)
    assert "left more than 16777216 bytes of it unread" in scene.status.message
    assert scene.jobs[0].cancelled
    assert scene.dropped


def test_a_sender_that_was_paused_beside_one_that_cannot_wait_is_resumed() -> None:
    scene = Scene(takes=False)
    for name in "ab":
        scene.send("d", name)
    paused, ensemble = scene.jobs
    ensemble.can_wait = False
    for _ in range(2):
        paused.answer(bytes(backlog.PAUSE_ABOVE), final=False)
    assert paused.holds[-1]
    scene.read()
    assert not paused.holds[-1]


def test_a_stream_ends_when_its_paused_sender_becomes_one_that_cannot_wait() -> None:
    """A request that waits for a swap becomes one of an ensemble."""
    scene = Scene(takes=False)
    scene.send("d", "a")
    (job,) = scene.jobs
    job.answer(bytes(2 * backlog.PAUSE_ABOVE), final=False)
    assert job.holds == [True]
    job.can_wait = False
    job.answer(bytes(backlog.MAX_UNREAD), final=False)
    assert isinstance(scene.status, StreamOverrun)


def test_no_more_is_read_from_a_client_with_many_requests_under_way() -> None:
    scene = Scene()
    names = [str(index) for index in range(PAUSE_REQUESTS + 10)]
    for name in names:
        scene.send("m", name)
    scene.end()
    assert len(scene.jobs) == PAUSE_REQUESTS
    assert scene.paused
    for job in scene.jobs:  # grows while it is walked
        job.answer(b"y")

    assert scene.ids() == names
    assert scene.status == "OK"


def test_a_client_may_send_on_once_it_has_read() -> None:
    """The client sends its next message only after that answer."""
    scene = Scene(takes=False, at_once=bytes(2 * backlog.PAUSE_ABOVE))
    scene.send("m", "a")
    assert scene.paused
    scene.read()
    assert not scene.paused


def test_a_client_may_send_on_once_one_of_many_is_answered() -> None:
    scene = Scene()
    for index in range(PAUSE_REQUESTS):
        assert not scene.paused
        scene.send("m", str(index))
    assert scene.paused
    scene.jobs[0].answer(b"y")
    assert not scene.paused


def test_a_client_with_many_errors_behind_an_open_request_may_not_send_on() -> None:
    """Their messages wait for the answer of that request."""
    scene = Scene()
    scene.send("m", "a")
    for _ in range(PAUSE_REQUESTS - 1):
        assert not scene.paused
        scene.send("nope", "")
    assert scene.paused
    scene.jobs[0].answer(b"y")
    assert not scene.paused
    assert len(scene.written) == PAUSE_REQUESTS


def test_many_requests_that_waited_are_refused_at_once() -> None:
    """One after the other, whatever their number: a refusal reads on, as every answer does."""
    scene = Scene()
    names = [str(index) for index in range(PAUSE_REQUESTS + 2000)]
    for name in names:
        scene.send("m", name)
    scene.end()
    scene.refusal = InvalidArgument("no")
    for job in scene.jobs[:PAUSE_REQUESTS]:
        job.answer(b"y")

    assert scene.ids() == names
    assert scene.status == "OK"


def test_requests_of_a_stream_count_one_by_one() -> None:
    """The call itself is the first of them."""
    scene = Scene(in_flight=InFlight(3))
    scene.in_flight.now = 1
    for name in "abcd":
        scene.send("m", name)
    assert (scene.in_flight.now, scene.in_flight.refused, len(scene.jobs)) == (3, 1, 3)
    scene.jobs[0].answer(b"y")
    scene.send("m", "e")
    assert (scene.in_flight.now, len(scene.jobs)) == (3, 4)
    for job in scene.jobs[1:]:
        job.answer(b"y")

    assert scene.in_flight.now == 1
    assert scene.ids() == ["a", "b", "c", "d", "e"]
    assert [one.error_message[:20] for one in scene.written if one.error_message] == ["3 requests wait for "]


def test_excess_messages_of_a_disconnected_client_are_released() -> None:
    scene = Scene()
    for index in range(PAUSE_REQUESTS):
        scene.send("m", str(index))
    lease = FakeLease()
    scene.stream.on_message(Message(b"", lease, 0))
    scene.stream.on_gone()

    assert lease.released == 1
