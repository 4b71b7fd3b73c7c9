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
    """The objects that tell of one trace."""
    about: dict[str, Any] = {"id": trace.id, "model_name": trace.model_name, "model_version": int(trace.model_version)}
    if trace.request_id:
        about["request_id"] = trace.request_id
    made = [about]
    made += [{"id": trace.id, "timestamps": [{"name": name, "ns": ns}]} for name, ns in trace.timestamps or ()]
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
    """Takes finished traces.

    Without `log_frequency` all go to one file, each as it comes. With it, files are numbered and hold that many.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: dict[str, list[Trace]] = {}
        self._next_number: dict[str, int] = {}
        self._begun: set[str] = set()

    def add(self, trace: Trace, values: TraceSettings) -> None:
        """Write a trace, or keep it until enough are together. Never blocks."""
        if values.log_frequency:
            waiting = self._waiting.setdefault(values.file, [])
            waiting.append(trace)
            if len(waiting) >= values.log_frequency:
                self.flush(values.file)
            return
        first = values.file not in self._begun
        self._begun.add(values.file)
        self._do(_append, values.file, [trace], first)

    def flush(self, file: str) -> None:
        """Write what is kept for `file`."""
        waiting = self._waiting.pop(file, None)
        if waiting:
            number = self._next_number.get(file, 0)
            self._next_number[file] = number + 1
            self._do(_append, f"{file}.{number}", waiting, True)

    def close(self) -> None:
        """Write everything; blocks until it is written."""
        for file in list(self._waiting):
            self.flush(file)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _do(self, write: Any, *arguments: Any) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "trace files")
        self._thread.submit(write, *arguments)


def _append(path: str, traces: list[Trace], first: bool) -> None:
    """Put traces into the array in file `path`, a new one when `first`."""
    items = [json.dumps(entry, separators=(",", ":")) for trace in traces for entry in entries(trace)]
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
