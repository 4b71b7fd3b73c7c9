"""Trace files are valid JSON whenever they are looked at."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_serve.messages.infer import InferRequest
from edge_serve.messages.settings import TraceSettings
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes
from edge_serve.messages.trace import MOST_BYTES, TensorRecord, Trace
from edge_serve.observe.tracing import files as trace_files
from edge_serve.observe.tracing.files import MOST_MEMORY, MOST_WAITING, TraceBatch, TraceFiles, append, entries
from tests.observe.tracing.recorder import Collected


def trace(number: int, request_id: str = "") -> Trace:
    made = Trace(number, Collected(), timestamps=True, tensors=False)
    made.model_name, made.model_version, made.request_id = "m", "3", request_id
    made.mark("REQUEST_START", 100 * number)
    return made


def told(number: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "model_name": "m", "model_version": 3},
        {"id": number, "timestamps": [{"name": "REQUEST_START", "ns": 100 * number}]},
    ]


def settings(path: Path, frequency: int = 0, count: int = -1) -> TraceSettings:
    return TraceSettings(("TIMESTAMPS",), log_frequency=frequency, file=str(path), count=count)


def wait_until_written(files: TraceFiles) -> None:
    """Until the thread has done what it was given."""
    assert files.written(10)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_trace_file_contains_timestamps_and_tensors() -> None:
    made = Trace(7, Collected(), timestamps=True, tensors=True)
    made.model_name, made.model_version, made.request_id = "m", "03", "r"
    made.add(1, 2, 3, 4)
    tensors = [
        InferTensor("t", DataType.BYTES, (2,), join_bytes([b"a", b"\xff"])),
        InferTensor("n", DataType.INT32, (1, 2), bytes(4) + b"\5\0\0\0"),
    ]
    made.add_tensors("TENSOR_QUEUE_INPUT", tensors)

    assert list(entries(made)) == [
        {"id": 7, "model_name": "m", "model_version": 3, "request_id": "r"},
        {"id": 7, "timestamps": [{"name": "COMPUTE_START", "ns": 1}]},
        {"id": 7, "timestamps": [{"name": "COMPUTE_INPUT_END", "ns": 2}]},
        {"id": 7, "timestamps": [{"name": "COMPUTE_OUTPUT_START", "ns": 3}]},
        {"id": 7, "timestamps": [{"name": "COMPUTE_END", "ns": 4}]},
        {
            "id": 7,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "t", "data": '"a","�"', "shape": "2", "dtype": "BYTES"},
        },
        {
            "id": 7,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "n", "data": "0,5", "shape": "1,2", "dtype": "INT32"},
        },
    ]


def test_times_before_the_start_of_a_request_are_written_first() -> None:
    made = Trace(7, Collected(), timestamps=True, tensors=False)
    made.model_name, made.model_version = "m", "3"
    for number, name in enumerate(["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "REQUEST_END"]):
        made.mark(name, number)

    assert ["model_name" in entry for entry in entries(made)] == [False, False, True, False, False]


def test_a_trace_of_an_endless_stream_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_serve.messages.trace.MOST_BYTES", 100_000)
    made = Trace(7, Collected(), timestamps=True, tensors=True)
    made.model_name, made.model_version = "m", "3"
    for number in range(1000):
        made.mark("GRPC_SEND_START", number)
        made.mark("GRPC_SEND_END", number, late=True)
        made.add_tensors("TENSOR_BACKEND_OUTPUT", [InferTensor("t", DataType.UINT8, (100,), bytes(100))])
        made.part("n", "4", InferRequest("n"))
    made.close()

    written = [entry for one in made.group for entry in entries(one)]
    assert made.memory <= 100_000
    assert len(written) < 1000
    names = [mark["name"] for entry in written for mark in entry.get("timestamps", ())]
    assert names.count("TRACE_CUT") == 1


def test_a_tensor_that_is_too_large_for_a_trace_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Trace(1, Collected(), timestamps=True, tensors=True)
    made.model_name, made.model_version = "m", "3"
    made.mark("REQUEST_START", 100)
    made.add_tensors("TENSOR_QUEUE_INPUT", [InferTensor("t", DataType.UINT8, (MOST_BYTES,), bytes(MOST_BYTES))])
    made.mark("REQUEST_END", 200)
    made.close()
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(made, settings(path), TraceBatch())
    files.close()

    assert caplog.messages == []
    names = [mark["name"] for entry in read(path) for mark in entry.get("timestamps", ())]
    assert names == ["REQUEST_START", "REQUEST_END", "TRACE_CUT"]
    assert not any("tensor" in entry for entry in read(path))


def test_traces_that_were_cut_are_written_beside_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()

    def wait_and_append(*arguments: Any) -> None:
        disk.wait(10)
        append(*arguments)

    monkeypatch.setattr(trace_files, "append", wait_and_append)
    files, batch, path = TraceFiles(), TraceBatch(), tmp_path / "t.json"
    files.add(trace(1), settings(path, frequency=100), batch)
    for number in (2, 3):
        made = large(number)
        while not made.cut_ns:
            made.add_tensors("TENSOR_BACKEND_OUTPUT", [MEBIBYTE])
        files.add(made, settings(path), TraceBatch())
    disk.set()
    files.flush(settings(path, frequency=100), batch)
    files.close()

    assert caplog.messages == []
    assert [entry["id"] for entry in read(path) if "model_name" in entry] == [2, 3]
    assert read(tmp_path / "t.json.0") == told(1)


def test_child_traces_are_written_with_their_parent(tmp_path: Path) -> None:
    files, path = TraceFiles(), tmp_path / "t.json"
    root = trace(1)
    root.part("n", "4", InferRequest("n", id="r"))
    files.add(root, settings(path), TraceBatch())
    files.close()

    assert [entry for entry in read(path) if "model_name" in entry] == [
        {"id": 1, "model_name": "m", "model_version": 3},
        {"id": 100, "model_name": "n", "model_version": 4, "request_id": "r", "parent_id": 1},
    ]


def test_traces_are_appended_one_by_one(tmp_path: Path) -> None:
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(trace(1), settings(path), TraceBatch())
    files.add(trace(2, "r"), settings(path), TraceBatch())
    files.close()

    one, two = told(1), told(2)
    two[0]["request_id"] = "r"
    assert read(path) == one + two


def test_a_file_of_an_earlier_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    files = TraceFiles()
    files.add(trace(1), settings(path), TraceBatch())
    files.close()

    assert read(path) == told(1)


def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(trace(1), settings(path), TraceBatch())
    files.close()
    path.unlink()
    files.add(trace(2), settings(path), TraceBatch())
    files.close()

    assert read(path) == told(2)


def test_with_a_frequency_files_are_numbered_and_hold_that_many(tmp_path: Path) -> None:
    files, batch, values = TraceFiles(), TraceBatch(), settings(tmp_path / "t.json", 2)
    for number in range(1, 6):
        files.add(trace(number), values, batch)
    files.flush(values, batch)
    files.close()

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["t.json.0", "t.json.1", "t.json.2"]
    assert [read(tmp_path / f"t.json.{i}") for i in range(3)] == [told(1) + told(2), told(3) + told(4), told(5)]


def test_flush_writes_what_is_kept_and_nothing_twice(tmp_path: Path) -> None:
    files, batch, values = TraceFiles(), TraceBatch(), settings(tmp_path / "t.json", 9)
    files.add(trace(1), values, batch)
    files.flush(values, batch)
    files.flush(values, batch)
    files.close()

    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json.0"]


def test_traces_of_a_used_up_count_are_written_to_a_numbered_file(tmp_path: Path) -> None:
    files, batch, path = TraceFiles(), TraceBatch(), tmp_path / "t.json"
    for number, left in ((1, 2), (2, 1), (3, 0)):
        files.add(trace(number), settings(path, count=left), batch)
    files.flush(settings(path, count=0), batch)
    files.add(trace(4), settings(path, count=5), batch)
    files.flush(settings(path, count=5), batch)
    files.close()

    assert read(tmp_path / "t.json.0") == told(1) + told(2) + told(3)
    assert read(path) == told(4), "the setting changed before the count was used up"


def test_with_a_frequency_what_is_left_of_a_count_is_a_file_too(tmp_path: Path) -> None:
    files, batch, path = TraceFiles(), TraceBatch(), tmp_path / "t.json"
    for number, left in ((1, 2), (2, 1), (3, 0)):
        files.add(trace(number), settings(path, 2, left), batch)
    files.flush(settings(path, 2, 0), batch)
    files.close()

    assert [read(tmp_path / f"t.json.{number}") for number in (0, 1)] == [told(1) + told(2), told(3)]
    assert not path.exists()


def test_batches_of_one_file_that_are_written_early_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "MOST_WAITING", 0)  # each trace goes to its file at once
    files, batches, values = TraceFiles(), (TraceBatch(), TraceBatch()), settings(tmp_path / "t.json", 2)
    for number in range(1, 5):
        files.add(trace(number), values, batches[number % 2])
    files.close()

    assert [read(tmp_path / f"t.json.{number}") for number in (0, 1)] == [told(1) + told(3), told(2) + told(4)]


def test_lost_traces_are_reported_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, path = TraceFiles(), tmp_path / "later" / "t.json"
    for number in range(1, 101):
        files.add(trace(number), settings(path), TraceBatch())
    wait_until_written(files)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"traces are lost, '{path}' cannot be written: No such file or directory")

    path.parent.mkdir()
    files.add(trace(101), settings(path), TraceBatch())
    files.add(trace(102), settings(path), TraceBatch())
    files.close()

    assert caplog.messages[1:] == [f"traces are written to '{path}' again; 100 were lost"]
    assert read(path) == told(101) + told(102)


def test_traces_that_are_lost_at_the_end_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, batch, path = TraceFiles(), TraceBatch(), tmp_path / "no" / "t.json"
    for number in range(1, 4):
        files.add(trace(number), settings(path, frequency=2), batch)
    files.flush(settings(path, frequency=2), batch)
    files.close()

    assert caplog.messages[1:] == [f"3 traces were lost: '{path}' could not be written"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_a_path_that_is_no_file_is_reported_and_hangs_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path("/dev/full")
    files = TraceFiles()
    files.add(trace(1), settings(path), TraceBatch())
    files.close()

    reason = "Is a directory" if kind == "directory" else "it is no regular file"
    assert f"'{path}' cannot be written: {reason}" in caplog.text


def test_a_full_disk_leaves_an_array_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    append(str(path), [trace(1)], first=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append(str(path), [trace(2)], first=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert read(path) == told(1)
    append(str(path), [trace(3)], first=False)
    assert read(path) == told(1) + told(3)


@pytest.mark.parametrize(("frequency", "traces", "content"), [(0, 1, told(2)), (2, 1, told(2)), (2, 0, "earlier")])
def test_after_a_write_that_failed_the_next_one_replaces_the_file_of_an_earlier_server(
    frequency: int, traces: int, content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("t.json.0" if frequency else "t.json")
    path.mkdir()
    monkeypatch.setattr(trace_files, "MOST_WAITING", 0)  # each trace goes to its file at once
    files, batch, values = TraceFiles(), TraceBatch(), settings(tmp_path / "t.json", frequency)
    files.add(trace(1), values, batch)
    wait_until_written(files)

    path.rmdir()
    path.write_text('"earlier"\n')
    for number in range(2, 2 + traces):
        files.add(trace(number), values, batch)
    files.flush(values, batch)
    files.close()

    assert read(path) == content


def test_an_error_while_tensors_become_text_leaves_an_array_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: TensorRecord, *_: Any) -> str:
        raise MemoryError

    path = tmp_path / "t.json"
    files = TraceFiles()
    files.add(trace(1), settings(path), TraceBatch())
    wait_until_written(files)
    two = trace(2)
    two.group.append(large(3))
    with monkeypatch.context() as patched:
        patched.setattr(TensorRecord, "text", fail)
        patched.setattr(trace_files, "_AT_ONCE", 1)  # so that some of it is in the file already
        files.add(two, settings(path), TraceBatch())
        wait_until_written(files)
    assert read(path) == told(1)

    files.add(trace(4), settings(path), TraceBatch())
    files.close()
    assert read(path) == told(1) + told(4)


MEBIBYTE = InferTensor("t", DataType.BYTES, (1,), join_bytes([b"x" * (1 << 20)]))


def large(number: int) -> Trace:
    """A trace with a tensor of 1 MiB."""
    made = Trace(number, Collected(), timestamps=False, tensors=True)
    made.model_name, made.model_version = "m", "3"
    made.add_tensors("TENSOR_QUEUE_INPUT", [MEBIBYTE])
    return made


def test_traces_that_wait_in_many_batches_take_bounded_memory(tmp_path: Path) -> None:
    files, values = TraceFiles(), settings(tmp_path / "t.json", 1000)
    for number in range(1, 41):
        files.add(large(number), values, TraceBatch())
        wait_until_written(files)
        assert files.memory < MOST_WAITING + (2 << 20)
    files.close()


@pytest.mark.parametrize("frequency", [0, 1000])
def test_traces_that_wait_take_bounded_memory(frequency: int, tmp_path: Path) -> None:
    """A limited count, or a high frequency, keeps no more than `MOST_WAITING` bytes of traces."""
    files, batch, values = TraceFiles(), TraceBatch(), settings(tmp_path / "t.json", frequency, -1 if frequency else 0)
    most = 0
    for number in range(1, 41):
        files.add(large(number), values, batch)
        wait_until_written(files)
        most = max(most, files.memory)
    files.flush(values, batch)
    files.close()

    assert most < MOST_WAITING + (2 << 20)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json.0"]
    assert [entry["id"] for entry in read(tmp_path / "t.json.0") if "model_name" in entry] == list(range(1, 41))


def test_traces_that_come_faster_than_they_are_written_are_lost_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr(trace_files, "append", lambda *_: disk.wait(10))
    files, path = TraceFiles(), tmp_path / "t.json"
    for number in range(100):
        files.add(large(number), settings(path), TraceBatch())
    held = files.memory
    disk.set()
    wait_until_written(files)
    files.add(large(100), settings(path), TraceBatch())
    files.close()

    assert held <= MOST_MEMORY
    assert len(caplog.messages) == 2
    assert "they come faster than they are written" in caplog.messages[0]
    assert re.search(r"again; 3[0-9] were lost", caplog.messages[1])


def test_tensors_become_text_in_the_thread_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    text = TensorRecord.text

    def watched(record: TensorRecord, *arguments: Any) -> str:
        threads.add(threading.current_thread().name)
        return text(record, *arguments)

    monkeypatch.setattr(TensorRecord, "text", watched)
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(large(1), settings(path), TraceBatch())
    files.close()

    assert threads == {"trace files"}


def test_without_traces_there_is_no_thread() -> None:
    before = set(threading.enumerate())  # the thread of a test before this one may still end
    files = TraceFiles()
    files.close()

    assert "trace files" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr(trace_files, "append", lambda *_: disk.wait(10))
    monkeypatch.setattr(trace_files, "CLOSE_SECONDS", 0.05)
    files = TraceFiles()
    monkeypatch.setattr(trace_files, "_STOP_SECONDS", 0.05)
    files.add(large(1), settings(tmp_path / "t.json"), TraceBatch())
    began = time.monotonic()
    files.close()

    assert time.monotonic() - began < 5
    disk.set()
    assert re.search(r"^traces are lost: 1\d{6} bytes of them were not written within 0.05 s", caplog.messages[0])


def cut(number: int) -> Trace:
    """A trace that has as many values of tensors as a trace may have."""
    made = trace(number)
    made.tensors = []
    tensor = InferTensor("t", DataType.UINT8, (1 << 20,), bytes(range(256)) * 4096)
    while not made.cut_ns:
        made.add_tensors("TENSOR_BACKEND_OUTPUT", [tensor])
    return made


def test_a_trace_that_takes_too_long_at_the_end_leaves_an_array_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "CLOSE_SECONDS", 0.05)
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(trace(1), settings(path), TraceBatch())
    wait_until_written(files)
    files.add(cut(2), settings(path), TraceBatch())
    files.add(trace(3), settings(path), TraceBatch())
    files.close()

    assert read(path) == told(1)
    (message,) = caplog.messages
    assert "trace fewer requests or no tensors" in message


def test_traces_that_wait_when_the_time_is_over_leave_the_files_of_an_earlier_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def take_long(record: TensorRecord, proceed: Callable[[], None]) -> str:
        begun.set()
        while True:
            proceed()
            time.sleep(0.001)

    monkeypatch.setattr(trace_files, "CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(TensorRecord, "text", take_long)
    files, values, batch = TraceFiles(), settings(tmp_path / "t.json", frequency=1), TraceBatch()
    for number in range(2):
        (tmp_path / f"t.json.{number}").write_text('"earlier"\n')
    files.add(large(1), values, batch)
    files.add(trace(2), values, batch)
    assert begun.wait(10)
    files.close()

    assert read(tmp_path / "t.json.0") == [], "it was begun"
    assert read(tmp_path / "t.json.1") == "earlier"


def test_an_empty_array_gets_its_first_traces(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[]")
    append(str(path), [trace(1)], first=False)
    assert read(path) == told(1)


@pytest.mark.slow
def test_a_trace_that_was_cut_is_written_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, path = TraceFiles(), tmp_path / "t.json"
    files.add(cut(1), settings(path), TraceBatch())
    files.close()

    assert caplog.messages == []
    assert [entry["id"] for entry in read(path) if "model_name" in entry] == [1]
