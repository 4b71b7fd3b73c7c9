"""The unary calls of the gRPC door other than inference: parse the request, call the service, serialize the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from edge_serve.access.roles import Role
from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import in_pieces, start_task
from edge_serve.errors import EdgeServeError, NotFound, Unavailable
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.grpc import bodies as grpc_bodies
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.protocol.grpc.infer import Unreadable
from edge_serve.protocol.grpc.response import encode_delimited
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.call_head import Method
from edge_serve.transport.grpc.deflater import SMALL
from edge_serve.transport.grpc.messages import Message as GrpcMessage
from edge_serve.transport.v2.operations import MANY_MODELS, CallService, Done, check_repository
from edge_serve.transport.v2.routes import RouteGroup

INFERENCE = "/inference.GRPCInferenceService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"

Answer = Message | bytes | None
Ask = Callable[[Any, GrpcCall], Answer]


def _make_answer(request: type[Message], ask: Ask) -> Callable[[GrpcCall, GrpcMessage], None]:
    """Return the `answer` of a unary method (`call_head.Method`): a large message is parsed in a thread.

    Args:
        request: the class of the message.
        ask: returns the reply, or None if it answers by the call, now or later. Raises EdgeServeError.
    """

    def read(data: Buffer) -> Message:
        try:
            return request.FromString(bytes(data))
        except DecodeError as error:
            raise Unreadable from error

    def reply(call: GrpcCall, asked: Message) -> None:
        made = ask(asked, call)
        if made is not None:
            raw = made if isinstance(made, bytes) else made.SerializeToString()
            call.reply((raw,), len(raw))

    async def answer_large(call: GrpcCall, message: GrpcMessage) -> None:
        try:
            reply(call, await offload(read, message.data))
        except EdgeServeError as error:
            call.fail(error)
        except Exception:
            call.fail_by_us()

    def answer(call: GrpcCall, message: GrpcMessage) -> None:
        if len(message.data) <= SMALL:
            reply(call, read(message.data))
        else:
            start_task(answer_large(call, message), "read a large message")

    return answer


async def _statistics_of_many(models: Sequence[tuple[str, str, ModelStatistics]], call: GrpcCall) -> None:
    """Serialize statistics in pieces: concatenated messages parse as one with the repeated fields of all."""
    each = (grpc_bodies.build_statistics([model]).SerializeToString() for model in models)
    parts = [b"".join(made) async for made in in_pieces(each)]
    call.reply(parts, sum(map(len, parts)))


class UnaryCalls:
    """Table of the unary methods by path (`table`), and their handlers."""

    def __init__(self, service: CallService) -> None:
        self._service = service
        calls: dict[str, tuple[RouteGroup, Role, Ask]] = {
            "ServerLive": (RouteGroup.HEALTH, Role.HEALTH, self._server_live),
            "ServerReady": (RouteGroup.HEALTH, Role.HEALTH, self._server_ready),
            "ModelReady": (RouteGroup.HEALTH, Role.HEALTH, self._model_ready),
            "ServerMetadata": (RouteGroup.METADATA, Role.READ, self._server_metadata),
            "ModelMetadata": (RouteGroup.METADATA, Role.READ, self._model_metadata),
            "ModelConfig": (RouteGroup.MODEL_CONFIG, Role.READ, self._model_config),
            "ModelStatistics": (RouteGroup.STATISTICS, Role.READ, self._model_statistics),
            "RepositoryIndex": (RouteGroup.MODEL_REPOSITORY, Role.READ, self._index),
            "RepositoryModelLoad": (RouteGroup.MODEL_REPOSITORY, Role.ADMIN, self._load),
            "RepositoryModelUnload": (RouteGroup.MODEL_REPOSITORY, Role.ADMIN, self._unload),
            "TraceSetting": (RouteGroup.TRACE, Role.READ, self._trace),
            "LogSettings": (RouteGroup.LOGGING, Role.READ, self._log),
            "SystemSharedMemoryStatus": (RouteGroup.SHARED_MEMORY, Role.READ, self._system_status),
            "SystemSharedMemoryRegister": (RouteGroup.SHARED_MEMORY, Role.ADMIN, self._system_register),
            "SystemSharedMemoryUnregister": (RouteGroup.SHARED_MEMORY, Role.ADMIN, self._system_unregister),
            "CudaSharedMemoryStatus": (RouteGroup.SHARED_MEMORY, Role.READ, self._cuda_status),
            "CudaSharedMemoryRegister": (RouteGroup.SHARED_MEMORY, Role.ADMIN, self._cuda_register),
            "CudaSharedMemoryUnregister": (RouteGroup.SHARED_MEMORY, Role.ADMIN, self._cuda_unregister),
        }
        self.table = {
            INFERENCE + name: Method(
                group, role, _make_answer(getattr(pb, f"{name}Request"), ask), large=name == "RepositoryModelLoad"
            )
            for name, (group, role, ask) in calls.items()
        }
        # HealthCheckRequest has one string field, as this message
        check = _make_answer(pb.SystemSharedMemoryStatusRequest, self._check)
        self.table[HEALTH_CHECK] = Method(RouteGroup.HEALTH, Role.HEALTH, check)

    # ---- health and metadata ------------------------------------------------------------------------------------

    def _check(self, request: Message, _: GrpcCall) -> bytes:
        """Return the readiness of the server, for any service name, as Triton does."""
        return SERVING if self._service.ready() else NOT_SERVING

    def _server_live(self, request: pb.ServerLiveRequest, _: GrpcCall) -> Answer:
        return pb.ServerLiveResponse(live=self._service.live())

    def _server_ready(self, request: pb.ServerReadyRequest, _: GrpcCall) -> Answer:
        return pb.ServerReadyResponse(ready=self._service.ready())

    def _model_ready(self, request: pb.ModelReadyRequest, _: GrpcCall) -> Answer:
        try:
            ready = self._service.model_ready(request.name, request.version)
        except (NotFound, Unavailable):
            if not self._service.live():
                raise
            ready = False  # Triton 2.51 answers the same for an unknown model
        return pb.ModelReadyResponse(ready=ready)

    def _server_metadata(self, request: pb.ServerMetadataRequest, _: GrpcCall) -> Answer:
        return grpc_bodies.build_server_metadata(self._service.server_metadata())

    def _model_metadata(self, request: pb.ModelMetadataRequest, _: GrpcCall) -> Answer:
        return grpc_bodies.build_model_metadata(self._service.model_metadata(request.name, request.version))

    def _model_config(self, request: pb.ModelConfigRequest, _: GrpcCall) -> Answer:
        config = self._service.model_config(request.name, request.version)
        # a ModelConfigResponse, without a copy of the config into the pool of grpc_service_pb2
        return encode_delimited(0x0A, config.SerializeToString())

    def _model_statistics(self, request: pb.ModelStatisticsRequest, call: GrpcCall) -> Answer:
        models = self._service.model_statistics(request.name, request.version)
        if len(models) <= MANY_MODELS:
            return grpc_bodies.build_statistics(models)
        start_task(_statistics_of_many(models, call), "statistics")
        return None

    # ---- the repository -----------------------------------------------------------------------------------------

    def _index(self, request: pb.RepositoryIndexRequest, call: GrpcCall) -> None:
        def done(found: list[IndexEntry] | EdgeServeError) -> None:
            if isinstance(found, EdgeServeError):
                call.fail(found)
            else:
                message = grpc_bodies.build_repository_index(found).SerializeToString()
                call.reply((message,), len(message))

        check_repository(request.repository_name)
        self._service.repository_index(request.ready, done)

    def _load(self, request: pb.RepositoryModelLoadRequest, call: GrpcCall) -> None:
        check_repository(request.repository_name)
        parameters = grpc_bodies.read_load_parameters(request.parameters)
        self._service.load_model(request.model_name, parameters, _finish(call))

    def _unload(self, request: pb.RepositoryModelUnloadRequest, call: GrpcCall) -> None:
        check_repository(request.repository_name)
        dependents = grpc_bodies.read_unload_dependents(request.parameters)
        self._service.unload_model(request.model_name, dependents, _finish(call))

    # ---- settings -----------------------------------------------------------------------------------------------

    def _trace(self, request: pb.TraceSettingRequest, call: GrpcCall) -> Answer:
        service, model = self._service, request.model_name
        current = service.trace_settings(model)
        if request.settings:
            call.check_change()
            service.update_trace_settings(model, grpc_bodies.read_trace_changes(request.settings))
            current = service.trace_settings(model)
        return grpc_bodies.build_trace_settings(current)

    def _log(self, request: pb.LogSettingsRequest, call: GrpcCall) -> Answer:
        service = self._service
        if request.settings:
            call.check_change()
            service.update_log_settings(grpc_bodies.read_log_settings(request.settings, service.log_settings()))
        return grpc_bodies.build_log_settings(service.log_settings())

    # ---- client shared memory -----------------------------------------------------------------------------------

    def _system_status(self, request: pb.SystemSharedMemoryStatusRequest, _: GrpcCall) -> Answer:
        return grpc_bodies.build_shared_memory(self._service.system_shm_status(request.name))

    def _system_register(self, request: pb.SystemSharedMemoryRegisterRequest, _: GrpcCall) -> Answer:
        self._service.register_system_shm(request.name, request.key, request.offset, request.byte_size)
        return b""

    def _system_unregister(self, request: pb.SystemSharedMemoryUnregisterRequest, _: GrpcCall) -> Answer:
        self._service.unregister_system_shm(request.name)
        return b""

    def _cuda_status(self, request: pb.CudaSharedMemoryStatusRequest, _: GrpcCall) -> Answer:
        return grpc_bodies.build_cuda_shared_memory(self._service.cuda_shm_status(request.name))

    def _cuda_register(self, request: pb.CudaSharedMemoryRegisterRequest, call: GrpcCall) -> None:
        handle, device = request.raw_handle, request.device_id
        self._service.register_cuda_shm(request.name, handle, device, request.byte_size, _finish(call))

    def _cuda_unregister(self, request: pb.CudaSharedMemoryUnregisterRequest, _: GrpcCall) -> Answer:
        self._service.unregister_cuda_shm(request.name)
        return b""


def _finish(call: GrpcCall) -> Done:
    """Return the callback with which the service reports that it is done; the reply is empty."""

    def done(error: EdgeServeError | None) -> None:
        if error is None:
            call.reply((), 0)
        else:
            call.fail(error)

    return done
