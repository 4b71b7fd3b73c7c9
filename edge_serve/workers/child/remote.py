"""Questions and messages from the worker to the front end: the `backends.host.Host` of a real worker.

CALL and CALL_RESULT carry a JSON object.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from edge_serve.backends.host import Cancel, MetricUpdate, ModelCall, OnReply
from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.workers.child.calling import Calling
from edge_serve.workers.child.own_threads import model_has_threads
from edge_serve.workers.wire.frames import LOG_CHARACTERS, LONGEST, Frame, FrameKind, error_of, json_frame

#: levels of `host.log` as numbers of `logging`
_LEVELS = {"VERBOSE": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}


class Remote:
    """Forwards over the control channel; any thread may call it."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._questions = itertools.count(1)
        #: question -> gets its answer
        self._waiting: dict[int, SimpleQueue[Frame]] = {}
        self.calling = Calling(send, self._memory)
        self._forked = False

    def cut_off(self) -> None:
        """Refuse questions from now on, in a child that a model forked: it would get no answers. Print log lines."""
        self._forked = True

    def _check_answered(self) -> None:
        if self._forked:
            raise Unsupported("a process that a model forked cannot call models; let the model itself call them")

    def log(self, level: str, message: str) -> None:
        """Send a line for the server's log."""
        self.forward_log(_LEVELS.get(level, 20), message)

    def forward_log(self, level: int, text: str) -> None:
        """Send a record of the standard library's logging."""
        if self._forked:
            _print_log(level, text)
        else:
            self._send(json_frame(FrameKind.LOG, 0, {"level": level, "text": text[:LOG_CHARACTERS]}))

    def warn_once(self, model: int, about: str, text: str) -> None:
        """Send a warning that the front end logs once for an opened model, whichever instance sends it first.

        Args:
            model: number of the opened model in this process.
            about: equal for warnings of which one is enough.
        """
        self._send(json_frame(FrameKind.LOG, 0, {"model": model, "once": about, "text": text[:LOG_CHARACTERS]}))

    def metric(self, update: MetricUpdate) -> None:
        """Forward a change of a metric."""
        self._send(json_frame(FrameKind.METRIC, 0, dataclasses.asdict(update)))

    def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        """Start another model; see `backends.host.Host.infer`.

        Raises:
            EdgeServeError: there is no memory for the inputs.
        """
        self._check_answered()
        return self.calling.start(call, on_reply)

    def report_idle(self, still: Callable[[], bool]) -> bool:
        """Tell that the instance waits for its calls alone; see `backends.host.Host.report_idle`."""
        if model_has_threads():  # one of them may wake the model's loop
            return False
        self.calling.rest(still)
        return True

    def _memory(self, model: int, nbytes: int) -> tuple[int, int]:
        answer = self.ask({"do": "memory", "model": model, "nbytes": nbytes})
        return answer["token"], answer["offset"]

    def pin(self, model: int, nbytes: int) -> int:
        """Ask the front end to leave the first bytes of a model's arena where they are; see `ArenaMemory`."""
        return int(self.ask({"do": "pin", "model": model, "nbytes": nbytes})["nbytes"])

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model, as the repository API does. Raises EdgeServeError."""
        encoded = {path: b64encode(data).decode() for path, data in files.items()}
        self.ask({"do": "load_model", "model_name": name, "config": config, "files": encoded})

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model, as the repository API does. Raises EdgeServeError."""
        self.ask({"do": "unload_model", "model_name": name, "unload_dependents": unload_dependents})

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether the model would accept a request. Raises EdgeServeError."""
        return bool(self.ask({"do": "is_model_ready", "model_name": name, "version": version}).get("ready"))

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a CALL and wait for its result.

        Raises:
            EdgeServeError: the front end refused, or would take the question for a broken frame.
        """
        self._check_answered()
        number = next(self._questions)
        data = json_frame(FrameKind.CALL, number, question)
        if len(data) > LONGEST:
            raise InvalidArgument(
                f"{question['do']} has {len(data)} bytes with files in base64, expected at most {LONGEST}: write large "
                "files into the model repository"
            )
        answer = self._waiting[number] = SimpleQueue()
        self._send(data)
        received = answer.get()
        if received.kind == FrameKind.FAILED:
            raise error_of(received.json())
        return received.json()

    def on_result(self, received: Frame) -> None:
        """Take the answer in a CALL_RESULT or FAILED frame (control thread)."""
        answer = self._waiting.pop(received.id, None)
        if answer is not None:
            answer.put(received)


def _print_log(level: int, text: str) -> None:
    """Print a log line on standard error, which the front end reads of forked children, too. As in the server's log
    with its default settings, lines below INFO are left out.

    Not by `sys.stderr`, whose lock another thread may have held in the worker during the fork.
    """
    if level >= logging.INFO:
        line = f"{logging.getLevelName(level)} {text[:LOG_CHARACTERS]}\n"
        with suppress(OSError):  # the front end is gone
            os.write(2, line.encode(errors="backslashreplace"))
