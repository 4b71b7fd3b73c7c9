"""The private messages of the gRPC service: up to date, Triton's names and numbers, at peace with other copies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from edge_serve.protocol import grpc_generate, grpc_service_pb2

Face = dict[str, tuple[object, ...]]


def test_generated_files_are_not_older_than_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    grpc_generate.generate(tmp_path)

    for name in grpc_generate.GENERATED:
        assert (tmp_path / name).read_bytes() == (grpc_generate.ROOM / name).read_bytes(), "make proto"


def _face(message: Descriptor) -> Face:
    face: Face = {}
    for field in message.fields:
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        type_name = getattr(field.message_type or field.enum_type, "full_name", "")
        face[field.full_name] = (field.number, field.type, field.is_repeated, oneof, type_name)
    for nested in message.nested_types:
        face |= _face(nested)
    return face


def test_names_and_numbers_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc")
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR
    ours = grpc_service_pb2.DESCRIPTOR

    assert set(ours.message_types_by_name) == set(theirs.message_types_by_name)
    for name, message in ours.message_types_by_name.items():
        assert _face(message) == _face(theirs.message_types_by_name[name])


def test_calls_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc")
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    ours = grpc_service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    def calls(service: object) -> list[tuple[str, str, str, bool, bool]]:
        return [
            (one.name, one.input_type.name, one.output_type.name, one.client_streaming, one.server_streaming)
            for one in service.methods  # type: ignore[attr-defined]  # descriptors have few types
        ]

    assert calls(ours) == calls(theirs)


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_lives_in_one_process_with_tritons_client(order: str) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("tritonclient.grpc")
    imports = ["from edge_serve.protocol import grpc_service_pb2 as ours", "from tritonclient.grpc import service_pb2"]
    if order == "theirs first":
        imports.reverse()
    use = "print(ours.ModelInferRequest(id='x').id, service_pb2.ModelInferRequest(id='y').id)"

    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*imports, use])], capture_output=True, text=True, timeout=50, check=False
    )

    assert (done.returncode, done.stdout) == (0, "x y\n"), done.stderr
