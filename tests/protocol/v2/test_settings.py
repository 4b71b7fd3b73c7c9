"""The bodies of `/v2/logging` and `/v2/trace/setting`; texts are those of the transcripts `logging` and `trace`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, Unsupported
from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.protocol.v2 import settings

LOG = LogSettings("f.log", True, False, True, 3, "ISO8601")


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


# ---- the log ------------------------------------------------------------------------------------------------------


def test_the_log_settings_as_triton_names_them() -> None:
    assert json.loads(settings.log_settings(LOG)) == {
        "log_file": "f.log",
        "log_info": True,
        "log_warning": False,
        "log_error": True,
        "log_verbose_level": 3,
        "log_format": "ISO8601",
    }


def test_what_is_shown_can_be_posted_again() -> None:
    shown = json.loads(settings.log_settings(LOG))
    shown["log_file"] = None

    assert settings.read_log_settings(body(**shown), LOG) == LOG
    assert settings.read_log_settings(body(**shown), LogSettings(file="f.log")) == LOG


@pytest.mark.parametrize("text", [b"{}", b"[]", b"7", b'{"nope":1}', b'{"log_info":null,"log_verbose_level":null}'])
def test_what_is_left_out_of_the_log_stays(text: bytes) -> None:
    assert settings.read_log_settings(text, LOG) == LOG


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
    changed = settings.read_log_settings(body(**members), LOG)

    assert [name for name in LOG.__slots__ if getattr(changed, name) != getattr(LOG, name)] == [field]
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
def test_what_the_log_does_not_take(text: bytes, error: type[EdgeServeError], message: str) -> None:
    with pytest.raises(error) as caught:
        settings.read_log_settings(text, LOG)
    assert caught.value.message == message


# ---- traces -------------------------------------------------------------------------------------------------------


def test_the_trace_settings_as_triton_names_them() -> None:
    values = TraceSettings(("TIMESTAMPS", "TENSORS"), 5, 10, 3, "t.json")

    assert json.loads(settings.trace_settings(values)) == {
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
    assert settings.read_trace_changes(text) == changes


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
def test_what_the_traces_do_not_take(text: bytes, error: type[EdgeServeError], message: str) -> None:
    with pytest.raises(error) as caught:
        settings.read_trace_changes(text)
    assert caught.value.message == message
