"""JSON bodies; texts about `/v2/logging` and `/v2/trace/setting` are those of the transcripts `logging` and `trace`."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, Unsupported
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
from edge_serve.protocol.v2 import bodies


def test_server_metadata() -> None:
    text = bodies.metadata(ServerMetadata("triton", "2", ("a", "b(c)")))
    assert text == b'{"name":"triton","version":"2","extensions":["a","b(c)"]}'


def test_model_metadata() -> None:
    tensor = TensorMetadata("X", "INT32", (-1, 4))
    document = json.loads(bodies.metadata(ModelMetadata("m", ("1", "3"), "python", (tensor,), ())))
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


LOG = LogSettings("f.log", True, False, True, 3, "ISO8601")


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


# ---- the log ------------------------------------------------------------------------------------------------------


def test_the_log_settings_as_triton_names_them() -> None:
    assert json.loads(bodies.log_settings(LOG)) == {
        "log_file": "f.log",
        "log_info": True,
        "log_warning": False,
        "log_error": True,
        "log_verbose_level": 3,
        "log_format": "ISO8601",
    }


def test_shown_log_settings_can_be_posted() -> None:
    shown = json.loads(bodies.log_settings(LOG))
    shown["log_file"] = None

    assert bodies.read_log_settings(body(**shown), LOG) == LOG
    assert bodies.read_log_settings(body(**shown), LogSettings(file="f.log")) == LOG


@pytest.mark.parametrize("text", [b"{}", b"[]", b"7", b'{"nope":1}', b'{"log_info":null,"log_verbose_level":null}'])
def test_omitted_log_settings_are_unchanged(text: bytes) -> None:
    assert bodies.read_log_settings(text, LOG) == LOG


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"log_info": False}, "info", False),
        ({"log_warning": True}, "warning", True),
        ({"log_error": False}, "error", False),
        ({"log_verbose_level": 0}, "verbose_level", 0),
        ({"log_verbose_level": 2**63}, "verbose_level", 2**31 - 1),
        ({"log_format": "default"}, "format", "default"),
        ({"log_format": "json"}, "format", "json"),
    ],
)
def test_each_member_of_the_log_changes_one_setting(members: dict[str, Any], field: str, value: object) -> None:
    changed = bodies.read_log_settings(body(**members), LOG)

    assert [one.name for one in fields(LOG) if getattr(changed, one.name) != getattr(LOG, one.name)] == [field]
    assert getattr(changed, field) == value


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", Internal, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (body(log_info="true"), Internal, "attempt to access JSON non-boolean as boolean"),
        (body(log_info=1), Internal, "attempt to access JSON non-boolean as boolean"),
        (body(log_verbose_level=1.5), Internal, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (body(log_verbose_level=-1), Internal, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (body(log_verbose_level=True), Internal, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (body(log_format=1), Internal, "attempt to access JSON non-string as string"),
        (body(log_format="x"), Unavailable, "invalid argument for --log_format, got: x"),
        (body(log_file="x"), Unsupported, "log file location can not be updated through network protocol"),
        (body(log_file=5, log_info="x"), Unsupported, "log file location can not be updated through network protocol"),
    ],
)
def test_invalid_log_settings_are_refused(text: bytes, error: type[EdgeServeError], message: str) -> None:
    with pytest.raises(error) as caught:
        bodies.read_log_settings(text, LOG)
    assert caught.value.message == message


# ---- traces -------------------------------------------------------------------------------------------------------


def test_the_trace_settings_as_triton_names_them() -> None:
    values = TraceSettings(("TIMESTAMPS", "TENSORS"), 5, 10, 3, "t.json")

    assert json.loads(bodies.trace_settings(values)) == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "5",
        "trace_count": "10",
        "log_frequency": "3",
        "trace_file": "t.json",
        "trace_mode": "triton",
    }


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (b"{}", TraceChanges()),
        (b"[]", TraceChanges()),
        (body(trace_mode="opentelemetry", nope=1), TraceChanges()),
        (body(trace_level=["OFF"]), TraceChanges(level=())),
        (body(trace_level=["TENSORS", "TIMESTAMPS"]), TraceChanges(level=("TIMESTAMPS", "TENSORS"))),
        (body(trace_level=["TENSORS", "NOPE"]), TraceChanges(level=("TENSORS",))),
        (body(trace_level=["NOPE"]), TraceChanges()),
        (body(trace_level=[]), TraceChanges()),
        (body(trace_level=None), TraceChanges(cleared=frozenset({"level"}))),
        (body(trace_rate="0"), TraceChanges(rate=0)),
        (body(trace_rate=" +7"), TraceChanges(rate=7)),
        (body(trace_rate="4294967295"), TraceChanges(rate=2**32 - 1)),
        (body(trace_count="-1"), TraceChanges(count=-1)),
        (body(trace_count="2147483647"), TraceChanges(count=2**31 - 1)),
        (body(log_frequency="3"), TraceChanges(log_frequency=3)),
        (
            body(trace_rate=None, trace_count=None, log_frequency=None),
            TraceChanges(cleared=frozenset({"rate", "count", "log_frequency"})),
        ),
        (body(trace_rate="2", trace_count=None), TraceChanges(rate=2, cleared=frozenset({"count"}))),
    ],
)
def test_changes_of_the_traces(text: bytes, changes: TraceChanges) -> None:
    assert bodies.read_trace_changes(text) == changes


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (body(trace_level="OFF"), Internal, "attempt to access JSON non-array as array"),
        (body(trace_level=[5]), Internal, "attempt to access JSON non-string as string"),
        (body(trace_level=["OFF", "TENSORS"]), InvalidArgument, "Expect only one trace level 'OFF' is specified"),
        (body(trace_rate=5), Internal, "attempt to access JSON non-string as string"),
        (body(trace_rate=True), Internal, "attempt to access JSON non-string as string"),
        (body(trace_rate="abc"), InvalidArgument, "Unable to parse 'trace_rate', got: abc"),
        (body(trace_rate="1.5"), InvalidArgument, "Unable to parse 'trace_rate', got: 1.5"),
        (body(trace_rate="٣"), InvalidArgument, "Unable to parse 'trace_rate', got: ٣"),
        (
            body(trace_rate="-5"),  # Triton makes 4294967291 of it
            InvalidArgument,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -5",
        ),
        (
            body(trace_rate="4294967296"),
            InvalidArgument,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        (body(trace_count="x"), InvalidArgument, "Unable to parse 'trace_count', got: x"),
        (body(trace_count="-2"), InvalidArgument, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            body(trace_count="-2147483648"),
            InvalidArgument,
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2147483648",
        ),
        (
            body(trace_count="-2147483649"),
            InvalidArgument,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -2147483649",
        ),
        (
            body(log_frequency="9" * 5000),  # more digits than int() reads
            InvalidArgument,
            f"Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: {'9' * 5000}",
        ),
        (body(trace_file=None), Unsupported, "trace file location can not be updated through network protocol"),
        (
            body(trace_file="f", trace_rate="x"),
            Unsupported,
            "trace file location can not be updated through network protocol",
        ),
    ],
)
def test_invalid_trace_settings_are_refused(text: bytes, error: type[EdgeServeError], message: str) -> None:
    with pytest.raises(error) as caught:
        bodies.read_trace_changes(text)
    assert caught.value.message == message
