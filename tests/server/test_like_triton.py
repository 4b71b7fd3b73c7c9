"""Answers of a real server that must be Triton 2.51's, over HTTP and over gRPC: one check for both."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.server.load import touch
from tests.server.running import Running, python_model, running

ROW = bytes(64)


@dataclass
class Both:
    """A server with the add/sub model `m`, and its two doors."""

    server: Running
    stub: Any
    root: Path

    def http(self, path: str, body: object = None) -> tuple[int, Any]:
        status, text = self.server.get(path) if body is None else self.server.post(path, body)
        return status, json.loads(text or b"null")

    def grpc(self, call: str, message: Any) -> tuple[str, Any]:
        """Code and reply, or code and text."""
        try:
            return "OK", getattr(self.stub, call)(message, timeout=30)
        except grpc.RpcError as error:
            return error.code().name, error.details()

    def stream(self, messages: list[Any], *metadata: tuple[str, str]) -> list[tuple[str, str]]:
        """(id, error) of each message of the stream, and its status if that is an error."""
        answers = []
        try:
            for one in self.stub.ModelStreamInfer(iter(messages), metadata=metadata, timeout=30):
                answers.append((one.infer_response.id, one.error_message))
        except grpc.RpcError as error:
            answers.append((error.code().name, error.details()))
        return answers


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    root = tmp_path_factory.mktemp("models")
    for name in ("m", "spare", "again"):
        python_model(root, name)
    python_model(root, "odd+name")
    flags = ("--model-control-mode=explicit", "--load-model=m", "--allow-grpc=true", "--grpc-port=0")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(f"--model-repository={root}", *flags))
        channel = stack.enter_context(grpc.insecure_channel(server.wait_for_log(r"gRPC on (\S+)")[1]))
        yield Both(server, service_pb2_grpc.GRPCInferenceServiceStub(channel), root)


def asked(outputs: list[Any] | None = None, rows: int = 1) -> dict[str, Any]:
    """A JSON request; without data where it has no rows."""
    data = [0] * 16 * rows
    inputs = [{"name": n, "datatype": "INT32", "shape": [rows, 16], "data": data} for n in ("INPUT0", "INPUT1")]
    return {"inputs": inputs, "outputs": outputs or []}


def message(model: str = "m", version: str = "", rows: int = 1, id: str = "") -> Any:
    """The same for gRPC."""
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name in ("INPUT0", "INPUT1"):
        made.inputs.add(name=name, datatype="INT32", shape=[rows, 16])
        made.raw_input_contents.append(ROW * rows)
    return made


def test_a_batch_of_no_rows_is_refused(both: Both) -> None:
    text = "[request id: <id_unknown>] input byte size mismatch for input 'INPUT1' for model 'm'. Expected 64, got 0"
    assert both.http("/v2/models/m/infer", asked(rows=0)) == (400, {"error": text})
    assert both.grpc("ModelInfer", message(rows=0)) == ("INVALID_ARGUMENT", text)
    odd = message(rows=0)
    odd.raw_input_contents[:] = [ROW, ROW]  # 2.51 takes these for a row
    assert both.grpc("ModelInfer", odd)[0] == "INVALID_ARGUMENT"


def test_an_output_that_is_listed_twice_is_answered_once(both: Both) -> None:
    wanted = [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"classification": 1}}]
    status, answer = both.http("/v2/models/m/infer", asked(wanted))
    assert (status, [(one["name"], one["datatype"]) for one in answer["outputs"]]) == (
        200,
        [("OUTPUT0", "INT32"), ("OUTPUT1", "INT32")],
    )
    twice = message()
    for _ in range(2):
        twice.outputs.add(name="OUTPUT1")
    code, reply = both.grpc("ModelInfer", twice)
    assert (code, [(one.name, one.datatype) for one in reply.outputs]) == ("OK", [("OUTPUT1", "INT32")])
    twice.outputs[0].parameters["classification"].int64_param = 1
    code, reply = both.grpc("ModelInfer", twice)
    assert (code, [(one.name, one.datatype) for one in reply.outputs]) == ("OK", [("OUTPUT1", "BYTES")])


def test_version_0_is_a_version_that_is_not_there(both: Both) -> None:
    text = "Request for unknown model: 'm' version 0 is not found"
    for path in ("", "/config"):
        assert both.http(f"/v2/models/m/versions/0{path}") == (404, {"error": text})
    assert both.http("/v2/models/m/versions/0/infer", asked()) == (404, {"error": text})
    assert both.grpc("ModelMetadata", pb.ModelMetadataRequest(name="m", version="0")) == ("NOT_FOUND", text)
    assert both.grpc("ModelInfer", message(version="0")) == ("NOT_FOUND", text)
    text = "requested model version is not available for model 'm'"
    assert both.http("/v2/models/m/versions/0/stats") == (400, {"error": text})
    assert both.grpc("ModelReady", pb.ModelReadyRequest(name="m", version="0"))[1].ready is False


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("x", "failed to get model version from specified version string 'x' (details: stol), version should be an"
              " integral value > 0"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
        (str(1 << 63), "failed to get model version from specified version string '9223372036854775808' (details: "
                       "stol), version should be an integral value > 0"),
    ],
)  # fmt: skip
def test_a_version_that_is_no_version(both: Both, version: str, text: str) -> None:
    assert both.grpc("ModelInfer", message(version=version)) == ("INVALID_ARGUMENT", text)
    for call in ("ModelReady", "ModelMetadata", "ModelConfig"):
        asks = getattr(pb, f"{call}Request")(name="unknown", version=version)
        assert both.grpc(call, asks) == ("INVALID_ARGUMENT", text)
    if version.isdigit():
        assert both.http(f"/v2/models/m/versions/{version}") == (400, {"error": text})


def test_data_that_is_not_of_its_shape(both: Both) -> None:
    for count in (15, 17):
        short = asked()
        short["inputs"][0]["data"] = [0] * count
        text = "Unable to parse 'data': Shape does not match true shape of 'data' field"
        assert both.http("/v2/models/m/infer", short) == (500, {"error": text})


def test_shared_memory_of_grpc_needs_its_name_and_size(both: Both) -> None:
    made = message()
    made.inputs[0].parameters["shared_memory_region"].int64_param = 1
    text = "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param."
    assert both.grpc("ModelInfer", made) == ("INVALID_ARGUMENT", text)
    made = message()
    made.outputs.add(name="OUTPUT0").parameters["shared_memory_region"].string_param = "r"
    text = "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
    assert both.grpc("ModelInfer", made) == ("INVALID_ARGUMENT", f"{text}'OUTPUT0'")


@pytest.mark.parametrize("metadata", [(), (("triton_grpc_error", "true"),)])
def test_a_refused_request_does_not_end_its_stream(both: Both, metadata: tuple[tuple[str, str], ...]) -> None:
    messages = [message(id="1"), message("unknown", id="2"), message(version="9", id="3"), message(id="4")]
    assert both.stream(messages, *metadata) == [
        ("1", ""),
        ("2", "Request for unknown model: 'unknown' is not found"),
        ("3", "Request for unknown model: 'm' version 9 is not found"),
        ("4", ""),
    ]


def test_a_percent_encoded_name_is_decoded(both: Both) -> None:
    """Triton decodes none, and asks the repository for `odd%2Bname`."""
    for name in ("odd%2Bname", "odd+name"):
        assert both.http(f"/v2/repository/models/{name}/load", {}) == (200, None)
        assert both.http(f"/v2/models/{name}")[1]["name"] == "odd+name"


def test_a_health_check_without_a_host_is_answered(both: Both) -> None:
    """RFC 9112 wants 400. Triton answers, nothing depends on the header, and short health checks leave it out."""
    with socket.create_connection(("127.0.0.1", both.server.http), timeout=30) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert client.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_the_configuration_of_a_load_stays_until_a_file_changes_or_the_model_is_unloaded(both: Both) -> None:
    load, unload = ("/v2/repository/models/spare/" + verb for verb in ("load", "unload"))

    def most_rows() -> int:
        return int(both.http("/v2/models/spare/config")[1]["max_batch_size"])

    assert both.http(load, {}) == (200, None)
    _, config = both.http("/v2/models/spare/config")
    override = {"parameters": {"config": json.dumps({**config, "max_batch_size": 2})}}
    for undo in ("touch", "unload"):
        assert most_rows() == 8
        assert both.http(load, override) == (200, None)
        for _ in range(2):
            assert both.http(load, {}) == (200, None)
            assert most_rows() == 2
        if undo == "touch":
            touch(both.root / "spare")
        else:
            assert both.http(unload, {}) == (200, None)
        assert both.http(load, {}) == (200, None)
    assert most_rows() == 8


def test_counters_of_a_version_go_on_when_it_is_loaded_again(both: Both) -> None:
    """As in 2.51, statistics begin anew with the new version, metrics go on; both end with an unload."""

    def counted() -> tuple[list[str], int]:
        page = both.server.get("/metrics", both.server.metrics)[1].decode()
        names = "request_success|count|exec_count"
        found = re.findall(rf'^nv_inference_(?:{names}){{model="again",version="1"}} (.*)', page, re.MULTILINE)
        (row,) = both.http("/v2/models/again/stats")[1]["model_stats"]
        return found, row["inference_count"]

    load, infer = "/v2/repository/models/again/load", "/v2/models/again/infer"
    assert both.http(load, {}) == (200, None)
    assert both.http(infer, asked(rows=2))[0] == 200
    assert counted() == (["1", "2", "1"], 2)
    touch(both.root / "again")
    assert both.http(load, {}) == (200, None)
    assert counted() == (["1", "2", "1"], 0)
    assert both.http(infer, asked())[0] == 200
    assert counted() == (["2", "3", "2"], 1)
    assert both.http("/v2/repository/models/again/unload", {}) == (200, None)
    assert both.http(load, {}) == (200, None)
    assert counted() == (["0", "0", "0"], 0)
