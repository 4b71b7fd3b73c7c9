"""Every unary call but inference, over a service that records what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unavailable, Unsupported
from edge_serve.messages.settings import TraceChanges
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.calls import HEALTH_CHECK, INFERENCE, UnaryCalls
from tests.transport.grpc_scene import GrpcFakeService


@dataclass
class Replier:
    answer: bytes | None = None
    error: EdgeServeError | None = None
    unchangeable: EdgeServeError | None = None

    def check_change(self) -> None:
        if self.unchangeable is not None:
            raise self.unchangeable

    def reply(self, parts: Sequence[Buffer], size: int) -> None:
        self.answer = b"".join(parts)
        assert len(self.answer) == size

    def fail(self, error: EdgeServeError) -> None:
        self.error = error


def ask(name: str, request: Any = b"", service: GrpcFakeService | None = None) -> bytes:
    """The bytes that a call answers."""
    method = UnaryCalls(service or GrpcFakeService()).table[name if name.startswith("/") else INFERENCE + name]
    data = request if isinstance(request, bytes) else request.SerializeToString()
    replier = Replier()
    as_call: Any = replier
    assert method.answer is not None
    method.answer(as_call, Message(data))
    if replier.error is not None:
        raise replier.error
    assert replier.answer is not None
    return replier.answer


def refused(name: str, request: Any, service: GrpcFakeService | None = None) -> EdgeServeError:
    with pytest.raises(EdgeServeError) as raised:
        ask(name, request, service)
    return raised.value


def test_every_call_of_the_service_has_an_answer() -> None:
    named = {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    there = {path.removeprefix(INFERENCE) for path in UnaryCalls(GrpcFakeService()).table} - {HEALTH_CHECK}

    assert named - there == {"ModelInfer", "ModelStreamInfer"}
    assert there <= named


def test_health() -> None:
    down = GrpcFakeService(alive=False)
    assert pb.ServerLiveResponse.FromString(ask("ServerLive")).live
    assert not pb.ServerReadyResponse.FromString(ask("ServerReady", service=down)).ready
    assert pb.ModelReadyResponse.FromString(ask("ModelReady", pb.ModelReadyRequest(name="m"))).ready
    assert not pb.ModelReadyResponse.FromString(ask("ModelReady", pb.ModelReadyRequest(name="nope"))).ready
    assert ask(HEALTH_CHECK) == b"\x08\x01"
    assert ask(HEALTH_CHECK, b"\x0a\x03any") == b"\x08\x01"
    assert ask(HEALTH_CHECK, service=down) == b"\x08\x02"
    assert refused(HEALTH_CHECK, b"\x0a\x1f").message == "Unable to parse request"


def test_a_version_that_cannot_answer_now_is_not_ready() -> None:
    class Failed(GrpcFakeService):
        def model_ready(self, name: str, version: str) -> bool:
            raise Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")

    request = pb.ModelReadyRequest(name="m", version="3")
    assert not pb.ModelReadyResponse.FromString(ask("ModelReady", request, Failed())).ready
    assert isinstance(refused("ModelReady", request, Failed(is_exiting=True)), Unavailable)


def test_metadata_and_configuration() -> None:
    assert pb.ServerMetadataResponse.FromString(ask("ServerMetadata")).name == "triton"
    model = pb.ModelMetadataResponse.FromString(ask("ModelMetadata", pb.ModelMetadataRequest(name="m")))
    assert (model.name, list(model.versions), model.platform) == ("m", ["3"], "python")
    config = pb.ModelConfigResponse.FromString(ask("ModelConfig", pb.ModelConfigRequest(name="m"))).config
    assert (config.name, config.max_batch_size) == ("m", 4)
    assert isinstance(refused("ModelConfig", pb.ModelConfigRequest(name="nope")), NotFound)


def test_statistics_have_every_duration() -> None:
    reply = pb.ModelStatisticsResponse.FromString(ask("ModelStatistics", pb.ModelStatisticsRequest(name="m")))

    (one,) = reply.model_stats
    assert (one.name, one.version) == ("m", "1")
    assert len(one.inference_stats.ListFields()) == 8


def test_the_repository() -> None:
    service = GrpcFakeService()
    reply = pb.RepositoryIndexResponse.FromString(ask("RepositoryIndex", service=service))
    assert [(one.name, one.version, one.state) for one in reply.models] == [("m", "3", "READY")]
    load = pb.RepositoryModelLoadRequest(model_name="m")
    load.parameters["config"].string_param = "{}"
    load.parameters["file:1/x"].bytes_param = b"\0"
    assert ask("RepositoryModelLoad", load, service) == b""
    unload = pb.RepositoryModelUnloadRequest(model_name="m")
    unload.parameters["unload_dependents"].bool_param = True
    assert ask("RepositoryModelUnload", unload, service) == b""
    assert service.loads == [("m", {"config": "{}", "file:1/x": b"\0"}), ("m", True)]


def test_invalid_repository_calls_are_refused() -> None:
    elsewhere = pb.RepositoryIndexRequest(repository_name="x")
    assert isinstance(refused("RepositoryIndex", elsewhere), Unsupported)
    load = pb.RepositoryModelLoadRequest(model_name="m")
    load.parameters["file:1/x"].string_param = "text"
    text = "invalid value type for load parameter 'file:1/x', expected bytes_param."
    assert refused("RepositoryModelLoad", load).message == text
    failing = GrpcFakeService(control_error=Unavailable("not now"))
    assert (
        refused("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m"), failing).message == "not now"
    )


def test_log_settings_are_shown_and_changed() -> None:
    service = GrpcFakeService()
    request = pb.LogSettingsRequest()
    request.settings["log_info"].bool_param = False
    request.settings["log_verbose_level"].uint32_param = 2
    reply = pb.LogSettingsResponse.FromString(ask("LogSettings", request, service))

    assert (service.log.info, service.log.verbose_level) == (False, 2)
    assert not reply.settings["log_info"].bool_param
    assert reply.settings["log_verbose_level"].uint32_param == 2
    assert reply.settings["log_format"].string_param == "default"


@pytest.mark.parametrize(
    ("name", "field", "value", "error"),
    [
        ("log_info", "string_param", "x", InvalidArgument("expect boolean for 'log_info'")),
        ("log_verbose_level", "bool_param", True, InvalidArgument("expect int32 for 'log_verbose_level'")),
        ("log_format", "string_param", "x", InvalidArgument("invalid argument for log_format, got: x")),
        ("log_file", "string_param", "x",
         Unsupported("log file location can not be updated through network protocol")),
    ],
)  # fmt: skip
def test_log_settings_of_another_kind_are_refused(name: str, field: str, value: object, error: EdgeServeError) -> None:
    request = pb.LogSettingsRequest()
    setattr(request.settings[name], field, value)

    found = refused("LogSettings", request)
    assert (type(found), found.message) == (type(error), error.message)


def test_trace_settings_are_shown_changed_and_cleared() -> None:
    service = GrpcFakeService()
    request = pb.TraceSettingRequest(model_name="m")
    request.settings["trace_level"].value.append("TIMESTAMPS")
    request.settings["trace_rate"].value.append("7")
    request.settings["trace_count"].value.extend([])
    reply = pb.TraceSettingResponse.FromString(ask("TraceSetting", request, service))

    ((model, changes),) = service.trace_changes
    assert (model, changes) == ("m", TraceChanges(("TIMESTAMPS",), 7, cleared=frozenset({"count"})))
    assert list(reply.settings["trace_level"].value) == ["OFF"]


def test_a_trace_setting_has_one_value() -> None:
    request = pb.TraceSettingRequest()
    request.settings["trace_rate"].value.extend(["1", "2"])

    assert refused("TraceSetting", request).message == "expect only 1 value for 'trace_rate'"


def test_the_trace_file_is_fixed_whatever_the_values() -> None:
    request = pb.TraceSettingRequest()
    request.settings["trace_file"].value.extend(["1", "2"])

    assert refused("TraceSetting", request).message == "trace file location can not be updated through network protocol"


def test_shared_memory() -> None:
    service = GrpcFakeService()
    register = pb.SystemSharedMemoryRegisterRequest(name="r", key="/edge-serve-none", byte_size=8)
    assert "Unable to open shared memory region" in refused("SystemSharedMemoryRegister", register, service).message
    assert ask("SystemSharedMemoryStatus", service=service) == b""
    assert ask("SystemSharedMemoryUnregister", service=service) == b""
    cuda = pb.CudaSharedMemoryRegisterRequest(name="g", raw_handle=bytes(64), device_id=1, byte_size=8)
    assert ask("CudaSharedMemoryRegister", cuda, service) == b""
    status = pb.CudaSharedMemoryStatusResponse.FromString(ask("CudaSharedMemoryStatus", service=service))
    assert {name: (one.name, one.device_id, one.byte_size) for name, one in status.regions.items()} == {
        "g": ("g", 1, 8)
    }
    assert ask("CudaSharedMemoryUnregister", service=service) == b""
    assert ask("CudaSharedMemoryStatus", service=service) == b""
    missing = pb.SystemSharedMemoryStatusRequest(name="r")
    assert isinstance(refused("SystemSharedMemoryStatus", missing, service), NotFound)
