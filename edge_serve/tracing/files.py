"""Trace files: JSON arrays, written by a thread of their own, valid whenever they are looked at."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edge_serve.messages.settings import TraceSettings
from edge_serve.messages.trace import Trace

log = logging.getLogger(__name__)


def entries(trace: Trace) -> list[dict[str, Any]]:
    """The objects that tell of one trace; as in Triton's files, what came before its request began stands first."""
    about: dict[str, Any] = {"id": trace.id, "model_name": trace.model_name, "model_version": int(trace.model_version)}
    if trace.request_id:
        about["request_id"] = trace.request_id
    if trace.parent_id:
        about["parent_id"] = trace.parent_id
    marks = trace.timestamps or []
    made = [{"id": trace.id, "timestamps": [{"name": name, "ns": ns}]} for name, ns in marks]
    made.insert(next((place for place, mark in enumerate(marks) if mark[0] == "REQUEST_START"), 0), about)
    for record in trace.tensors or ():
        tensor = {
            "name": record.name,
            "data": record.data,
            "shape": ",".join(map(str, record.shape)),
            "dtype": record.datatype,
        }
        made.append({"id": trace.id, "activity": record.activity, "tensor": tensor})
    return made


class TraceFiles:
    """Takes traces that are complete, those of a client's requests with all that belong to them.

    Where neither `log_frequency` nor `count` is set, all go to one file, each as it comes. With a frequency, files are
    numbered and hold that many. Those of a limited count are kept until it is used up, and go to a numbered file then
    (server src/tracer.cc, `WriteTrace`); what is left when the setting changes goes to the one file without a
    frequency, and to a numbered one with it.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        #: by the file, and whether what is left of it is for a numbered one
        self._waiting: dict[tuple[str, bool], list[Trace]] = {}
        self._next_number: dict[str, int] = {}
        self._begun: set[str] = set()

    def add(self, trace: Trace, values: TraceSettings) -> None:
        """Write a trace, or keep it until enough are together. Never blocks."""
        if not values.log_frequency and values.count < 0:
            self._write(values.file, [trace])
            return
        waiting = self._waiting.setdefault((values.file, values.log_frequency > 0), [])
        waiting.append(trace)
        if len(waiting) == values.log_frequency:
            self.flush(values.file)

    def flush(self, file: str) -> None:
        """Write what is kept for `file`: the setting changes."""
        numbered, others = self._waiting.pop((file, True), None), self._waiting.pop((file, False), None)
        if numbered:
            self._write_numbered(file, numbered)
        if others:
            self._write(file, others)

    def complete(self, file: str) -> None:
        """Write what is kept for `file` to a numbered one: the count is used up."""
        for numbered in (True, False):
            waiting = self._waiting.pop((file, numbered), None)
            if waiting:
                self._write_numbered(file, waiting)

    def close(self) -> None:
        """Write everything; blocks until it is written."""
        for file, _ in list(self._waiting):
            self.flush(file)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _write(self, file: str, traces: list[Trace]) -> None:
        first = file not in self._begun
        self._begun.add(file)
        self._do(_append, file, traces, first)

    def _write_numbered(self, file: str, traces: list[Trace]) -> None:
        number = self._next_number.get(file, 0)
        self._next_number[file] = number + 1
        self._do(_append, f"{file}.{number}", traces, True)

    def _do(self, write: Any, *arguments: Any) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "trace files")
        self._thread.submit(write, *arguments)


def _append(path: str, traces: list[Trace], first: bool) -> None:
    """Put traces, and those that belong to them, into the array in file `path`, a new one when `first`."""
    items = [
        json.dumps(entry, separators=(",", ":")) for trace in traces for one in trace.group for entry in entries(one)
    ]
    try:
        first = first or not os.path.exists(path)  # somebody took it away
        with open(path, "wb" if first else "r+b") as file:
            if first:
                file.write(b"[")
            else:
                file.seek(-1, 2)  # before the closing bracket
                file.write(b",")
            file.write(",".join(items).encode() + b"]")
    except OSError as error:
        log.error("traces are lost, '%s' cannot be written: %s", path, error.strerror)
