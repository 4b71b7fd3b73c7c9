"""Busy clients for tests of what happens under load: threads with one connection each."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.running import PATIENCE

#: keeps a sum for each sequence, as a state of its own
ADDS_UP = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        replies = []
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().ravel()[0])
            start = int(pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0])
            key = int(pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy().ravel()[0])
            self.sums[key] = value if start else self.sums[key] + value
            out = np.array([[self.sums[key]]], np.int32)
            replies.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", out)]))
        return replies
"""

ADDS_UP_CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  oldest { max_candidate_sequences: 64 }
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""

ADD_SUB_BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
)


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def infer(self, model: str, body: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        self._connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


@dataclass
class Load:
    """The answers that busy clients received.

    Attributes:
        failures: what each request that was not answered as expected got.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: int = 0
    sequences: int = 0
    failures: list[Any] = field(default_factory=list)

    def add_sub(self, port: int, model: str) -> None:
        """Requests one after the other until the end."""
        client = Client(port)
        while not self.stop.is_set():
            status, answer = client.infer(model, ADD_SUB_BODY)
            with self.lock:
                self.answered += 1
                if status != 200 or answer["outputs"][0]["data"] != [2] * 16:
                    self.failures.append((status, answer))
        client.close()

    def wait_for_answers(self, more: int) -> None:
        """Wait until so many further requests were answered."""
        end, enough = time.monotonic() + PATIENCE, self.answered + more
        while self.answered < enough and not self.failures:
            assert time.monotonic() < end, f"{self.answered} answers, expected {enough}"
            time.sleep(0.005)

    def adds_up(self, port: int, model: str, number: int, length: int) -> None:
        """One sequence after the other, each to its end; each answer must be the sum so far."""
        client = Client(port)
        while not self.stop.is_set():
            total = 0
            for step in range(length):
                value = number + step
                total += value
                body = adds_up_body(number, value, start=step == 0, end=step == length - 1)
                status, answer = client.infer(model, body)
                with self.lock:
                    self.answered += 1
                    if status != 200 or answer["outputs"][0]["data"] != [total]:
                        self.failures.append((status, answer, f"expected {total} at step {step}"))
                        break
            with self.lock:
                self.sequences += 1
        client.close()


def adds_up_body(number: int, value: int, *, start: bool = False, end: bool = False) -> str:
    """A request of the sequence `number`."""
    flags = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
    data = [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}]
    return json.dumps({"parameters": flags, "inputs": data})


def busy(load: Load, work: Sequence[Callable[[], None]], meanwhile: Callable[[], None]) -> None:
    """Run `work` in a thread each while `meanwhile` runs, then until all of it has ended."""
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not [thread for thread in threads if thread.is_alive()], "a client hangs"


def touch(model: Path) -> None:
    """Make a Python model's only version a new one."""
    path = model / "1" / "model.py"
    path.write_text(path.read_text() + "#\n")
