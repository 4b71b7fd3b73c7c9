"""The gRPC door over a service that records what it is asked, and a real channel of grpcio to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.transport.door.listeners import listen_tcp
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc_service.server import GrpcServer
from tests.transport.v2_scene import FakeLease, FakeService, FixedClock

INFERENCE = "/inference.GRPCInferenceService/"


class GrpcFakeService(FakeService):
    """As the HTTP door's, with a configuration that is a message, and tensor memory for every body."""

    def lease(self, name: str, version: str, nbytes: int) -> FakeLease | None:
        if self.lease_error is not None:
            raise self.lease_error
        if name != "m":
            return None
        self.leases.append(FakeLease(memoryview(bytearray(nbytes)), 4096 * (1 + len(self.leases))))
        return self.leases[-1]

    def model_config(self, name: str, version: str) -> Any:
        self.lookup(name, version)
        return ModelConfig(name=name, max_batch_size=4)


class Caller:
    """Calls by name, message in, message out."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def __call__(self, name: str, request: Any = b"", answer: type[Any] | None = None, **rest: Any) -> Any:
        """The reply of a unary call, parsed when its class is given."""
        path = name if name.startswith("/") else INFERENCE + name
        data = request if isinstance(request, bytes) else request.SerializeToString()
        reply = await self.channel.unary_unary(path)(data, timeout=10, **rest)
        return reply if answer is None else answer.FromString(reply)

    async def refusal(self, name: str, request: Any = b"", **rest: Any) -> tuple[str, str]:
        """Code and text of a call that fails."""
        try:
            await self(name, request, **rest)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} succeeded")


@contextlib.asynccontextmanager
async def door(
    service: FakeService | None = None, settings: GrpcSettings | None = None, **more: Any
) -> AsyncIterator[tuple[GrpcServer, Caller]]:
    """An open door and a caller; `more` is for the door."""
    server = GrpcServer(service or GrpcFakeService(), more.pop("clock", None) or FixedClock(), settings, **more)
    await server.start(listen_tcp("127.0.0.1", 0))
    try:
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            yield server, Caller(channel)
    finally:
        await server.drain(1.0)


def infer_request(model: str = "m", values: bytes = b"\1\0\0\0", request_id: str = "") -> pb.ModelInferRequest:
    """X = INT32."""
    made = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[values])
    made.inputs.add(name="X", datatype="INT32", shape=[len(values) // 4])
    return made
