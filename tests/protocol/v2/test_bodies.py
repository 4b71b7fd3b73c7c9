from __future__ import annotations

import base64
import json

import pytest

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from edge_serve.messages.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
from edge_serve.protocol.v2 import bodies


def test_server_metadata() -> None:
    text = bodies.server_metadata(ServerMetadata("triton", "2", ("a", "b(c)")))
    assert text == b'{"name":"triton","version":"2","extensions":["a","b(c)"]}'


def test_model_metadata() -> None:
    tensor = TensorMetadata("X", "INT32", (-1, 4))
    document = json.loads(bodies.model_metadata(ModelMetadata("m", ("1", "3"), "python", (tensor,), ())))
    assert document == {
        "name": "m", "versions": ["1", "3"], "platform": "python",
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [-1, 4]}], "outputs": [],
    }  # fmt: skip


def test_the_index_leaves_out_what_is_not_known() -> None:
    entries = [IndexEntry("never"), IndexEntry("good", "1", "READY"), IndexEntry("bad", "2", "UNAVAILABLE", "unloaded")]
    assert json.loads(bodies.repository_index(entries)) == [
        {"name": "never"},
        {"name": "good", "version": "1", "state": "READY"},
        {"name": "bad", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]


def test_statistics() -> None:
    one = ModelStatistics(last_inference_ms=5, inference_count=7, execution_count=3, success=Duration(2, 30))
    one.batches = {4: BatchStatistics(compute_infer=Duration(1, 9)), 1: BatchStatistics()}
    one.responses = {"0": ResponseStatistics(success=Duration(1, 2))}
    (found,) = json.loads(bodies.statistics([("m", "1", one)]))["model_stats"]
    none = {"count": 0, "ns": 0}
    assert (found["name"], found["version"], found["last_inference"]) == ("m", "1", 5)
    assert (found["inference_count"], found["execution_count"], found["memory_usage"]) == (7, 3, [])
    assert found["inference_stats"] == {
        "success": {"count": 2, "ns": 30}, "fail": none, "queue": none, "compute_input": none, "compute_infer": none,
        "compute_output": none, "cache_hit": none, "cache_miss": none,
    }  # fmt: skip
    assert [batch["batch_size"] for batch in found["batch_stats"]] == [1, 4]
    assert found["batch_stats"][1]["compute_infer"] == {"count": 1, "ns": 9}
    assert found["response_stats"] == {
        "0": {
            "compute_infer": none, "compute_output": none, "success": {"count": 1, "ns": 2}, "fail": none,
            "empty_response": none, "cancel": none,
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "ready"),
    [(b"", False), (b"{}", False), (b"[]", False), (b'{"ready":true}', True), (b'{"ready":false}', False)],
)
def test_index_requests(body: bytes, ready: bool) -> None:
    assert bodies.read_index_request(body) is ready


@pytest.mark.parametrize("body", [b'{"ready":1}', b'{"ready":"yes"}', b'{"ready":null}', b"{"])
def test_wrong_index_requests(body: bytes) -> None:
    with pytest.raises(Internal):
        bodies.read_index_request(body)


def test_load_requests() -> None:
    assert bodies.read_load_request(b"") == {}
    assert bodies.read_load_request(b'{"other":1}') == {}
    encoded = base64.encodebytes(bytes(range(200))).decode()
    body = json.dumps({"parameters": {"config": "{}", "file:1/model.py": encoded}}).encode()
    assert bodies.read_load_request(body) == {"config": "{}", "file:1/model.py": bytes(range(200))}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b'{"parameters":{"config":5}}', Internal, "attempt to access JSON non-string as string"),
        (b'{"parameters":{"file:1/a":null}}', Internal, "attempt to access JSON non-string as string"),
        (b'{"parameters":{"nope":"x"}}', Internal, "unexpected error on creating Triton parameter"),
        (b'{"parameters":[]}', Internal, "attempt to get members for non-object"),
        (b'{"parameters":null}', Internal, "attempt to get members for non-object"),
        (b'{"parameters":{"file:1/a":"!!!not base64"}}', InvalidArgument, "load parameter 'file:1/a' is not base64"),
    ],
)
def test_wrong_load_requests(body: bytes, error: type[EdgeServeError], message: str) -> None:
    with pytest.raises(error, match=message):
        bodies.read_load_request(body)


@pytest.mark.parametrize(
    ("body", "dependents"),
    [(b"", False), (b"{}", False), (b'{"parameters":{"unload_dependents":true}}', True), (b'{"parameters":5}', False)],
)
def test_unload_requests(body: bytes, dependents: bool) -> None:
    assert bodies.read_unload_request(body) is dependents


def test_a_wrong_unload_request() -> None:
    with pytest.raises(Internal, match=r"^Unable to parse 'unload_dependents': attempt to access JSON non-boolean"):
        bodies.read_unload_request(b'{"parameters":{"unload_dependents":1}}')
