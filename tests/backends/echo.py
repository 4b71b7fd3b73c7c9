"""A backend that answers with its inputs, by position, and misbehaves on request.

Tests put a copy of this file into a model's directory, as `backend.py`. A request parameter `do` names a method of
`Deeds`, config parameter `on_open` what happens at loading. Numbers come in the parameters beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest, DeviceLost, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.errors import InvalidArgument, NotFound
from edge_serve.messages.tensors import InferTensor

Answer = Callable[[], Reply]


def _number(request: BackendRequest, name: str, default: float) -> float:
    value = request.parameters.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


class Deeds:
    """The faults that a request may ask for; `answer` makes the ordinary reply."""

    def error(self, request: BackendRequest, answer: Answer) -> Reply:
        """An error of this request only."""
        return Reply(error=NotFound(str(request.parameters.get("text", "nothing here"))))

    def raise_(self, request: BackendRequest, answer: Answer) -> NoReturn:
        """An exception: the whole batch fails."""
        raise ValueError("asked to raise")

    def sys_exit(self, request: BackendRequest, answer: Answer) -> NoReturn:
        """Call `sys.exit`, as scripts do and models should not."""
        sys.exit(3)

    def exit(self, request: BackendRequest, answer: Answer) -> NoReturn:
        """The process ends."""
        os._exit(int(_number(request, "status", 7)))

    def segfault(self, request: BackendRequest, answer: Answer) -> Reply:
        """A fault in native code."""
        ctypes.string_at(0)
        return answer()

    def sleep(self, request: BackendRequest, answer: Answer) -> Reply:
        """Takes long."""
        time.sleep(_number(request, "ms", 1000) / 1000)
        return answer()

    def hold(self, request: BackendRequest, answer: Answer) -> Reply:
        """Hangs in native code with the interpreter lock: no other thread of the process runs."""
        ctypes.PyDLL(None).usleep(int(_number(request, "ms", 1000) * 1000))
        return answer()

    def until_cancelled(self, request: BackendRequest, answer: Answer) -> Reply:
        """Waits for its client to leave, and says how it ended as parameter `cancelled`."""
        end = time.monotonic() + _number(request, "ms", 5000) / 1000
        while not request.is_cancelled() and time.monotonic() < end:
            time.sleep(0.001)
        reply = answer()
        reply.parameters["cancelled"] = request.is_cancelled()
        return reply

    def grow(self, request: BackendRequest, answer: Answer) -> Reply:
        """Each output is `times` as long, along its last axis."""
        times = int(_number(request, "times", 2))
        reply = answer()
        for tensor in reply.outputs:
            rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
            tensor.data = np.tile(rows, (1, times)).tobytes()
            tensor.shape = (*tensor.shape[:-1], tensor.shape[-1] * times)
        return reply

    def partials(self, request: BackendRequest, answer: Answer) -> Reply:
        """A decoupled model's answers: `times` of them, the last is final."""
        times = int(_number(request, "times", 3))
        assert request.send is not None, "the model is not decoupled"
        for i in range(times):
            reply = answer()
            reply.parameters["number"] = i
            request.send(reply, i == times - 1)
        return Reply()

    def call(self, request: BackendRequest, answer: Answer) -> Reply:
        """Infers on the model named by parameter `model`."""
        question = host.ModelCall(str(request.parameters.get("model", "")), -1, request.inputs, ["OUTPUT0"])
        replies: SimpleQueue[tuple[Reply, bool]] = SimpleQueue()
        host.current().infer(question, lambda reply, final: replies.put((reply, final)))
        return replies.get()[0]

    def metric(self, request: BackendRequest, answer: Answer) -> Reply:
        """Counts."""
        host.metric(host.MetricUpdate("echoes", "Echoes.", "counter", {"model": "echo"}, "increment", 1.0))
        return answer()

    def log(self, request: BackendRequest, answer: Answer) -> Reply:
        """One line by each way that a line may take."""
        text = str(request.parameters.get("text", "hello"))
        host.log("WARNING", f"{text} by host")
        logging.getLogger("echo").error("%s by logging", text)
        print(f"{text} by print")
        os.write(2, f"{text} by descriptor\n".encode())
        return answer()

    def flood(self, request: BackendRequest, answer: Answer) -> Reply:
        """Prints `bytes` bytes in lines."""
        line = "x" * 99 + "\n"
        for _ in range(int(_number(request, "bytes", 1000)) // len(line)):
            sys.stdout.write(line)
        return answer()

    def exhaust(self, request: BackendRequest, answer: Answer) -> Reply:
        """Opens files until no descriptor is left."""
        with contextlib.suppress(OSError):
            while True:
                os.open(os.devnull, os.O_RDONLY)
        return answer()

    def garbage(self, request: BackendRequest, answer: Answer) -> Reply:
        """Writes nonsense to every socket of the process."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    os.write(int(name), b"\xff" * 64)
            except OSError:  # the listing's own descriptor
                continue
        time.sleep(_number(request, "ms", 5000) / 1000)
        return answer()


class EchoInstance:
    """Answers with the inputs, named as the outputs in the same place."""

    def __init__(self, spec: ModelSpec) -> None:
        self._outputs = [str(output["name"]) for output in spec.config.get("output", [])]
        self._ready_file = spec.model_directory / "not_ready"
        self._deeds = Deeds()
        self._slow = _parameter(spec, "on_close") == "slowly"
        self._closed = False

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """See `Deeds`."""
        return [self._one(request) if request.parameters else self._answer(request) for request in batch]

    def _answer(self, request: BackendRequest) -> Reply:
        names = self._outputs
        return Reply([InferTensor(names[i], t.datatype, t.shape, t.data) for i, t in enumerate(request.inputs)])

    def _one(self, request: BackendRequest) -> Reply:
        deed = getattr(self._deeds, str(request.parameters.get("do", "")), None)
        if deed is None:
            reply = self._answer(request)
            reply.parameters = dict(request.parameters)
            return reply
        made: Reply = deed(request, lambda: self._answer(request))
        return made

    def is_ready(self) -> bool:
        """Unless a file `not_ready` lies in the model's directory."""
        return not self._ready_file.exists()

    def close(self) -> None:
        """Refuse a second time, as memory that is freed twice; slowly, if so configured."""
        if self._closed:
            raise InvalidArgument("the instance is closed already")
        self._closed = True
        time.sleep(0.05 if self._slow else 0)


class EchoBackend:
    """Any configuration will do; parameters: `on_open` = fail | raise | exit | sleep | doze | hold,
    `on_close` = sleep | slowly."""

    def __init__(self) -> None:
        self._on_close = ""

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration, with one INT32 pair of tensors where it names none."""
        self._on_close = _parameter(spec, "on_close")
        _misbehave(_parameter(spec, "on_describe"))
        pair = [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}]
        completed = dict(spec.config)
        if not completed.get("input"):
            completed["input"] = pair
            completed["output"] = [{**pair[0], "name": "OUTPUT0"}]
        return completed

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[EchoInstance]:
        """One instance each.

        Raises:
            InvalidArgument: the configuration asks for it.
        """
        self._on_close = _parameter(spec, "on_close")
        if _parameter(spec, "on_open") == "exit_when_marked" and (spec.model_directory / "mark").exists():
            os._exit(9)
        if _parameter(spec, "on_open") == "fail_when_marked" and (spec.model_directory / "mark").exists():
            raise InvalidArgument("asked to fail")
        _misbehave(_parameter(spec, "on_open"))
        return [EchoInstance(spec) for _ in instances]

    def close(self) -> None:
        """As configured."""
        _misbehave(self._on_close)


def _parameter(spec: ModelSpec, name: str) -> str:
    return str(spec.config.get("parameters", {}).get(name, {}).get("string_value", ""))


def _misbehave(deed: str) -> None:
    match deed:
        case "lose_device":
            raise DeviceLost("asked to lose the device")
        case "fail":
            raise InvalidArgument("asked to fail")
        case "raise":
            raise ValueError("asked to raise")
        case "exit":
            os._exit(9)
        case "sleep":
            time.sleep(60)
        case "doze":
            time.sleep(0.7)
        case "hold":  # with the interpreter lock, as ONNX Runtime up to 1.23 does
            ctypes.PyDLL(None).usleep(700_000)


#: the name that `backends.loader` looks for
Backend = EchoBackend
