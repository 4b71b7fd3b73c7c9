"""The unary calls of the gRPC door other than inference: bytes in, the service asked, bytes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from edge_serve.errors import EdgeServeError, NotFound, Unsupported
from edge_serve.protocol import grpc_bodies
from edge_serve.protocol import grpc_service_pb2 as pb
from edge_serve.protocol.grpc_infer import Unreadable
from edge_serve.protocol.grpc_response import delimited
from edge_serve.protocol.routes import Group
from edge_serve.transport.call_service import CallService, Done

INFERENCE = "/inference.GRPCInferenceService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"

Answer = Message | bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One unary call.

    Attributes:
        request: the class of its message.
        answer: gives the reply, or a promise of it; raises EdgeServeError.
    """

    group: Group
    request: type[Message]
    answer: Callable[[Any], Answer | Awaitable[Answer]]

    async def run(self, data: bytes) -> bytes:
        """The reply to a request.

        Raises:
            EdgeServeError: what the client is told instead.
        """
        try:
            message = self.request.FromString(data)
        except DecodeError as error:
            raise Unreadable from error
        answer = self.answer(message)
        if not isinstance(answer, (bytes, Message)):
            answer = await answer
        return answer if isinstance(answer, bytes) else answer.SerializeToString()


class Calls:
    """All of them by path (`table`)."""

    def __init__(self, service: CallService) -> None:
        self._service = service
        memory = Group.SHARED_MEMORY
        calls = {
            "ServerLive": Call(Group.HEALTH, pb.ServerLiveRequest, self._server_live),
            "ServerReady": Call(Group.HEALTH, pb.ServerReadyRequest, self._server_ready),
            "ModelReady": Call(Group.HEALTH, pb.ModelReadyRequest, self._model_ready),
            "ServerMetadata": Call(Group.METADATA, pb.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": Call(Group.METADATA, pb.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": Call(Group.MODEL_CONFIG, pb.ModelConfigRequest, self._model_config),
            "ModelStatistics": Call(Group.STATISTICS, pb.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": Call(Group.MODEL_REPOSITORY, pb.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": Call(Group.MODEL_REPOSITORY, pb.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": Call(Group.MODEL_REPOSITORY, pb.RepositoryModelUnloadRequest, self._unload),
            "TraceSetting": Call(Group.TRACE, pb.TraceSettingRequest, self._trace),
            "LogSettings": Call(Group.LOGGING, pb.LogSettingsRequest, self._log),
            "SystemSharedMemoryStatus": Call(memory, pb.SystemSharedMemoryStatusRequest, self._system_status),
            "SystemSharedMemoryRegister": Call(memory, pb.SystemSharedMemoryRegisterRequest, self._system_register),
            "SystemSharedMemoryUnregister": Call(
                memory, pb.SystemSharedMemoryUnregisterRequest, self._system_unregister
            ),
            "CudaSharedMemoryStatus": Call(memory, pb.CudaSharedMemoryStatusRequest, self._cuda_status),
            "CudaSharedMemoryRegister": Call(memory, pb.CudaSharedMemoryRegisterRequest, self._cuda_register),
            "CudaSharedMemoryUnregister": Call(memory, pb.CudaSharedMemoryUnregisterRequest, self._cuda_unregister),
        }
        self.table = {INFERENCE + name: call for name, call in calls.items()}
        # the standard message has one string field, as ModelReadyRequest's first
        self.table[HEALTH_CHECK] = Call(Group.HEALTH, pb.SystemSharedMemoryStatusRequest, self._check)

    # ---- health and metadata ------------------------------------------------------------------------------------

    def _check(self, request: Message) -> bytes:
        """The standard health service: readiness of the server, whatever service is asked for, as in Triton."""
        return _SERVING if self._service.ready() else _NOT_SERVING

    def _server_live(self, request: pb.ServerLiveRequest) -> Answer:
        return pb.ServerLiveResponse(live=self._service.live())

    def _server_ready(self, request: pb.ServerReadyRequest) -> Answer:
        return pb.ServerReadyResponse(ready=self._service.ready())

    def _model_ready(self, request: pb.ModelReadyRequest) -> Answer:
        try:
            ready = self._service.model_ready(request.name, request.version)
        except NotFound:
            ready = False  # Triton 2.51 does not tell an unknown model from one that is not ready
        return pb.ModelReadyResponse(ready=ready)

    def _server_metadata(self, request: pb.ServerMetadataRequest) -> Answer:
        return grpc_bodies.server_metadata(self._service.server_metadata())

    def _model_metadata(self, request: pb.ModelMetadataRequest) -> Answer:
        return grpc_bodies.model_metadata(self._service.model_metadata(request.name, request.version))

    def _model_config(self, request: pb.ModelConfigRequest) -> Answer:
        config = self._service.model_config(request.name, request.version)
        return delimited(0x0A, config.SerializeToString())  # a ModelConfigResponse, without a copy into our own pool

    def _model_statistics(self, request: pb.ModelStatisticsRequest) -> Answer:
        return grpc_bodies.statistics(self._service.model_statistics(request.name, request.version))

    # ---- the repository -----------------------------------------------------------------------------------------

    def _index(self, request: pb.RepositoryIndexRequest) -> Answer:
        _check_repository(request.repository_name)
        return grpc_bodies.repository_index(self._service.repository_index(request.ready))

    def _load(self, request: pb.RepositoryModelLoadRequest) -> Awaitable[Answer]:
        _check_repository(request.repository_name)
        parameters = grpc_bodies.load_parameters(request.parameters)
        done, finish = _promise()
        self._service.load_model(request.model_name, parameters, finish)
        return done

    def _unload(self, request: pb.RepositoryModelUnloadRequest) -> Awaitable[Answer]:
        _check_repository(request.repository_name)
        dependents = grpc_bodies.unload_dependents(request.parameters)
        done, finish = _promise()
        self._service.unload_model(request.model_name, dependents, finish)
        return done

    # ---- settings -----------------------------------------------------------------------------------------------

    def _trace(self, request: pb.TraceSettingRequest) -> Answer:
        service, model = self._service, request.model_name
        current = service.trace_settings(model)
        if request.settings:
            service.update_trace_settings(model, grpc_bodies.read_trace_changes(request.settings))
            current = service.trace_settings(model)
        return grpc_bodies.trace_settings(current)

    def _log(self, request: pb.LogSettingsRequest) -> Answer:
        service = self._service
        if request.settings:
            service.update_log_settings(grpc_bodies.read_log_settings(request.settings, service.log_settings()))
        return grpc_bodies.log_settings(service.log_settings())

    # ---- client shared memory -----------------------------------------------------------------------------------

    def _system_status(self, request: pb.SystemSharedMemoryStatusRequest) -> Answer:
        return grpc_bodies.shared_memory(self._service.system_shm_status(request.name))

    def _system_register(self, request: pb.SystemSharedMemoryRegisterRequest) -> Answer:
        self._service.register_system_shm(request.name, request.key, request.offset, request.byte_size)
        return b""

    def _system_unregister(self, request: pb.SystemSharedMemoryUnregisterRequest) -> Answer:
        self._service.unregister_system_shm(request.name)
        return b""

    def _cuda_status(self, request: pb.CudaSharedMemoryStatusRequest) -> Answer:
        self._service.cuda_shm_status(request.name)
        return b""  # none is ever registered

    def _cuda_register(self, request: pb.CudaSharedMemoryRegisterRequest) -> Answer:
        self._service.register_cuda_shm(request.name)
        return b""

    def _cuda_unregister(self, request: pb.CudaSharedMemoryUnregisterRequest) -> Answer:
        self._service.unregister_cuda_shm(request.name)
        return b""


def _check_repository(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def _promise() -> tuple[asyncio.Future[Answer], Done]:
    """An empty reply to wait for, and what the service calls when it is due."""
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def finish(error: EdgeServeError | None) -> None:
        if future.done():  # the client has gone
            return
        if error is None:
            future.set_result(b"")
        else:
            future.set_exception(error)

    return future, finish
