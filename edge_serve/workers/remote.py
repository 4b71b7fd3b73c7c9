"""What the worker asks of and tells the front end: the `backends.host.Host` of a real worker.

CALL and CALL_RESULT carry a JSON object and tensor bytes behind it: its length, the JSON, the bytes.
Worker's side: the standard library and NumPy only. `pack` and `unpack` serve both sides.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.backends.host import Call, MetricUpdate
from edge_serve.tensors import BY_NAME, Buffer, Tensor
from edge_serve.workers.frames import Frame, FrameError, Kind, error_of, frame, json_frame, parse_json

_LENGTH = struct.Struct("<I")
#: longest log text; a worker cannot flood the front end with one line
LOG_CHARACTERS = 64 * 1024
#: levels of `backends.host.LEVELS` as numbers of `logging`
_LEVELS = {"VERBOSE": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}


def pack(value: dict[str, Any], tensors: Sequence[Tensor] = ()) -> bytes:
    """The payload of a CALL or CALL_RESULT; the tensors are described in `value["tensors"]`."""
    described = [[t.name, t.datatype.name, list(t.shape), len(t.data)] for t in tensors]
    head = json.dumps({**value, "tensors": described}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *(tensor.data for tensor in tensors)])


def unpack(payload: bytes) -> tuple[dict[str, Any], list[Tensor]]:
    """What `pack` was given; tensors are views of the payload.

    Raises:
        FrameError: it is something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(payload)
        position = _LENGTH.size + length
        value = parse_json(payload[_LENGTH.size : position])
        tensors, data = [], memoryview(payload)
        for name, datatype, shape, size in value["tensors"]:
            body: Buffer = data[position : position + size]
            if len(body) != size:
                raise FrameError("the tensors of a call are cut off")
            tensors.append(Tensor(str(name), BY_NAME[datatype], tuple(map(int, shape)), body))
            position += size
    except (struct.error, KeyError, ValueError, TypeError) as error:
        raise FrameError(f"no call: {error}") from error
    return value, tensors


class Remote:
    """Forwards over the control channel; any thread may call it."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._questions = itertools.count(1)
        self._waiting: dict[int, tuple[threading.Event, list[Frame]]] = {}

    def log(self, level: str, message: str) -> None:
        """One line for the server's log."""
        self.forward_log(_LEVELS.get(level, 20), "edge_serve.model", message)

    def forward_log(self, level: int, name: str, text: str) -> None:
        """One record of the standard library's logging."""
        self._send(json_frame(Kind.LOG, 0, {"level": level, "logger": name, "text": text[:LOG_CHARACTERS]}))

    def metric(self, update: MetricUpdate) -> None:
        """Forward a change of a metric."""
        self._send(json_frame(Kind.METRIC, 0, dataclasses.asdict(update)))

    def infer(self, call: Call) -> Reply:
        """Run another model and wait.

        Raises:
            EdgeServeError: the call could not be made; errors of the called model come in the reply.
        """
        question = {
            "do": "infer",
            "model_name": call.model_name,
            "model_version": call.model_version,
            "requested_outputs": list(call.requested_outputs),
            "id": call.id,
            "correlation_id": call.correlation_id,
            "flags": call.flags,
            "timeout_us": call.timeout_us,
            "parameters": dict(call.parameters),
        }
        value, tensors = self.ask(question, call.inputs)
        error = value.get("error")
        return Reply(tensors, error_of(error) if error else None, value.get("parameters", {}))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """As the repository API. Raises EdgeServeError."""
        encoded = {path: b64encode(data).decode() for path, data in files.items()}
        self.ask({"do": "load_model", "model_name": name, "config": config, "files": encoded})

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """As the repository API. Raises EdgeServeError."""
        self.ask({"do": "unload_model", "model_name": name, "unload_dependents": unload_dependents})

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a request would be taken. Raises EdgeServeError."""
        return bool(self.ask({"do": "is_model_ready", "model_name": name, "version": version})[0].get("ready"))

    def ask(self, question: dict[str, Any], tensors: Sequence[Tensor] = ()) -> tuple[dict[str, Any], list[Tensor]]:
        """Send a CALL and wait for its result.

        Raises:
            EdgeServeError: the front end refused.
        """
        number = next(self._questions)
        event, answer = self._waiting[number] = threading.Event(), []
        self._send(frame(Kind.CALL, number, pack(question, tensors)))
        event.wait()
        received = answer[0]
        if received.kind == Kind.FAILED:
            raise error_of(received.json())
        return unpack(received.payload)

    def on_result(self, received: Frame) -> None:
        """CALL_RESULT or FAILED arrived (control thread)."""
        waiting = self._waiting.pop(received.id, None)
        if waiting is not None:
            waiting[1].append(received)
            waiting[0].set()
