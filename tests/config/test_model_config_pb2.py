"""The private message classes: up to date, Triton's names and numbers, at peace with other copies of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from edge_serve.config import generate, model_config_pb2

Face = dict[str, tuple[object, ...]]


def test_generated_files_are_not_older_than_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generate.generate(tmp_path)

    for name in generate.GENERATED:
        assert (tmp_path / name).read_bytes() == (generate.ROOM / name).read_bytes(), "run edge_serve.config.generate"


def _face(message: Descriptor) -> Face:
    """Every field and enum value of a message and of those inside it, with what makes up the wire and text format."""
    face: Face = {}
    for field in message.fields:
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        type_name = getattr(field.message_type or field.enum_type, "full_name", "")
        face[field.full_name] = (field.number, field.type, field.is_repeated, oneof, type_name)
    for enum in message.enum_types:
        face[enum.full_name] = tuple((value.name, value.number) for value in enum.values)
    for nested in message.nested_types:
        face |= _face(nested)
    return face


def test_names_and_numbers_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc")
    theirs = pytest.importorskip("tritonclient.grpc").model_config_pb2.DESCRIPTOR.message_types_by_name
    ours = model_config_pb2.DESCRIPTOR.message_types_by_name

    for name, message in ours.items():
        found = {key: value for key, value in _face(theirs[name]).items() if key in _face(message)}
        # a client older or newer than our .proto lacks or adds fields; what both have must agree
        assert found == {key: value for key, value in _face(message).items() if key in found}
        assert found
    assert set(ours) == set(theirs)


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_lives_in_one_process_with_tritons_client(order: str) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("tritonclient.grpc")
    imports = ["from edge_serve.config import model_config_pb2 as ours", "from tritonclient.grpc import service_pb2"]
    if order == "theirs first":
        imports.reverse()
    use = "print(ours.ModelConfig(name='x').name, service_pb2.ModelInferRequest(model_name='y').model_name)"
    script = "\n".join([*imports, use])

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)

    assert (done.returncode, done.stdout) == (0, "x y\n"), done.stderr


def test_module_offers_messages_enums_and_values() -> None:
    config = model_config_pb2.ModelConfig()
    config.input.add(name="x", data_type=model_config_pb2.TYPE_BF16)

    assert model_config_pb2.DataType.Name(config.input[0].data_type) == "TYPE_BF16"
    assert model_config_pb2.ModelConfig.FromString(config.SerializeToString()) == config
