"""Traces of requests at the gRPC door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edge_serve.errors import Internal
from edge_serve.messages.settings import TraceSettings
from edge_serve.messages.trace import Arrival, Trace
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from tests.observe.tracing.recorder import Collected, Steps
from tests.transport.grpc_scene import Caller, GrpcFakeService, door, infer_request
from tests.transport.http_scene import until
from tests.transport.traced_service import TracedService

STARTED, ENDED = ["REQUEST_START", "QUEUE_START"], ["REQUEST_END"]
READ = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
SENT = ["INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]


class Traced(TracedService, GrpcFakeService):
    """Over gRPC."""

    def marks(self, number: int) -> dict[str, int]:
        return dict(self.traces[number].timestamps or ())


def with_traced(tmp_path: Path, test: Callable[[Traced, Caller], Awaitable[None]]) -> None:
    service = Traced(Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps()))

    async def main() -> None:
        async with door(service) as (server, call):
            await call("ServerLive", pb.ServerLiveRequest())
            server.trace(service.tracing)
            await asyncio.wait_for(test(service, call), 20)

    asyncio.run(main())
    service.tracing.close()


def test_calls_are_traced_and_wait_since_the_one_before(tmp_path: Path) -> None:
    async def story(service: Traced, call: Caller) -> None:
        for _ in range(2):
            await call("ModelInfer", infer_request())
        first, second = service.marks(0), service.marks(1)
        assert [list(first), list(second)] == [[*STARTED, *ENDED, *READ, *SENT]] * 2
        assert first["GRPC_WAITREAD_END"] == second["GRPC_WAITREAD_START"]
        assert all(trace.closed for trace in service.traces)

    with_traced(tmp_path, story)


def test_an_error_is_sent_too(tmp_path: Path) -> None:
    async def story(service: Traced, call: Caller) -> None:
        service.error = Internal("no")
        assert await call.refusal("ModelInfer", infer_request()) == ("INTERNAL", "no")
        assert list(service.marks(0)) == [*STARTED, *ENDED, *READ, *SENT]
        assert service.traces[0].closed

    with_traced(tmp_path, story)


def test_a_call_that_is_given_up_ends_with_the_models_last_word(tmp_path: Path) -> None:
    async def story(service: Traced, call: Caller) -> None:
        service.later = True
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call("ModelInfer", infer_request()), 0.05)
        await until(lambda: service.ticket.cancelled)
        assert not service.traces[0].closed
        service.waiting.pop()()
        assert service.traces[0].closed

    with_traced(tmp_path, story)


def test_a_refused_call_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story(service: Traced, call: Caller) -> None:
        assert (await call.refusal("ModelInfer", infer_request("unknown")))[0] != "OK"
        assert service.traces == []

    with_traced(tmp_path, story)


def test_each_request_of_a_stream_is_traced(tmp_path: Path) -> None:
    async def story(service: Traced, call: Caller) -> None:
        stream = call.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        for _ in range(2):
            await stream.write(infer_request().SerializeToString())
            await stream.read()
        await stream.done_writing()
        assert [list(service.marks(number)) for number in (0, 1)] == [[*STARTED, *ENDED, *READ, *SENT]] * 2
        assert service.marks(0)["GRPC_WAITREAD_END"] == service.marks(1)["GRPC_WAITREAD_START"]
        assert all(trace.closed for trace in service.traces)

    with_traced(tmp_path, story)


def test_a_trace_stays_open_until_the_response_is_sent() -> None:
    arrival, freed = Arrival((), late=True), list[bool]()
    trace = Trace(1, Collected(), timestamps=True, tensors=False)
    arrival.traced(trace)
    trace.release()
    sent = arrival.sending(lambda: freed.append(True))
    assert not trace.closed
    sent()

    assert (freed, trace.closed) == ([True], True)
    assert [name for name, _ in trace.timestamps or ()] == ["GRPC_SEND_START", "GRPC_SEND_END"]
