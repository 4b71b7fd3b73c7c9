"""The private message classes: Triton's names and numbers, at peace with other copies of them."""

from __future__ import annotations

import pytest

from edge_serve.config.model import model_config_pb2
from tests.proto_faces import beside_tritons_client, face


def test_names_and_numbers_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc")
    theirs = pytest.importorskip("tritonclient.grpc").model_config_pb2.DESCRIPTOR.message_types_by_name
    ours = model_config_pb2.DESCRIPTOR.message_types_by_name

    for name, message in ours.items():
        found = {key: value for key, value in face(theirs[name]).items() if key in face(message)}
        # a client older or newer than our .proto lacks or adds fields; what both have must agree
        assert found == {key: value for key, value in face(message).items() if key in found}
        assert found
    assert set(ours) == set(theirs)


@pytest.mark.parametrize("first", [True, False])
def test_lives_in_one_process_with_tritons_client(first: bool) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("tritonclient.grpc")
    ours = "from edge_serve.config.model import model_config_pb2 as ours"
    use = "print(ours.ModelConfig(name='x').name, service_pb2.ModelInferRequest(model_name='y').model_name)"
    assert beside_tritons_client(ours, use, first=first) == "x y\n"


def test_module_offers_messages_enums_and_values() -> None:
    config = model_config_pb2.ModelConfig()
    config.input.add(name="x", data_type=model_config_pb2.TYPE_BF16)

    assert model_config_pb2.DataType.Name(config.input[0].data_type) == "TYPE_BF16"
    assert model_config_pb2.ModelConfig.FromString(config.SerializeToString()) == config
