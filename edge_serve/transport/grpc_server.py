"""The gRPC door: grpc.aio in the server's own loop, its calls as bytes in and bytes out (docs/adr/0011).

The only file that imports grpcio, and imported only when the door is opened. Errors become status codes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.protocol import forwarding, grpc_service_pb2
from edge_serve.protocol.routes import Group
from edge_serve.transport.call_service import CallService
from edge_serve.transport.grpc_calls import INFERENCE, Call, Calls
from edge_serve.transport.grpc_infer import GrpcInference
from edge_serve.transport.grpc_stream import GrpcInferService

log = logging.getLogger(__name__)

MODEL_INFER = INFERENCE + "ModelInfer"
MODEL_STREAM_INFER = INFERENCE + "ModelStreamInfer"
#: what reflection shows
_SERVICES = ("inference.GRPCInferenceService", "grpc.health.v1.Health")
_INT32_MAX = 2**31 - 1
_LEVELS = ("none", "low", "medium", "high")

Metadata = Mapping[str, str]
Handler = Callable[[Any, Any], Awaitable[Any]]


class GrpcService(CallService, GrpcInferService, Protocol):
    """What this door needs of service.Service."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """What this door needs to know of the settings.

    Attributes:
        header_forward_pattern: --grpc-header-forward-pattern; "" = none.
        restricted: --grpc-restricted-protocol, group -> (metadata key, value).
        compression_level: one of none, low, medium and high.
        options: channel arguments of gRPC beside those made here.
        credentials: None = no TLS.
    """

    header_forward_pattern: str = ""
    restricted: Mapping[Group, tuple[str, str]] = field(default_factory=dict)
    compression_level: str = "none"
    reuse_port: bool = False
    options: tuple[tuple[str, int], ...] = ()
    credentials: Any = None


class GrpcServer:
    """Serves gRPC. `start` opens the door, `drain` shuts it.

    Attributes:
        address: where it listens, for people.
    """

    def __init__(self, service: GrpcService, settings: GrpcSettings, clock: Clock) -> None:
        self._settings = settings
        self.address = ""
        routes = _Routes(service, settings, clock)
        handlers = [routes, *_reflection()]
        self._server = grpc.aio.server(handlers=handlers, options=_options(settings))

    async def start(self, address: str, port: int) -> None:
        """Listen on `address`.

        Raises:
            OSError: the port is taken, or the address is not ours.
        """
        host = f"[{address}]" if ":" in address else address
        try:
            if self._settings.credentials is None:
                bound = self._server.add_insecure_port(f"{host}:{port}")
            else:
                bound = self._server.add_secure_port(f"{host}:{port}", self._settings.credentials)
        except RuntimeError as error:
            raise OSError(None, f"cannot listen on {address}:{port}: {error}") from error
        await self._server.start()
        self.address = f"{host}:{bound}"

    async def drain(self, timeout: float) -> int:
        """Refuse new calls, wait for those under way, cancel what is left after `timeout` seconds; 1 if any was."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        await self._server.stop(timeout)
        return int(loop.time() >= end)


class _Routes(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the handler of a call by its path. All handlers take and give bytes."""

    def __init__(self, service: GrpcService, settings: GrpcSettings, clock: Clock) -> None:
        self._pattern = forwarding.compile_pattern(settings.header_forward_pattern)
        self._restricted = settings.restricted
        self._inference = GrpcInference(service, clock)
        self._handlers: dict[str, tuple[Group, Any]] = {
            MODEL_INFER: (Group.INFERENCE, grpc.unary_unary_rpc_method_handler(self._infer)),
            MODEL_STREAM_INFER: (Group.INFERENCE, grpc.stream_stream_rpc_method_handler(self._stream)),
        }
        for path, call in Calls(service).table.items():
            self._handlers[path] = (call.group, grpc.unary_unary_rpc_method_handler(_unary(call)))

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call; None = UNIMPLEMENTED."""
        found = self._handlers.get(details.method)
        if found is None:
            return None
        restriction = self._restricted.get(found[0])
        if restriction is not None and dict(details.invocation_metadata).get(restriction[0].lower()) != restriction[1]:
            error = Unavailable(f"This protocol is restricted, expecting header '{restriction[0]}'")
            return _refusing(error, streams=details.method == MODEL_STREAM_INFER)
        return found[1]

    async def _infer(self, data: bytes, context: Any) -> bytes:
        try:
            forwarded = None if self._pattern is None else self._forwarded(context)
            return await self._inference.infer(data, forwarded, context.time_remaining())
        except EdgeServeError as error:
            await _abort(context, error)
        except Exception:
            log.exception("ModelInfer failed")
            await _abort(context, _FAULT)
        raise AssertionError  # `abort` has raised

    async def _stream(self, requests: Any, context: Any) -> None:
        try:
            forwarded = None if self._pattern is None else self._forwarded(context)
            strict = dict(context.invocation_metadata()).get("triton_grpc_error") == "true"
            await self._inference.stream(requests, context.write, forwarded, strict=strict)
        except EdgeServeError as error:
            await _abort(context, error)
        except Exception:
            log.exception("ModelStreamInfer failed")
            await _abort(context, _FAULT)

    def _forwarded(self, context: Any) -> dict[str, str]:
        assert self._pattern is not None, "the caller has looked"
        pairs = [(name, value) for name, value in context.invocation_metadata() if isinstance(value, str)]
        return forwarding.forwarded(pairs, self._pattern)


_FAULT = Internal("the server failed to handle this request, its log says why")


def _unary(call: Call) -> Handler:
    async def handle(data: bytes, context: Any) -> bytes:
        try:
            return await call.run(data)
        except EdgeServeError as error:
            await _abort(context, error)
        except Exception:
            log.exception("a gRPC call failed")
            await _abort(context, _FAULT)
        raise AssertionError  # `abort` has raised

    return handle


def _refusing(error: EdgeServeError, *, streams: bool) -> Any:
    async def handle(_: Any, context: Any) -> None:
        await _abort(context, error)

    return (grpc.stream_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler)(handle)


async def _abort(context: Any, error: EdgeServeError) -> None:
    """End the call with the error's code and text; raises what grpc.aio wants to see raised."""
    await context.abort(grpc.StatusCode[error.grpc_code], error.message)


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", _INT32_MAX),
        ("grpc.max_send_message_length", _INT32_MAX),
        ("grpc.so_reuseport", int(settings.reuse_port)),
        *settings.options,
    ]
    if settings.compression_level != "none":
        options.append(("grpc.default_compression_level", _LEVELS.index(settings.compression_level)))
    return options


def _reflection() -> list[Any]:
    """The reflection service, where grpcio-reflection is installed."""
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
        from grpc_reflection.v1alpha.reflection_pb2 import DESCRIPTOR
    except ImportError:
        return []
    names = (*_SERVICES, DESCRIPTOR.services_by_name["ServerReflection"].full_name)
    servicer = reflection.aio.ReflectionServicer(names, pool=grpc_service_pb2.DESCRIPTOR.pool)
    collected = _Collector()
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, collected)
    return collected.handlers


class _Collector:
    """Stands for a server while a generated function adds its handlers."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same once more, for servers that look methods up by name."""
