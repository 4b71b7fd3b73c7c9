"""Connections with hostile clients, and the timeouts of the door."""

from __future__ import annotations

import asyncio
import itertools
import struct

import pytest

from edge_serve.errors import NotFound
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import DATA, END_STREAM, PING, PREFACE, SETTINGS, Code, Http2Setting
from edge_serve.protocol.http2.heads import encode_literal
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc.door_state import GrpcLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings
from edge_serve.transport.grpc.messages import MessageReader
from edge_serve.transport.grpc_service.standard import REFLECTION
from tests.protocol.http2_scene import data
from tests.stories import played
from tests.transport.grpc_raw import Raw, block, message, raw_scene
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService, infer_request
from tests.transport.http_scene import until
from tests.transport.v2_scene import FakeLease

GOOD = infer_request(request_id="i").SerializeToString()


@played
async def test_a_call_by_hand() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        assert await raw.status(1) == (0, "")
        raw.call(3, b"\xff")
        assert await raw.status(3) == (13, "Unable to parse request")


@pytest.mark.parametrize("step", [1, 13])
@played
async def test_a_call_in_small_pieces(step: int) -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(greet=False)
        raw.send(PREFACE, frames.build_settings(()))
        raw.begin(1, block())
        whole = message(GOOD)
        for at in range(0, len(whole), step):
            raw.send(frames.build_frame(frames.DATA, 0, 1, whole[at : at + step]))
        raw.send(frames.build_frame(frames.DATA, frames.END_STREAM, 1))
        assert await raw.status(1) == (0, "")


@played
async def test_a_client_of_another_protocol_gets_an_error() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(greet=False)
        raw.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100_000))
        last, code, text = await raw.goaway()
        assert (last, code) == (0, Code.PROTOCOL_ERROR)
        assert "this port speaks gRPC" in text
        raw.writer.write_eof()
        assert await raw.ended()


@played
async def test_a_client_that_leaves_cancels_what_it_asked_for() -> None:
    lease = FakeLease()
    async with raw_scene(GrpcFakeService(later=True, response_lease=lease)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        raw.call(3, GOOD)
        await until(lambda: len(scene.service.waiting) == 2)
        raw.writer.close()
        await until(lambda: scene.service.ticket.cancelled == 2)
        for answer in scene.service.waiting:
            answer()
    assert lease.released == 2


@played
async def test_a_reset_cancels_one_call() -> None:
    async with raw_scene(GrpcFakeService(later=True)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        raw.call(3, GOOD)
        raw.send(frames.build_rst_stream(1, Code.CANCEL))
        await until(lambda: scene.service.ticket.cancelled == 1)
        for answer in scene.service.waiting:
            answer()
        assert await raw.status(3) == (0, "")


@played
async def test_answers_of_one_turn_arrive_in_any_order() -> None:
    async with raw_scene(GrpcFakeService(later=True)) as scene:
        raw = await scene.connect()
        for index in range(50):
            raw.call(2 * index + 1, GOOD)
        await until(lambda: len(scene.service.waiting) == 50)
        for answer in reversed(scene.service.waiting):
            answer()
        assert [await raw.status(number) for number in (99, 1)] == [(0, ""), (0, "")]


@played
async def test_memory_of_an_answer_is_given_back_when_the_kernel_has_taken_it() -> None:
    values = bytes(8_000_000)
    lease = FakeLease()
    async with raw_scene(GrpcFakeService(response_lease=lease)) as scene:
        raw = await scene.connect(limit=1024)
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 2**31 - 1)]))
        raw.send(frames.build_window_update(0, 2**30))
        raw.call(1, b"")
        raw.begin(3, block())
        whole = message(infer_request(values=values).SerializeToString())
        raw.send(frames.build_window_update(0, 1))
        raw.data(3, whole[: 1 << 20])
        sent = 1 << 20
        while sent < len(whole):  # as far as the window allows
            kind, _, number, payload = await raw.frame()
            if kind == frames.WINDOW_UPDATE and number == 3:
                grown = struct.unpack(">I", payload)[0]
                raw.data(3, whole[sent : sent + grown], end=sent + grown >= len(whole))
                sent += grown
        await until(lambda: len(scene.service.requests) == 1)
        await asyncio.sleep(0.05)
        assert lease.released == 0  # the client has not read all of it
        assert await raw.status(3) == (0, "")
        await until(lambda: lease.released == 1)


@played
async def test_without_memory_for_what_comes_the_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(self: MessageReader, size: int) -> memoryview | None:
        raise MemoryError

    monkeypatch.setattr(MessageReader, "place", place)

    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.begin(1, block())
        whole = message(infer_request("unknown", bytes(500_000)).SerializeToString())
        raw.send(frames.build_frame(DATA, END_STREAM, 1, whole))
        assert await raw.ended()


@played
async def test_a_client_that_greets_and_says_nothing_may_stay() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        while (await raw.frame())[0] != SETTINGS:
            pass
        await raw.frame()
        await raw.frame()
        scene.sweep_after(5000)
        raw.call(1, GOOD)
        assert await raw.status(1) == (0, "")


@played
async def test_a_client_that_does_not_greet_may_not() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(greet=False)
        await raw.frame()
        scene.sweep_after(20)
        assert await raw.ended()


@played
async def test_a_message_that_does_not_come_ends_its_call() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.begin(1, block())
        raw.data(1, message(GOOD)[:30])
        raw.begin(3, block())
        raw.begin(5, block(INFERENCE + "ModelStreamInfer"))  # may say nothing for as long as it likes
        raw.call(7, b"", INFERENCE + "ServerLive")
        assert await raw.status(7) == (0, "")
        scene.sweep_after(30)
        found = {await raw.status(1), await raw.status(3)}
        assert found == {(4, "the request was not complete after a time without progress")}
        raw.data(5, message(GOOD)[:30])
        raw.call(9, b"", INFERENCE + "ServerLive")
        assert await raw.status(9) == (0, "")
        scene.sweep_after(30)
        assert (await raw.status(5))[0] == 4


@played
async def test_an_answer_that_is_not_read_ends_its_call() -> None:
    lease = FakeLease()
    async with raw_scene(GrpcFakeService(response_lease=lease)) as scene:
        raw = await scene.connect()
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 10)]))
        raw.call(1, GOOD)
        await until(lambda: len(scene.service.requests) == 1)
        scene.sweep_after(60)
        assert await raw.trailers(1) == {"reset": "CANCEL"}
    assert lease.released == 1


@played
async def test_a_stream_that_has_ended_waits_for_its_client_as_long_as_a_call() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 0)]))
        for number, end in ((1, False), (3, True)):
            raw.begin(number, block(INFERENCE + "ModelStreamInfer"))
            raw.data(number, message(GOOD), end=end)
        await until(lambda: len(scene.service.requests) == 2)
        scene.sweep_after(60)
        assert await raw.trailers(3) == {"reset": "CANCEL"}
        raw.send(frames.build_window_update(1, 1000), data(1, b"", end=True))
        assert await raw.status(1) == (0, "")


@pytest.mark.parametrize("trickles", [False, True])
@played
async def test_a_stream_that_is_not_read_does_not_keep_tensor_memory(trickles: bool) -> None:
    """Nor one whose client opens the window by a few bytes at a time, while others lack memory."""
    values = bytes(20_000)
    lacks = itertools.count(1)
    lease = FakeLease()
    sharing = SharedLimits(memory=BodyMemory(shortages=lambda: next(lacks)))
    async with raw_scene(GrpcFakeService(response_lease=lease), sharing=sharing) as scene:
        raw = await scene.connect()
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 0)]))
        raw.begin(1, block(INFERENCE + "ModelStreamInfer"))
        raw.data(1, message(infer_request(values=values).SerializeToString()))
        await until(lambda: len(scene.service.requests) == 1)
        for number in (3, 5):
            scene.sweep_after(29)
            raw.send(frames.build_window_update(1, 100) if trickles else b"")
            raw.call(number, b"", INFERENCE + "ServerLive")
            raw.send(frames.build_window_update(number, 100))
            assert await raw.status(number) == (0, "")
        scene.sweep_after(2)
        assert await raw.trailers(1) == {"reset": "CANCEL"}
        assert lease.released == 1


@pytest.mark.parametrize("afterwards", [b"", message(GOOD), message(GOOD) * 2], ids=["nothing", "one", "two"])
@played
async def test_data_sent_after_the_end_of_a_call_changes_nothing(afterwards: bytes) -> None:
    """The call has failed, and its responses wait for the client's window; the client does not know yet."""
    service = GrpcFakeService(later=True)

    async with raw_scene(service) as scene:
        raw = await scene.connect()
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 0)]))
        raw.begin(1, block(INFERENCE + "ModelStreamInfer") + encode_literal(b"triton_grpc_error", b"true"))
        raw.data(1, message(GOOD) * 2)
        await until(lambda: len(service.waiting) == 2)
        service.waiting[0]()
        service.error = NotFound("unknown")
        service.waiting[1]()
        raw.call(3, b"", INFERENCE + "ServerLive")
        raw.send(frames.build_window_update(3, 100))
        assert await raw.status(3) == (0, "")
        raw.send(frames.build_frame(DATA, END_STREAM, 1, afterwards), frames.build_window_update(1, 10_000))
        status, text = await raw.status(1)
        assert (status, "unknown" in text) == (5, True), text
        raw.call(5, b"", INFERENCE + "ServerLive")
        raw.send(frames.build_window_update(5, 100))
        assert await raw.status(5) == (0, "")


@played
async def test_a_client_that_asks_too_often_is_sent_away_as_by_grpc() -> None:
    async with raw_scene(GrpcFakeService(later=True)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        await until(lambda: len(scene.service.requests) == 1)
        for _ in range(4):
            raw.send(frames.build_frame(PING, 0, 0, bytes(8)))
        _, code, text = await raw.goaway()
        assert (code, text) == (Code.ENHANCE_YOUR_CALM, "too_many_pings")
        await until(lambda: scene.service.ticket.cancelled == 1)


@played
async def test_a_client_may_ping_between_the_pieces_of_its_request() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.begin(1, block())
        for byte in message(GOOD):
            raw.send(data(1, bytes((byte,))), frames.build_frame(PING, 0, 0, bytes(8)))
        raw.send(data(1, b"", end=True))
        assert await raw.status(1) == (0, "")


@played
async def test_a_client_that_reads_slowly_is_not_closed_by_the_keepalive() -> None:
    """While it reads, the server does not: its pongs stay in the kernel."""
    large = message(infer_request(values=bytes(1_000_000)).SerializeToString())
    calls = range(1, 31, 2)
    settings = KeepaliveSettings(time=10, timeout=5)
    async with raw_scene(GrpcFakeService(later=True), keepalive=settings, limits=GrpcLimits(stalled=1)) as scene:
        raw = await scene.connect()
        raw.send(
            frames.build_settings(
                [(Http2Setting.INITIAL_WINDOW_SIZE, 2**31 - 1), (Http2Setting.MAX_FRAME_SIZE, 2**24 - 1)]
            ),
            frames.build_window_update(0, 2**30),
        )
        for number in calls:
            raw.begin(number, block())
            raw.data(number, large, end=True)
        await until(lambda: len(scene.service.waiting) == len(calls))
        for answer in scene.service.waiting:
            answer()
        await asyncio.sleep(0.05)  # the kernel takes as much as it can
        for seconds in (10, 6, 10, 6):
            scene.sweep_after(seconds)
        assert [await raw.status(number) for number in calls] == [(0, "")] * len(calls)


@played
async def test_a_silent_client_is_asked_and_closed() -> None:
    async with raw_scene(GrpcFakeService(later=True), keepalive=KeepaliveSettings(time=10, timeout=5)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        await until(lambda: len(scene.service.waiting) == 1)
        scene.sweep_after(10)
        kinds = [await raw.frame() for _ in range(4)]
        assert kinds[-1] == (PING, 0, 0, b"edgeping")
        raw.send(frames.build_frame(PING, frames.ACK, 0, b"edgeping"))
        raw.call(3, GOOD)
        await until(lambda: len(scene.service.waiting) == 2)
        scene.sweep_after(9)
        scene.sweep_after(1)
        assert await raw.frame() == (PING, 0, 0, b"edgeping")
        scene.sweep_after(5)
        assert await raw.ended()
        assert scene.service.ticket.cancelled == 2


@played
async def test_an_old_connection_ends_when_its_calls_have() -> None:
    async with raw_scene(GrpcFakeService(later=True), keepalive=KeepaliveSettings(max_age=80)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        await until(lambda: len(scene.service.waiting) == 1)
        scene.sweep_after(100)
        assert (await raw.goaway())[:2] == (2**31 - 1, Code.NO_ERROR)
        assert await raw.frame() == (PING, 0, 0, b"edgebye.")
        raw.call(3, GOOD)  # was on its way
        raw.send(frames.build_frame(PING, frames.ACK, 0, b"edgebye."))
        assert (await raw.goaway())[:2] == (3, Code.NO_ERROR)
        for answer in scene.service.waiting:
            answer()
        assert [await raw.status(number) for number in (1, 3)] == [(0, ""), (0, "")]
        assert await raw.reader.read() == b""


@played
async def test_a_client_that_does_not_hear_that_it_should_leave_is_left_behind() -> None:
    async with raw_scene(keepalive=KeepaliveSettings(max_age=80)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        assert await raw.status(1) == (0, "")
        scene.sweep_after(100)
        assert (await raw.goaway())[0] == 2**31 - 1
        scene.sweep_after(1)
        assert (await raw.goaway())[0] == 1
        assert await raw.reader.read() == b""


@pytest.mark.parametrize("how", ["drain", "retire"])
@played
async def test_conversations_end_when_the_server_stops(how: str) -> None:
    """Also those that were on their way, after the messages that their client sent before it read GOAWAY."""
    stream, watch = INFERENCE + "ModelStreamInfer", "/grpc.health.v1.Health/Watch"
    reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with raw_scene() as scene:
        raw = await scene.connect()
        for number, path in ((1, stream), (3, watch), (5, reflection)):
            raw.begin(number, block(path))
        await until(lambda: any(len(one._table.open) == 3 for one in scene.server.connections))
        stopping = asyncio.create_task(scene.server.drain(20.0) if how == "drain" else scene.server.retire(20.0))
        assert (await raw.goaway())[0] == 2**31 - 1
        raw.begin(7, block(stream))
        raw.data(7, message(GOOD))
        raw.begin(9, block(watch))
        raw.data(9, message(b""))
        raw.begin(11, block(reflection))
        raw.send(frames.build_frame(PING, frames.ACK, 0, b"edgebye."))
        assert (await raw.goaway())[0] == 11
        shutting_down = (14, "GRPC server is shutting down and has stopped accepting new requests.")
        assert [await raw.status(number) for number in (1, 3, 5)] == [shutting_down, (0, ""), (0, "")]
        assert [await raw.status(number) for number in (7, 9, 11)] == [shutting_down, (0, ""), (0, "")]
        assert await raw.ended()
        raw.writer.close()
        assert not await stopping
        assert [request.id for request in scene.service.requests] == ["i"]


@played
async def test_the_age_of_a_connection_does_not_end_its_conversations() -> None:
    async with raw_scene(keepalive=KeepaliveSettings(max_age=80)) as scene:
        raw = await scene.connect()
        raw.begin(1, block(INFERENCE + "ModelStreamInfer"))
        await until(lambda: any(one._table.open for one in scene.server.connections))
        scene.sweep_after(100)
        raw.send(frames.build_frame(PING, frames.ACK, 0, b"edgebye."))
        assert [(await raw.goaway())[0] for _ in range(2)] == [2**31 - 1, 1]
        raw.data(1, message(GOOD))
        await until(lambda: len(scene.service.requests) == 1)
        draining = asyncio.create_task(scene.server.drain(20.0))
        assert (await raw.status(1))[0] == 14
        raw.writer.close()
        assert await draining == 0


@played
async def test_no_more_connections_than_the_limit() -> None:
    async with raw_scene(limits=GrpcLimits(connections=1)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD)
        assert await raw.status(1) == (0, "")
        raw.begin(3, block(INFERENCE + "ModelInfer", "POST"))  # a call without its message: it is under way
        raw.call(5, GOOD)
        assert await raw.status(5) == (0, "")
        other = await scene.connect()
        _, code, text = await other.goaway()
        assert (code, text) == (Code.ENHANCE_YOUR_CALM, "the server has 1 connections open, which is its limit")
        raw.data(3, message(GOOD), end=True)
        assert await raw.status(3) == (0, "")
        again = await scene.connect()  # takes the place of the one that is idle now
        again.call(1, GOOD)
        assert await again.status(1) == (0, "")
        server = scene.server
        assert (len(server.connections), server.counters.connections_refused) == (1, 1)
        assert server.counters.connections_evicted == 1


@played
async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(limit=1024)
        # a metadata reply of a few hundred bytes, outside of all windows because it is an error
        path = INFERENCE + "ModelReady" + "x" * 60
        head = block(path)
        written = 0
        for index in range(400_000):
            raw.begin(2 * index + 1, head, end=True)
            written += 9 + len(head)
            if index % 100 == 0:
                try:
                    await asyncio.wait_for(raw.writer.drain(), 0.5)
                except asyncio.TimeoutError:
                    break
        else:
            raise AssertionError("all of it was read")


async def _one(raw: Raw, head: bytes, *payload: bytes, end: bool = True) -> dict[str, str]:
    raw.begin(1, head, end=not payload and end)
    for index, piece in enumerate(payload):
        raw.data(1, piece, end=end and index == len(payload) - 1)
    return await raw.trailers(1)


HEADS = {
    "no content type": (block(content_type="text/plain"), {":status": "415"}),
    "grpc-web": (block(content_type="application/grpc-web"), {":status": "415"}),
    "GET": (block(method="GET"), {":status": "405"}),
    "large": (block(much="x" * 17_000), {":status": "431"}),
    "unknown": (block("/inference.GRPCInferenceService/Nope"), {"grpc-status": "12"}),
    "timeout": (block(grpc_timeout="5"), {"grpc-status": "3"}),
    "encoding": (block(grpc_encoding="snappy"), {"grpc-status": "12"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
@played
async def test_heads_that_are_refused(name: str) -> None:
    head, expected = HEADS[name]
    async with raw_scene() as scene:
        found = await _one(await scene.connect(), head, message(GOOD))
        assert expected.items() <= found.items()


@played
async def test_a_timeout_in_the_past_is_over_at_once() -> None:
    async with raw_scene(GrpcFakeService(later=True)) as scene:
        raw = await scene.connect()
        raw.call(1, GOOD, grpc_timeout="1n")
        assert await raw.status(1) == (4, "Deadline Exceeded")


MESSAGES = {
    "none": ((), 13, "none came"),
    "two": ((message(GOOD), message(GOOD)), 13, "more than one came"),
    "cut": ((message(GOOD)[:-1],), 13, "ends within a message"),
    "prefix cut": ((b"\0\0\0",), 13, "ends within a message"),
    "flag": ((b"\x02" + message(GOOD)[1:],), 13, "flag 2"),
    "no encoding": ((message(GOOD, 1),), 13, "no grpc-encoding"),
    "too large": ((struct.pack(">BI", 0, 1_000_001) + b"x",), 8, "larger than max (1000001 vs. 1000000)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
@played
async def test_messages_that_are_refused(name: str) -> None:
    payload, code, text = MESSAGES[name]
    async with raw_scene(settings=GrpcSettings(max_message=1_000_000)) as scene:
        found = await _one(await scene.connect(), block(), *payload)
        assert int(found["grpc-status"]) == code
        assert text in found["grpc-message"]


@pytest.mark.parametrize("path", [*REFLECTION, INFERENCE + "ServerMetadata", INFERENCE + "RepositoryIndex"])
@played
async def test_calls_without_tensors_have_small_messages(path: str) -> None:
    async with raw_scene() as scene:
        found = await _one(await scene.connect(), block(path), struct.pack(">BI", 0, SMALL_BYTES + 1) + b"x")
        assert (found["grpc-status"], "vs. 262144" in found["grpc-message"]) == ("8", True)


@played
async def test_a_load_may_bring_large_files() -> None:
    load = pb.RepositoryModelLoadRequest(model_name="m")
    load.parameters["file:1/model.onnx"].bytes_param = bytes(SMALL_BYTES)
    async with raw_scene() as scene:
        found = await _one(
            await scene.connect(), block(INFERENCE + "RepositoryModelLoad"), message(load.SerializeToString())
        )
        assert found["grpc-status"] == "0"


@played
async def test_error_texts_are_quoted() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.call(1, pb.ModelInferRequest(model_name="n\u00e4h%\n").SerializeToString())
        assert await raw.status(1) == (5, "Request for unknown model: 'n%C3%A4h%25%0A' is not found")
