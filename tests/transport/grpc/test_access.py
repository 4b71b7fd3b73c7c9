"""Roles, and limits of connections, over gRPC: a real channel of grpcio to a door with an access."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from edge_serve.access.roles import Role
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.transport.door.access import Access, AccessSettings
from edge_serve.transport.door.listeners import listen_tcp
from edge_serve.transport.door.reloaded import Reloaded
from edge_serve.transport.door.shared_limits import Addresses, SharedLimits
from edge_serve.transport.grpc.door_state import GrpcLimits
from edge_serve.transport.grpc_service.standard import REFLECTION, WATCH
from edge_serve.transport.sockets.tls import TlsFiles, make_context
from tests.certificates import Authority
from tests.stories import played
from tests.transport.grpc_scene import Caller, GrpcFakeService, door, infer_request

LOAD = pb.RepositoryModelLoadRequest(model_name="m")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    lines = [f"{role.word} sha256:{hashlib.sha256(role.word.encode()).hexdigest()}\n" for role in Role if role]
    path.write_text("".join(lines))
    return path


def bearer(role: str) -> Any:
    return (("authorization", f"Bearer {role}"),)


@played
async def test_codes_by_role(tokens: Path) -> None:
    access = Access(AccessSettings(token_file=str(tokens)))
    async with door(access=access) as (_, call):
        code, text = await call.refusal("ModelInfer", infer_request())
        assert (code, "this needs the role infer" in text) == ("UNAUTHENTICATED", True)
        assert (await call.refusal("ServerLive", metadata=bearer("x")))[0] == "UNAUTHENTICATED"
        code, text = await call.refusal("ModelInfer", infer_request(), metadata=bearer("read"))
        assert (code, "this client has the role read" in text) == ("PERMISSION_DENIED", True)
        assert (await call.refusal("RepositoryModelLoad", LOAD, metadata=bearer("infer")))[0] == "PERMISSION_DENIED"
        for _ in range(2):  # the second time from what was remembered
            await call("ModelInfer", infer_request(), metadata=bearer("infer"))
        await call("RepositoryModelLoad", LOAD, metadata=bearer("admin"))
        await call("/grpc.health.v1.Health/Check", metadata=bearer("health"))
        stream = call.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        assert (await stream.code()).name == "UNAUTHENTICATED"
    assert access.denied == 5


@played
async def test_the_standard_services_need_roles(tokens: Path) -> None:
    async with door(access=Access(AccessSettings(token_file=str(tokens)))) as (_, call):
        for path, codes in ((WATCH, ("UNAUTHENTICATED",)), (REFLECTION[0], ("UNAUTHENTICATED", "PERMISSION_DENIED"))):
            for code, metadata in zip(codes, ((), bearer("health")), strict=False):
                assert (await call.channel.stream_stream(path)(metadata=metadata).code()).name == code


@played
async def test_settings_may_be_read_and_changed_by_different_roles(tokens: Path) -> None:
    changes = pb.LogSettingsRequest()
    changes.settings["log_verbose_level"].uint32_param = 1
    traces = pb.TraceSettingRequest(model_name="m")
    traces.settings["trace_rate"].value.append("10")
    async with door(access=Access(AccessSettings(token_file=str(tokens)))) as (_, call):
        for name, message in (("LogSettings", changes), ("TraceSetting", traces)):
            await call(name, b"", metadata=bearer("read"))
            assert (await call.refusal(name, message, metadata=bearer("infer")))[0] == "PERMISSION_DENIED"
            await call(name, message, metadata=bearer("admin"))


@played
async def test_a_change_of_the_file_holds_for_open_connections(tokens: Path) -> None:
    access = Access(AccessSettings(token_file=str(tokens)))
    async with door(access=access) as (_, call):
        for _ in range(2):
            await call("ServerLive", metadata=bearer("read"))
        tokens.write_text("")
        os.utime(tokens, (1, 1))
        await access.reload_changed()
        await access.reload_changed()
        assert (await call.refusal("ServerLive", metadata=bearer("read")))[0] == "UNAUTHENTICATED"


@played
async def test_administration_has_a_place() -> None:
    async with door(access=Access(AccessSettings())) as (_, call):
        await call("RepositoryModelLoad", LOAD)
        code, text = await call.refusal("RepositoryModelLoad", LOAD, metadata=(("x-forwarded-for", "10.0.0.1"),))
        assert (code, "through a proxy" in text) == ("PERMISSION_DENIED", True)
        await call("ModelInfer", infer_request(), metadata=(("x-forwarded-for", "10.0.0.1"),))


@played
async def test_a_certificate_has_a_role(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, camera = authority.issue(), authority.issue("camera-3")
    (tmp_path / "roles").write_text("infer CN=camera-3\n")
    files = TlsFiles(str(mine.certificate), str(mine.key), str(authority.root), demanded=True)
    contexts = Reloaded("certificate", files.paths, lambda: make_context(files, ("h2",)))
    access = Access(AccessSettings(certificate_file=str(tmp_path / "roles")))
    async with door(GrpcFakeService(), tls=contexts, access=access) as (server, _):
        for pair, codes in ((camera, ("", "PERMISSION_DENIED")), (mine, ("PERMISSION_DENIED",) * 2)):
            credentials = grpc.ssl_channel_credentials(
                authority.root.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
            )
            port = server.addresses[0].rpartition(":")[2]
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                call = Caller(channel)
                for (name, message), code in zip(
                    (("ModelInfer", infer_request()), ("RepositoryModelLoad", LOAD)), codes, strict=True
                ):
                    if code:
                        assert (await call.refusal(name, message))[0] == code
                    else:
                        await call(name, message)


@played
async def test_connections_of_one_address() -> None:
    sharing = SharedLimits(addresses=Addresses(2))
    async with door(GrpcFakeService(), sharing=sharing) as (server, call):
        await call("ServerLive")
        host, _, port = server.addresses[0].rpartition(":")
        _, second = await asyncio.open_connection(host, int(port))
        reader, third = await asyncio.open_connection(host, int(port))
        assert b"your address has 2 connections open" in await asyncio.wait_for(reader.read(-1), 5)
        second.close()
        third.close()
        assert sharing.addresses.refused == 1
    assert [sharing.addresses.acquire("127.0.0.1") for _ in range(3)] == [True, True, False]


@played
async def test_a_second_listener_of_a_door() -> None:
    async with door(GrpcFakeService(), limits=GrpcLimits(connections=1)) as (server, call):
        await server.start(listen_tcp("127.0.0.1", 0))
        await call("ServerLive")
