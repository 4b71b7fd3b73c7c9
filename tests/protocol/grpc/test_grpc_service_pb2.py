"""The private messages of the gRPC service: Triton's names and numbers, at peace with other copies."""

from __future__ import annotations

import pytest

from edge_serve.protocol.grpc import grpc_service_pb2
from tests.proto_faces import beside_tritons_client, face


def test_names_and_numbers_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc")
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR
    ours = grpc_service_pb2.DESCRIPTOR

    assert set(ours.message_types_by_name) == set(theirs.message_types_by_name)
    for name, message in ours.message_types_by_name.items():
        assert face(message) == face(theirs.message_types_by_name[name])


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


@pytest.mark.parametrize("first", [True, False])
def test_lives_in_one_process_with_tritons_client(first: bool) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("tritonclient.grpc")
    ours = "from edge_serve.protocol.grpc import grpc_service_pb2 as ours"
    use = "print(ours.ModelInferRequest(id='x').id, service_pb2.ModelInferRequest(id='y').id)"
    assert beside_tritons_client(ours, use, first=first) == "x y\n"
