"""Watching the server's health, and reflection, as their own clients see them."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf import descriptor_pool

from tests.stories import played
from tests.transport.grpc_raw import block, raw_scene
from tests.transport.grpc_scene import GrpcFakeService, door

WATCH = "/grpc.health.v1.Health/Watch"


def test_watchers_are_notified_of_changes() -> None:
    async def main() -> None:
        service = GrpcFakeService()
        async with door(service) as (server, call):
            watching = call.channel.unary_stream(WATCH)(b"\x0a\x03any")
            assert await watching.read() == b"\x08\x01"
            service.alive = False
            server.sweep()
            server.sweep()
            assert await watching.read() == b"\x08\x02"
            service.alive = True
            server.sweep()
            assert await watching.read() == b"\x08\x01"
            draining = asyncio.create_task(server.drain(5))
            assert await watching.read() == b"\x08\x02"
            assert await watching.code() is not None
            assert await draining == 0

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_watch_without_a_request_fails() -> None:
    async def main() -> None:
        async with raw_scene() as scene:
            raw = await scene.connect()
            raw.begin(1, block(WATCH), end=True)
            assert await raw.status(1) == (13, "a Watch call has one message, none came")

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@played
async def test_reflection_describes_every_service_it_lists(version: str) -> None:
    reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    service = GrpcFakeService()
    async with door(service) as (_, call):
        stream = call.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")()

        async def ask(**what: object) -> object:
            await stream.write(reflection.ServerReflectionRequest(**what).SerializeToString())
            return reflection.ServerReflectionResponse.FromString(await stream.read())

        listed = (await ask(list_services="")).list_services_response.service  # type: ignore[attr-defined]
        pool = descriptor_pool.DescriptorPool()
        known: set[str] = set()
        for one in listed:
            reply = (await ask(file_containing_symbol=one.name)).file_descriptor_response  # type: ignore[attr-defined]
            for raw in reversed(reply.file_descriptor_proto):
                if raw not in known:
                    known.add(raw)
                    pool.AddSerializedFile(raw)
            assert pool.FindServiceByName(one.name).methods
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= {one.name for one in listed}
        by_name = await ask(file_by_filename="grpc_health.proto")
        assert len(by_name.file_descriptor_response.file_descriptor_proto) == 1  # type: ignore[attr-defined]
        for missing in ({"file_containing_symbol": "no.Such"}, {"file_by_filename": "x"}):
            assert (await ask(**missing)).error_response.error_code == 5  # type: ignore[attr-defined]
        numbers = await ask(all_extension_numbers_of_type="inference.ModelInferRequest")
        assert not numbers.all_extension_numbers_response.extension_number  # type: ignore[attr-defined]
        await stream.done_writing()
