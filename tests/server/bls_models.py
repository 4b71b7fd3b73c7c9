"""Models that call models, for tests of the whole server."""

from __future__ import annotations

from pathlib import Path

from tests.server.running import python_model

_HEAD = """
import asyncio, json, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


def text(*said):
    return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([json.dumps(said).encode()], object))])


def ask(model, value, **more):
    x = pb_utils.Tensor("X", np.array(value, np.int32).reshape(-1))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[x], **more)


def note(sign, value):
    path = os.path.join(os.environ["BLS_SIGNS"], sign)
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)


def answer(response):
    if response.has_error():
        return [response.error().code(), response.error().message()]
    return pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().tolist()


"""

_CONFIG = """
backend: "python"
max_batch_size: 0
input {{ name: "X" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "{output}" data_type: {datatype} dims: [ -1 ] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
{more}
"""


def model(root: Path, name: str, code: str, *, output: str = "TEXT", instances: int = 1, more: str = "") -> None:
    """A model with input X (INT32 [-1]) whose methods are `code`; output TEXT is a string, any other INT32 [-1]."""
    datatype = "TYPE_STRING" if output == "TEXT" else "TYPE_INT32"
    config = _CONFIG.format(output=output, datatype=datatype, instances=instances, more=more)
    python_model(root, name, f"{_HEAD}class TritonPythonModel:\n{code}", config)


#: answers X times 2, or fails for -1
DOUBLE = """
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if len(x) and x[0] == -1:
                error = pb_utils.TritonError("no negative numbers", pb_utils.TritonError.NOT_FOUND)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]))
        return answers
"""

#: decoupled: X[0] responses 0, 1, ..., then the end; without an end for -1, until it is cancelled
COUNT = """
    def execute(self, requests):
        for request in requests:
            many = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
            sender = request.get_response_sender()
            number = 0
            while number != many:
                if sender.is_cancelled():
                    open(os.environ["BLS_SIGNS"] + "/cancelled", "w").close()
                    break
                y = pb_utils.Tensor("Y", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([y]))
                number += 1
                if many < 0:
                    time.sleep(0.002)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"

#: runs until it is cancelled, and says so
PATIENT = """
    def execute(self, requests):
        signs = os.environ["BLS_SIGNS"]
        open(signs + "/started", "w").close()
        end = time.monotonic() + 30
        while not requests[0].is_cancelled() and time.monotonic() < end:
            time.sleep(0.002)
        open(signs + ("/cancelled" if requests[0].is_cancelled() else "/late"), "w").close()
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED))]
"""
#: "nested" that calls itself, for as long as there are instances
SELF = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        call = pb_utils.InferenceRequest(model_name="nested", requested_output_names=["TEXT"], inputs=[x])
        found = call.exec()
        if found.has_error():
            return [text(found.error().code(), found.error().message())]
        return [pb_utils.InferenceResponse(found.output_tensors())]
"""
