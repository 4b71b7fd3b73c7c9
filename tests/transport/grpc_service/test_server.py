"""The gRPC door: calls over a real channel, refusals, metadata, cancellation, and its end."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys

import grpc
import pytest

from edge_serve.config.settings.server import parse_argv
from edge_serve.errors import InvalidArgument, Unavailable
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc_service.server import open_grpc
from edge_serve.transport.v2.routes import RouteGroup
from tests.stories import played
from tests.transport.grpc_scene import INFERENCE, Caller, GrpcFakeService, door, infer_request
from tests.transport.http_scene import until
from tests.transport.v2_scene import FakeLease, FixedClock


@played
async def test_infer_answers_with_raw_contents() -> None:
    async with door() as (_, call):
        reply = await call("ModelInfer", infer_request(request_id="i"), pb.ModelInferResponse)

        assert (reply.model_name, reply.model_version, reply.id) == ("m", "3", "i")
        assert list(reply.raw_output_contents) == [b"\1\0\0\0"]
        assert not reply.parameters


@played
async def test_each_request_looks_its_version_up_once() -> None:
    service = GrpcFakeService()
    async with door(service) as (_, call):
        for number in range(3):  # the second and third are filled from what is known of the first
            await call("ModelInfer", infer_request(request_id="i" * number))
        assert service.lookups == ["m"] * 3
        assert len(service.requests) == 3


@played
async def test_memory_of_a_response_is_given_back() -> None:
    lease = FakeLease()
    async with door(GrpcFakeService(response_lease=lease)) as (_, call):
        await call("ModelInfer", infer_request())
    assert lease.released == 1


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (infer_request("nope"), "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        (infer_request("broken"), "INTERNAL", "the server failed to handle this request, its log says why"),
        (b"\xff", "INTERNAL", "Unable to parse request"),
        (pb.ModelInferRequest(model_name="d"), "UNIMPLEMENTED",
         "ModelInfer RPC doesn't support models with decoupled transaction policy"),
        (pb.ModelInferRequest(model_name="d", raw_input_contents=[b"1"]), "UNIMPLEMENTED",
         "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    ],
)  # fmt: skip
@played
async def test_calls_that_cannot_run_fail_with_a_code_and_a_text(request_: object, code: str, text: str) -> None:
    async with door() as (_, call):
        assert await call.refusal("ModelInfer", request_) == (code, text)


@played
async def test_a_models_error_becomes_its_code() -> None:
    async with door(GrpcFakeService(error=Unavailable("later"))) as (_, call):
        assert await call.refusal("ModelInfer", infer_request()) == ("UNAVAILABLE", "later")


@played
async def test_a_client_that_leaves_cancels_its_request() -> None:
    lease = FakeLease()
    service = GrpcFakeService(later=True, response_lease=lease)
    async with door(service) as (_, call):
        running = call.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            infer_request().SerializeToString()
        )
        await until(lambda: service.waiting)
        running.cancel()
        await until(lambda: service.ticket.cancelled)
        service.waiting.pop()()  # the late answer gives its memory back
    assert lease.released == 1


@played
async def test_a_deadline_cancels_the_request_in_the_worker() -> None:
    service = GrpcFakeService(later=True)
    async with door(service) as (_, call):
        path = "/inference.GRPCInferenceService/ModelInfer"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.channel.unary_unary(path)(infer_request().SerializeToString(), timeout=0.2)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.ticket.cancelled)
        assert 0 < service.requests[0].deadline_ns < 1_000 + 205_000_000  # gRPC rounds it up


@played
async def test_unknown_calls_are_unimplemented() -> None:
    async with door() as (_, call):
        assert (await call.refusal("Nope"))[0] == "UNIMPLEMENTED"
        assert (await call.refusal("/other.Service/X"))[0] == "UNIMPLEMENTED"


@played
async def test_restricted_calls_need_their_key() -> None:
    settings = GrpcSettings(restricted={RouteGroup.INFERENCE: ("triton-grpc-protocol-k", "v")})
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-k'"
    async with door(settings=settings) as (_, call):
        assert await call.refusal("ModelInfer", infer_request()) == ("UNAVAILABLE", text)
        wrong = (("triton-grpc-protocol-k", "x"),)
        assert await call.refusal("ModelInfer", infer_request(), metadata=wrong) == ("UNAVAILABLE", text)
        await call("ModelInfer", infer_request(), metadata=(("triton-grpc-protocol-k", "v"),))
        both = (("triton-grpc-protocol-k", "v"), ("triton-grpc-protocol-k", "x"))  # the first one counts
        await call("ModelInfer", infer_request(), metadata=both)
        assert await call.refusal("ModelInfer", infer_request(), metadata=both[::-1]) == ("UNAVAILABLE", text)
        await call("ServerLive")
        stream = call.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        with pytest.raises(grpc.aio.AioRpcError, match="restricted"):
            await stream.read()


@played
async def test_metadata_that_matches_becomes_parameters() -> None:
    service = GrpcFakeService()
    async with door(service, settings=GrpcSettings(header_forward_pattern=re.compile("X-", re.IGNORECASE))) as (
        _,
        call,
    ):
        texts = (("x-one", " 1 "), ("other", "2"))
        binary = (("x-b-bin", "J\u00fc".encode()), ("x-c-bin", b"\0\xff"), ("x-d-bin", b""), ("other-bin", b"2"))
        await call("ModelInfer", infer_request(), metadata=(*texts, *binary))
        assert service.requests[0].parameters == {
            "x-one": " 1 ", "x-b-bin": "J\u00fc", "x-c-bin": "\0\ufffd", "x-d-bin": "",
        }  # fmt: skip
        code, text = await call.refusal("ModelInfer", infer_request(), metadata=(("triton_x-y", "1"),))
        assert (code, "reserved" in text) == ("INVALID_ARGUMENT", True)


@played
async def test_a_stream_answers_and_ends_with_its_client() -> None:
    async with door() as (_, call):
        stream = call.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        for name in ("a", "b"):
            await stream.write(infer_request(request_id=name).SerializeToString())
        await stream.done_writing()
        replies = [pb.ModelStreamInferResponse.FromString(data) async for data in stream]

        assert [reply.infer_response.id for reply in replies] == ["a", "b"]
        assert await stream.code() is grpc.StatusCode.OK


@played
async def test_a_strict_stream_ends_with_the_errors_code() -> None:
    service = GrpcFakeService(error=InvalidArgument("no"), later=True)
    async with door(service) as (_, call):
        metadata = (("triton_grpc_error", "true"),)
        stream = call.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(metadata=metadata)
        await stream.write(infer_request().SerializeToString())
        while not service.waiting:
            await asyncio.sleep(0.01)
        service.waiting.pop()()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no")


@pytest.mark.parametrize(("level", "most"), [("none", 200_000), ("low", 5_000), ("high", 5_000)])
@played
async def test_responses_are_compressed_when_asked_for(level: str, most: int) -> None:
    async with door(GrpcFakeService(), GrpcSettings(compression_level=level)) as (server, _):
        received = 0
        upstream = server.addresses[0].rpartition(":")

        async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: bool) -> None:
            nonlocal received
            while data := await reader.read(65536):
                received += len(data) if counts else 0
                writer.write(data)
            writer.close()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up_reader, up_writer = await asyncio.open_connection(upstream[0], int(upstream[2]))
            await asyncio.gather(pipe(reader, up_writer, False), pipe(up_reader, writer, True))

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as between:
            port = between.sockets[0].getsockname()[1]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                request = infer_request(values=bytes(100_000))
                reply = await Caller(channel)("ModelInfer", request, pb.ModelInferResponse)

        assert len(reply.raw_output_contents[0]) == 100_000
        assert received < most
        assert (received > 100_000) == (level == "none")


@played
async def test_compressed_requests_are_read() -> None:
    async with door() as (_, call):
        data = infer_request(values=bytes(100_000))
        reply = await call("ModelInfer", data, pb.ModelInferResponse, compression=grpc.Compression.Gzip)
        assert len(reply.raw_output_contents[0]) == 100_000


@played
async def test_draining_lets_calls_under_way_finish() -> None:
    service = GrpcFakeService(later=True)
    async with door(service) as (server, call):
        running = asyncio.create_task(call("ModelInfer", infer_request(), pb.ModelInferResponse))
        await until(lambda: service.waiting)
        draining = asyncio.create_task(server.drain(10.0))
        await asyncio.sleep(0)
        service.waiting.pop()()

        assert (await running).model_name == "m"
        assert await asyncio.wait_for(draining, 5) == 0


@played
async def test_draining_ends_a_stream_that_stays_open_when_all_of_it_is_answered() -> None:
    service = GrpcFakeService(later=True)
    async with door(service) as (server, call):
        stream = call.channel.stream_stream(INFERENCE + "ModelStreamInfer")()
        await stream.write(infer_request().SerializeToString())
        await until(lambda: service.waiting)
        draining = asyncio.create_task(server.drain(60.0))
        await asyncio.sleep(0)
        service.waiting.pop()()

        assert b"m" in await stream.read()
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in await stream.details()
        assert await asyncio.wait_for(draining, 20) == 0


@played
async def test_reflection_lists_the_services() -> None:
    reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    service = GrpcFakeService()
    async with door(service) as (_, call):
        stream = call.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")()
        await stream.write(reflection.ServerReflectionRequest(list_services="").SerializeToString())
        reply = reflection.ServerReflectionResponse.FromString(await stream.read())
        names = {one.name for one in reply.list_services_response.service}
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
        wanted = reflection.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService")
        await stream.write(wanted.SerializeToString())
        reply = reflection.ServerReflectionResponse.FromString(await stream.read())
        assert reply.file_descriptor_response.file_descriptor_proto
        await stream.done_writing()


def test_the_door_listens_at_its_address(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        config = parse_argv(["--model-repository=/models", "--grpc-address=::1", "--grpc-port=0"], {})
        with caplog.at_level(logging.INFO):
            opened = await open_grpc(GrpcFakeService(), config, FixedClock())
        address = opened.addresses[0]
        await opened.drain(0.1)
        return address

    assert f"gRPC on {asyncio.run(main())}" in caplog.text
    assert "gRPC on [::1]:" in caplog.text


def test_a_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse_argv(["--model-repository=/models", f"--grpc-port={port}"], {})
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(open_grpc(GrpcFakeService(), config, FixedClock()))


def _imported(code: str) -> str:
    code = f"import sys\n{code}\nprint(sorted({{name.split('.')[0] for name in sys.modules}} & {{'grpc', 'hpack'}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout


def test_modules_of_grpc_are_imported_with_its_door() -> None:
    assert _imported("import edge_serve.server") == "[]\n"
    assert _imported("import edge_serve.transport.grpc_service.server") == "['hpack']\n"
