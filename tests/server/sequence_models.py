"""Models of sequences for tests of the whole server, and a client for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.server.running import Running, python_model

#: adds up what comes, by correlation id, and says what it was given together in one batch
SUM = """
import json, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        values = [int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0, 0]) for r in requests]
        time.sleep(max(0, -min(values)) / 1000)
        answers = []
        for request, value in zip(requests, values):
            name = request.correlation_id()
            if request.flags() & 1:
                self.sums[name] = 0
            self.sums[name] = self.sums.get(name, 0) + value
            out = np.array([[self.sums[name], len(requests)]], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return answers
"""

#: sends IN - 1, IN - 2, ... 0, one a run; odd requests keep the sender of their first run
COUNT_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left, self.senders = {}, {}

    def execute(self, requests):
        for request in requests:
            name = request.correlation_id()
            if request.flags() & 1:
                value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
                self.left[name] = value
                if value % 2:
                    self.senders[name] = request.get_response_sender()
            if name not in self.left:  # a null request
                continue
            if request.is_cancelled():
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                pb_utils.Logger.log_info(f"{name} noticed")
                continue
            sender = self.senders.get(name) or request.get_response_sender()
            self.left[name] -= 1
            left = self.left[name]
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[left, 0]], np.int32))])
            if left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(response)
            else:
                self.senders.pop(name, None)
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: a thread sends IN - 1, IN - 2, ... 0 while the request is rescheduled again and again
THREAD = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.done = {}

    def execute(self, requests):
        for request in requests:
            name = request.correlation_id()
            if request.flags() & 1:
                left = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
                done = self.done[name] = threading.Event()
                threading.Thread(target=self.send, args=(request.get_response_sender(), left, done)).start()
            if name in self.done and not self.done[name].is_set():
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def send(self, sender, left, done):
        for i in reversed(range(left)):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[i, 0]], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        done.set()
"""

#: answers the third time it sees a request; IN = 7 never
THIRD_TIME = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            name = request.correlation_id()
            inputs = sorted(tensor.name() for tensor in request.inputs())
            value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
            if not name:  # a null request
                answers.append(pb_utils.InferenceResponse([]))
                continue
            self.seen[name] = 1 if request.flags() & 1 else self.seen[name] + 1
            if self.seen[name] < 3 or value == 7:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                answers.append(None)
                continue
            out = np.array([[value, len(inputs)]], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return answers
"""

FACE = """
backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def sequence_model(root: Path, name: str, code: str, batching: str, more: str = "") -> None:
    """A model with `sequence_batching { batching }`."""
    python_model(root, name, code, f"{FACE}{more}\nsequence_batching {{ {batching} }}")


def step(server: Running, model: str, sequence: int | str, value: int, flags: str = "", **more: Any) -> tuple[int, Any]:
    """One request of a sequence: status, and the sum and the batch's size, or the error."""
    parameters = {
        "sequence_id": sequence,
        "sequence_start": "start" in flags,
        "sequence_end": "end" in flags,
        **more,
    }
    inputs = [{"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs, "parameters": parameters})
    answer = json.loads(body)
    return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]


def events(body: bytes) -> list[Any]:
    """Return the events of a `generate_stream`."""
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
