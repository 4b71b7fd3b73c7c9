"""Messages that are large, compressed, or both: where they are put, and what becomes of the memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import threading
import zlib
from functools import partial
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from edge_serve.aio.memo import Memo
from edge_serve.errors import Unavailable
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import Http2Setting
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc.deflater import SMALL, Deflater
from edge_serve.transport.grpc.messages import MessageReader
from tests.stories import played
from tests.transport.grpc_raw import block, message, raw_scene
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService, door, infer_request
from tests.transport.http_scene import until
from tests.transport.v2_scene import DECOUPLED, FakeLease, FakeServed

STREAM = INFERENCE + "ModelStreamInfer"
LARGE = bytes(range(256)) * 12_000


@played
async def test_a_large_message_lies_aligned_in_tensor_memory() -> None:
    service = GrpcFakeService()
    async with door(service) as (_, call):
        for name in ("", "i" * 17):
            reply = await call("ModelInfer", infer_request(values=LARGE, request_id=name), pb.ModelInferResponse)
            assert reply.raw_output_contents[0] == LARGE
    for request, lease in zip(service.requests, service.leases, strict=True):
        (tensor,) = request.inputs
        start = tensor.offset - lease.offset
        assert tensor.offset % 256 == 0
        assert bytes(lease.view[start : start + len(LARGE)]) == LARGE
        assert lease.released == 1


@played
async def test_a_message_of_a_stream_lies_there_too() -> None:
    service = GrpcFakeService()
    async with door(service) as (_, call):
        stream = call.channel.stream_stream(STREAM)()
        for values in (LARGE, b"\0\0\0\0", LARGE):
            await stream.write(infer_request(values=values).SerializeToString())
        await stream.done_writing()
        replies = [pb.ModelStreamInferResponse.FromString(data) async for data in stream]
        assert [len(one.infer_response.raw_output_contents[0]) for one in replies] == [len(LARGE), 4, len(LARGE)]
    assert [lease.released for lease in service.leases] == [1, 1]
    assert [request.inputs[0].offset >= 0 for request in service.requests] == [True, False, True]


class SlowMemoryService(GrpcFakeService):
    """Its tensor memory is ready when a test says so."""

    def lease(self, name: str, version: str, nbytes: int) -> FakeLease | None:
        lease = super().lease(name, version, nbytes)
        assert lease is not None, "the model has memory"
        lease.is_ready = False
        return lease

    def count_waiting(self) -> int:
        """Return how many messages wait for memory."""
        return sum(one.later is not None for one in self.leases)

    def get_ready(self) -> None:
        """Make the memory of the oldest message ready that waits for it."""
        lease = next(one for one in self.leases if one.later is not None)
        lease.is_ready, done, lease.later = True, lease.later, None
        assert done is not None, "it was looked for"
        done()


@played
async def test_a_message_is_complete_before_its_memory_is_ready() -> None:
    """The stream's window lets all of it arrive, together with messages behind it, and the end of the stream."""
    placed = message(infer_request(values=b"p" * 40_000).SerializeToString())
    small = message(infer_request(values=b"small!!!").SerializeToString())
    service = SlowMemoryService()
    async with raw_scene(service) as scene:
        raw = await scene.connect()
        raw.send(frames.build_window_update(0, 1 << 20))
        raw.begin(1, block(STREAM))
        raw.send(frames.build_window_update(1, 1 << 20))
        raw.data(1, placed + small[:100])  # the message and the bytes behind it in one piece, and in another
        raw.data(1, small[100:] + placed + small, end=True)
        raw.call(3, placed[5:])
        for waiting in (2, 2, 1):
            await until(lambda: service.count_waiting() == waiting)  # noqa: B023
            service.get_ready()
        assert await raw.status(3) == (0, "")
        assert await raw.status(1) == (0, "")
    assert [len(one.inputs[0].data) for one in service.requests] == [40_000, 8, 40_000, 40_000, 8]
    assert [lease.released for lease in service.leases] == [1, 1, 1]


@pytest.mark.parametrize(
    "request_",
    [
        infer_request("nope", values=LARGE),  # nobody has memory for it
        pb.ModelInferRequest(model_name="m", raw_input_contents=[LARGE] * 2),  # refused once it is read
        pb.ModelInferRequest(model_name="d", raw_input_contents=[LARGE]),
    ],
)
@played
async def test_a_large_message_that_is_refused_gives_its_memory_back(request_: pb.ModelInferRequest) -> None:
    service = GrpcFakeService()
    async with door(service) as (_, call):
        await call.refusal("ModelInfer", request_)
        await call("ModelInfer", infer_request())
    assert all(lease.released == 1 for lease in service.leases)


@played
async def test_without_memory_the_call_fails_and_the_connection_continues() -> None:
    service = GrpcFakeService(lease_error=Unavailable("no tensor memory"))
    async with door(service) as (_, call):
        assert await call.refusal("ModelInfer", infer_request(values=LARGE)) == ("UNAVAILABLE", "no tensor memory")
        await call("ModelInfer", infer_request())


@played
async def test_a_client_that_leaves_in_the_middle_gives_the_memory_back() -> None:
    service = GrpcFakeService()
    async with raw_scene(service) as scene:
        raw = await scene.connect()
        raw.begin(1, block())
        raw.data(1, message(infer_request(values=LARGE).SerializeToString())[:500_000])
        await until(lambda: service.leases)
        raw.writer.close()
        await until(lambda: service.leases[0].released)
    assert (service.leases[0].released, service.requests) == (1, [])


@played
async def test_a_request_that_was_decoded_in_a_thread_goes_to_the_version_that_serves_afterwards() -> None:
    class Swapping(GrpcFakeService):
        def lookup(self, name: str, version: str) -> FakeServed:
            served = super().lookup(name, version)
            return served if len(self.lookups) == 1 else FakeServed(DECOUPLED)

    service = Swapping()
    async with door(service) as (_, call):
        made = pb.ModelInferRequest(model_name="m")
        made.inputs.add(name="X", datatype="INT32", shape=[100_000]).contents.int_contents.extend([1 << 20] * 100_000)
        code, text = await call.refusal("ModelInfer", made)
        assert (code, "decoupled" in text) == ("UNIMPLEMENTED", True)
        assert service.lookups == ["m", "m"]


@played
async def test_typed_contents_come_in_ordinary_memory() -> None:
    service = GrpcFakeService()
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="X", datatype="INT32", shape=[50_000]).contents.int_contents.extend(range(50_000))
    async with door(service) as (_, call):
        reply = await call("ModelInfer", made, pb.ModelInferResponse)
        assert len(reply.raw_output_contents[0]) == 200_000
    assert service.leases == []


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("size", [4, 100_000, 3_000_000])
@played
async def test_compressed_requests_of_all_sizes(algorithm: grpc.Compression, size: int) -> None:
    async with door() as (_, call):
        request = infer_request(values=bytes(size))
        reply = await call("ModelInfer", request, pb.ModelInferResponse, compression=algorithm)
        assert len(reply.raw_output_contents[0]) == size


@pytest.mark.parametrize("level", ["low", "medium", "high"])
@played
async def test_compressed_answers_of_all_sizes(level: str) -> None:
    async with door(settings=GrpcSettings(compression_level=level)) as (_, call):
        for values in (bytes(4), LARGE[:40_000], LARGE):
            reply = await call("ModelInfer", infer_request(values=values), pb.ModelInferResponse)
            assert reply.raw_output_contents[0] == values
        stream = call.channel.stream_stream(STREAM)()
        await stream.write(infer_request(values=LARGE).SerializeToString())
        await stream.done_writing()
        (data,) = [data async for data in stream]
        assert pb.ModelStreamInferResponse.FromString(data).infer_response.raw_output_contents[0] == LARGE


@pytest.mark.parametrize("ending", ["done", "fault"])
@played
async def test_messages_of_a_stream_keep_their_order_while_a_codec_deflates_one(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop deflates nothing that is large; what is said last, comes last."""
    deflate, in_loop = grpc_wire.deflate, []

    def watched(message: bytes, encoding: str) -> tuple[int, bytes]:
        if threading.current_thread() is threading.main_thread():
            in_loop.append(len(message))
        return deflate(message, encoding)

    monkeypatch.setattr(grpc_wire, "deflate", watched)
    many = np.random.default_rng(1).integers(0, 9, 3_900_000, np.uint8).tobytes()  # slow for zlib
    sent = [LARGE, b"1234", many, b"5678"]
    async with door(settings=GrpcSettings(compression_level="low")) as (_, call):
        strict = (("triton_grpc_error", "true"),)
        stream = call.channel.stream_stream(STREAM)(metadata=strict)

        async def write() -> None:  # beside reading: who reads nothing is not read from
            for values in sent:
                await stream.write(infer_request(values=values).SerializeToString())
            if ending == "fault":
                await stream.write(b"\xff")
            await stream.done_writing()

        writing = asyncio.ensure_future(write())
        got = [pb.ModelStreamInferResponse.FromString(await stream.read())]
        assert (await call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)).live
        with contextlib.suppress(grpc.RpcError):  # of the ending that is one
            while (data := await stream.read()) is not grpc.aio.EOF:
                got.append(pb.ModelStreamInferResponse.FromString(data))
        await writing
        assert [one.infer_response.raw_output_contents[0] for one in got] == sent
        assert await stream.code() == (grpc.StatusCode.OK if ending == "done" else grpc.StatusCode.INTERNAL)
    assert max(in_loop, default=0) <= SMALL


@played
async def test_a_client_that_leaves_while_its_answers_are_deflated_holds_nothing() -> None:
    sent: list[int] = []
    taken: list[tuple[int, int]] = []
    released: list[str] = []

    def send(flag: int, message: bytes) -> int:
        sent.append(flag)
        return 0

    deflater = Deflater("gzip", send, lambda *ended: taken.append(ended), lambda: None)
    for name in ("first", "second"):
        assert deflater.write((LARGE,), len(LARGE), partial(released.append, name)) == len(LARGE) + 5
    await asyncio.sleep(0)
    deflater.discard()
    ended = asyncio.Event()
    deflater.finish(ended.set)
    await asyncio.wait_for(ended.wait(), 20)
    assert (sent, taken, released) == ([], [], ["first", "second"])


@pytest.mark.parametrize(("waiting", "ended"), [(0, 1), (100, 0)])
@played
async def test_a_deflated_message_is_taken_once(waiting: int, ended: int) -> None:
    """The stream takes it from the backlog when the client has read it; until then it only gets smaller."""

    taken: list[tuple[int, int]] = []
    deflater = Deflater("gzip", lambda flag, data: waiting, lambda *one: taken.append(one), lambda: None)
    size = deflater.write((LARGE,), len(LARGE), None)
    done = asyncio.Event()
    deflater.finish(done.set)
    await asyncio.wait_for(done.wait(), 20)
    assert taken == [(size - waiting, ended)]


@pytest.mark.parametrize("method", ["unary", "stream"])
@played
async def test_a_message_that_cannot_be_deflated_fails_its_call(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(message: bytes, encoding: str) -> tuple[int, bytes]:
        raise MemoryError

    monkeypatch.setattr(grpc_wire, "deflate", fail)
    async with door(settings=GrpcSettings(compression_level="low")) as (_, call):
        if method == "unary":
            code, text = await call.refusal("ModelInfer", infer_request(values=LARGE))
            assert (code, "its log says why" in text) == ("INTERNAL", True)
            return
        stream = call.channel.stream_stream(STREAM)()
        with contextlib.suppress(asyncio.InvalidStateError):  # the call may fail before the second message is written
            for _ in range(2):
                await stream.write(infer_request(values=LARGE).SerializeToString())
        assert await asyncio.wait_for(stream.code(), 20) == grpc.StatusCode.INTERNAL


@played
async def test_messages_of_a_stream_keep_their_order_while_a_codec_inflates_one() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(limit=1 << 26)
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 2**31 - 1)]))
        raw.send(frames.build_window_update(0, 2**30))
        raw.begin(1, block(STREAM, grpc_encoding="gzip"))
        large = infer_request(request_id="a", values=bytes(8_000_000)).SerializeToString()
        raw.data(1, message(gzip.compress(large), 1))
        raw.data(1, message(infer_request(request_id="b").SerializeToString()))
        raw.data(1, message(gzip.compress(large.replace(b"\x01a", b"\x01c", 1)), 1))
        raw.data(1, message(infer_request(request_id="d").SerializeToString()), end=True)
        await until(lambda: len(scene.service.requests) >= 4)
        assert [request.id for request in scene.service.requests] == ["a", "b", "c", "d"]


@played
async def test_a_message_that_comes_while_one_is_inflated_keeps_its_claim() -> None:
    memory = BodyMemory()
    async with raw_scene(sharing=SharedLimits(memory=memory)) as scene:
        scene.service.later = True  # a request keeps its message
        raw = await scene.connect(limit=1 << 26)
        raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 2**31 - 1)]))
        raw.send(frames.build_window_update(0, 2**30))
        raw.begin(1, block(STREAM, grpc_encoding="gzip"))
        first = infer_request(values=bytes(8_000_000)).SerializeToString()
        second = message(infer_request(values=bytes(100_000)).SerializeToString())
        raw.data(1, message(gzip.compress(first), 1) + second[:50_000])
        await until(lambda: len(scene.service.requests) >= 1)
        assert memory.used == len(first) + len(second) - 5
        raw.data(1, second[50_000:], end=True)
        await until(lambda: len(scene.service.requests) >= 2)
        for answer in scene.service.waiting:
            answer()
        assert await raw.status(1) == (0, "")
        await until(lambda: memory.used == 0)


@played
async def test_no_memo_is_used_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large compressed message is decoded in a thread, while the event loop decodes the small ones."""
    used: list[tuple[Memo[Any, Any], int]] = []
    add = Memo.add

    def record(memo: Memo[Any, Any], key: object, value: object) -> object:
        used.append((memo, threading.get_ident()))
        return add(memo, key, value)

    monkeypatch.setattr(Memo, "add", record)
    async with door() as (_, call):
        for values in (LARGE, b"\0\0\0\0"):
            await call("ModelInfer", infer_request(values=values), compression=grpc.Compression.Gzip)
    assert len({thread for _, thread in used}) > 1
    assert all(one is not other or here == there for one, here in used for other, there in used)


@played
async def test_a_message_that_cannot_be_copied_releases_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(moves: object) -> None:
        raise MemoryError

    monkeypatch.setattr("edge_serve.transport.grpc.large.copy", fail)
    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.begin(1, block(grpc_encoding="gzip"))
        data = gzip.compress(infer_request(values=LARGE).SerializeToString(), mtime=0)
        raw.data(1, message(data, 1), end=True)
        assert (await raw.status(1))[0] == 13
        assert [lease.released for lease in scene.service.leases] == [1]


@played
async def test_messages_behind_one_that_cannot_be_inflated_release_their_memory() -> None:
    async with raw_scene() as scene:
        raw = await scene.connect(limit=1 << 26)
        raw.begin(1, block(STREAM, grpc_encoding="gzip"))
        raw.data(1, message(bytes(100_000), 1) + message(infer_request(values=bytes(100_000)).SerializeToString()))
        assert (await raw.status(1))[0] == 3
        assert [lease.released for lease in scene.service.leases] == [1]


@played
async def test_a_small_method_has_no_large_message() -> None:
    """It would be inflated before memory is claimed for it, for clients with any role."""

    async with raw_scene() as scene:
        raw = await scene.connect()
        raw.begin(1, block(INFERENCE + "ServerLive", grpc_encoding="gzip"))
        raw.data(1, message(gzip.compress(bytes(300_000), mtime=0), 1), end=True)
        status, said = await raw.status(1)
        assert (status, "larger than max (262145 vs. 262144)" in said) == (8, True)


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b"no gzip", 3, "no gzip data"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], 3, "ends too early"),
        (gzip.compress(b"x" * 1000, mtime=0) + b"yz", 3, "goes on for 2 bytes after its end"),
        (gzip.compress(bytes(2_000_000), mtime=0), 8, "larger than max"),
        (zlib.compress(b""), 3, "no gzip data"),
    ],
)
@played
async def test_compressed_messages_that_are_refused(data: bytes, code: int, text: str) -> None:
    async with raw_scene(settings=GrpcSettings(max_message=1_500_000)) as scene:
        raw = await scene.connect()
        raw.begin(1, block(grpc_encoding="gzip"))
        raw.data(1, message(data, 1), end=True)
        status, said = await raw.status(1)
        assert (status, text in said) == (code, True)


def test_a_message_reader_is_freed_with_its_call_without_the_garbage_collector() -> None:
    async def main() -> None:
        async with raw_scene() as scene:
            raw = await scene.connect()
            raw.send(frames.build_window_update(0, 1 << 20))
            whole = message(infer_request(values=bytes(40_000)).SerializeToString())
            gc.collect()
            gc.disable()
            for number, cut in ((1, 3), (3, 5), (5, 36_000)):
                raw.begin(number, block())
                raw.data(number, whole[:cut])
                await asyncio.sleep(0.01)
                raw.data(number, whole[cut:], end=True)
                await raw.status(number)
            await asyncio.sleep(0)
            assert [one for one in gc.get_objects() if isinstance(one, MessageReader)] == []

    try:
        asyncio.run(main())
    finally:
        gc.enable()
