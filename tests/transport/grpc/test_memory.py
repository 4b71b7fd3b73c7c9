"""Large messages over gRPC, when there is not memory for all of them; and calls, when there are too many."""

from __future__ import annotations

import asyncio
import errno

import grpc
import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import InFlight, SharedLimits
from edge_serve.transport.grpc.door_state import GrpcLimits
from edge_serve.transport.grpc.messages import MessageReader
from tests.stories import played
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService, door, infer_request
from tests.transport.http_scene import StandingClock, until

MIB = 1 << 20
LARGE = infer_request(values=bytes(3 * MIB))
SIZE = LARGE.ByteSize()


def nothing_waits(memory: BodyMemory) -> bool:
    """Return whether a body that waits may send early all that such bodies may: no other one does."""
    holder = memory.claim(memory.limit, lambda: None)
    waiting = memory.claim(1, lambda: None, early=max(memory.limit // 4, 8 * MIB))
    waiting.release()
    holder.release()
    return memory.used == memory.waiting == 0


@played
async def test_large_messages_take_turns() -> None:
    memory = BodyMemory(SIZE)
    # the service gives back the lease of a request when it answers it
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        service.later = True  # answers are held back
        calls = [asyncio.ensure_future(call("ModelInfer", LARGE)) for _ in range(4)]
        for number in range(4):
            await until(lambda: len(service.waiting) == number + 1)  # noqa: B023
            assert memory.used == SIZE
            await asyncio.sleep(0.05)
            assert len(service.requests) == number + 1  # the others are not there yet
            service.waiting[number]()
        await asyncio.gather(*calls)
        await until(lambda: memory.used == 0)
    assert nothing_waits(memory)


@played
async def test_a_message_that_waited_for_memory_is_complete() -> None:
    """A message that waited lies in its place as it was sent."""
    values = bytes(range(256)) * (8 * 1024)
    memory = BodyMemory(2 * MIB + 1000)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        service.later = True
        message = infer_request(values=values)
        first, second = (asyncio.ensure_future(call("ModelInfer", message)) for _ in range(2))
        await until(lambda: service.waiting)
        await asyncio.sleep(0.05)
        service.waiting[0]()
        await until(lambda: len(service.waiting) == 2)
        assert [bytes(request.inputs[0].data) == values for request in service.requests] == [True, True]
        service.waiting[1]()
        await asyncio.gather(first, second)


@played
async def test_larger_than_all_memory_is_refused_at_its_beginning() -> None:
    async with door(sharing=SharedLimits(memory=BodyMemory(MIB))) as (_, call):
        assert (await call.refusal("ModelInfer", LARGE))[0] == "RESOURCE_EXHAUSTED"


@played
async def test_waiting_calls_end_by_timeout_or_when_the_client_disconnects() -> None:
    memory = BodyMemory(SIZE)
    clock = StandingClock()
    service = GrpcFakeService()
    service.later = True
    limits = GrpcLimits(memory_wait=30)
    async with door(service, sharing=SharedLimits(memory=memory), limits=limits, clock=clock) as (server, call):
        holder = asyncio.ensure_future(call("ModelInfer", LARGE))
        await until(lambda: service.waiting)
        leaving = asyncio.ensure_future(call("ModelInfer", LARGE))
        await until(lambda: memory.waiting == 1)
        leaving.cancel()
        await until(lambda: memory.waiting == 0)
        late = asyncio.ensure_future(call.refusal("ModelInfer", LARGE))
        await until(lambda: memory.waiting == 1)
        server.sweep()
        clock.seconds += 31
        server.sweep()
        code, text = await late
        assert (code, "no memory for this body for 30 seconds" in text) == ("UNAVAILABLE", True)
        service.waiting[0]()
        await holder
        assert memory.used == 0
        assert nothing_waits(memory)


@played
async def test_a_message_that_the_machine_has_no_memory_for_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    memory = BodyMemory(10 * MIB)
    service = GrpcFakeService()
    service.later = True
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        other = asyncio.ensure_future(call("ModelInfer", infer_request()))
        await until(lambda: service.waiting)
        monkeypatch.setattr("edge_serve.transport.grpc.messages.pages", fail)
        refused = await call.refusal("ModelInfer", infer_request("none", bytes(2 * MIB)))
        assert refused == ("UNAVAILABLE", "there is no memory for this body now, try again later")
        assert (memory.used, memory.refused["evicted"]) == (0, 1)
        service.waiting[0]()
        await other


@played
async def test_a_message_that_fails_when_it_gets_its_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = BodyMemory(SIZE)
    service = GrpcFakeService()
    service.later = True
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        first = asyncio.ensure_future(call("ModelInfer", LARGE))
        await until(lambda: service.waiting)
        second = asyncio.ensure_future(call.refusal("ModelInfer", LARGE))
        await until(lambda: memory.waiting)
        monkeypatch.setattr(MessageReader, "_on_admitted", lambda self: 1 // 0)
        service.waiting[0]()  # releases the claim
        await first
        assert (await second)[0] == "INTERNAL"
        await until(lambda: memory.used == 0)


@played
async def test_messages_without_a_lease_are_counted_until_the_response() -> None:
    memory = BodyMemory(10 * MIB)
    message = infer_request("none", bytes(200_000))
    async with door(sharing=SharedLimits(memory=memory)) as (_, call):
        assert (await call.refusal("ModelInfer", message))[0] == "NOT_FOUND"
        assert (await call.refusal("ModelInfer", infer_request("none", bytes(2 * MIB))))[0] == "NOT_FOUND"
        await until(lambda: memory.used == 0)


@played
async def test_a_message_whose_client_leaves_while_a_thread_reads_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = BodyMemory(10 * MIB)
    begun, read = asyncio.Event(), asyncio.Event()

    async def prepare(*_: object) -> None:
        begun.set()
        await read.wait()

    monkeypatch.setattr("edge_serve.transport.grpc_service.infer.prepare", prepare)

    async with door(sharing=SharedLimits(memory=memory)) as (_, call):
        leaving = asyncio.ensure_future(call("ModelInfer", infer_request("none", bytes(200_000))))
        await begun.wait()
        assert memory.used > 200_000
        leaving.cancel()
        await call("ServerLive")  # on the same connection: the server knows
        read.set()
        await until(lambda: memory.used == 0)


@played
async def test_small_messages_count_as_what_they_are_inflated() -> None:
    """They are inflated at once, without a thread."""
    memory = BodyMemory(MIB)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        service.later = True
        message = infer_request(values=bytes(200_000))
        calls = [asyncio.ensure_future(call("ModelInfer", message, compression=grpc.Compression.Gzip))]
        await until(lambda: service.waiting)
        assert memory.used == message.ByteSize()
        many = [call.refusal("ModelInfer", message, compression=grpc.Compression.Gzip) for _ in range(6)]
        calls += map(asyncio.ensure_future, many)
        await until(lambda: len(service.waiting) == 5 and calls[5].done() and calls[6].done())
        assert {(await one)[0] for one in calls[5:]} == {"UNAVAILABLE"}
        for answer in service.waiting:
            answer()
        await until(lambda: memory.used == 0)


@played
async def test_small_and_middling_messages_do_not_wait_behind_large_ones() -> None:
    memory = BodyMemory(SIZE + MIB)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        service.later = True
        large = [asyncio.ensure_future(call("ModelInfer", LARGE)) for _ in range(2)]
        await until(lambda: memory.waiting == 1 and service.waiting)
        middling = asyncio.ensure_future(call("ModelInfer", infer_request(values=bytes(100_000))))
        small = asyncio.ensure_future(call("ModelInfer", infer_request()))
        await until(lambda: len(service.waiting) == 3)
        code, _ = await call.refusal("ModelInfer", infer_request(values=bytes(MIB - 1000)))
        assert code == "UNAVAILABLE"
        for answer in service.waiting:
            answer()
        await until(lambda: len(service.waiting) == 4)
        service.waiting[3]()
        await asyncio.gather(*large, middling, small)
    assert memory.used == 0


@played
async def test_too_many_calls() -> None:
    in_flight = InFlight(2)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(in_flight)) as (_, call):
        service.later = True
        calls = [asyncio.ensure_future(call("ModelInfer", infer_request())) for _ in range(2)]
        await until(lambda: len(service.waiting) == 2 and in_flight.now == 2)
        code, text = await call.refusal("ModelInfer", infer_request())
        assert (code, "2 requests wait for their answers" in text) == ("UNAVAILABLE", True)
        await call("ServerLive")
        for answer in service.waiting:
            answer()
        await asyncio.gather(*calls)
        await until(lambda: in_flight.now == 0)
    assert in_flight.now == 0


@played
async def test_too_many_calls_at_once() -> None:
    """In one read of the connection."""
    in_flight = InFlight(5)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(in_flight)) as (_, call):
        service.later = True
        calls = [asyncio.ensure_future(call("ModelInfer", infer_request())) for _ in range(40)]
        await until(lambda: in_flight.refused)
        await until(lambda: sum(one.done() for one in calls) == 35)
        assert len(service.waiting) == 5
        for answer in service.waiting:
            answer()
        await asyncio.gather(*calls, return_exceptions=True)
    assert in_flight.now == 0


@played
async def test_inflated_sizes_of_messages_count_as_memory() -> None:
    """Two that are small on the wire: there is memory for one of them at a time."""
    memory = BodyMemory(9 * MIB)
    service = GrpcFakeService()
    async with door(service, sharing=SharedLimits(memory=memory)) as (_, call):
        service.later = True
        large = infer_request(values=bytes(5 * MIB))
        first = asyncio.ensure_future(call("ModelInfer", large, compression=grpc.Compression.Gzip))
        await until(lambda: service.waiting)
        assert memory.used == large.ByteSize()
        code, _ = await call.refusal("ModelInfer", large, compression=grpc.Compression.Gzip)
        assert code == "UNAVAILABLE"
        bomb = infer_request(values=bytes(20 * MIB))
        code, _ = await call.refusal("ModelInfer", bomb, compression=grpc.Compression.Gzip)
        assert code == "RESOURCE_EXHAUSTED"
        service.error = InvalidArgument("no answer of 5 MiB for this client")
        service.waiting[0]()
        assert (await asyncio.gather(first, return_exceptions=True))[0]
        await until(lambda: memory.used == 0)


@played
async def test_an_idle_stream_claims_no_memory_for_messages_that_were_answered() -> None:
    """Messages that lie in ordinary memory: with typed contents, compressed, or for an unknown model."""
    memory = BodyMemory(4 * MIB)
    async with door(sharing=SharedLimits(memory=memory)) as (_, call):
        stream = call.channel.stream_stream(INFERENCE + "ModelStreamInfer")()
        await stream.write(infer_request("none", bytes(3 * MIB)).SerializeToString())
        assert b"not found" in await stream.read()
        assert memory.used == 0  # the stream is still open
        await call("ModelInfer", LARGE)
        await stream.done_writing()
