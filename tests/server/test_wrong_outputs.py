"""Outputs of every wrong kind: the reply is Triton's or one clear error, the log names the line to fix, once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.server.running import PATIENCE, Running, python_model, running

#: the deed is an expression for the list that `execute` returns
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)

TEXT = ones(1, 1, dtype=object)

class TritonPythonModel:
    def execute(self, requests):
        names = sorted(requests[0].requested_output_names())

        def answer(*arrays, **named):
            named = {**dict(zip(names, arrays)), **named}
            return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in named.items()])

        deed = pb_utils.get_input_tensor_by_name(requests[0], "DEED").as_numpy()[0, 0].decode()
        return eval(deed, {**globals(), "answer": answer, "good": answer(ones(1, 2), TEXT)})
"""
#: sends the list as a stream
STREAMING = (
    MODEL.replace("        return eval(", "        responses = eval(")
    + """
        sender = requests[0].get_response_sender()
        for response in responses:
            sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "DEED" data_type: TYPE_STRING dims: [ 1 ] }
"""
OUTPUTS = """
output [
  {
    name: "Y"
    data_type: TYPE_FP32
    dims: [ 2 ]
  },
  { name: "Z" data_type: TYPE_STRING dims: [ 1 ] }
]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The model `many` has two outputs for each case, because each output is reported once."""
    root = tmp_path_factory.mktemp("models")
    outputs = [OUTPUTS.replace('"Y"', f'"Y{number}"').replace('"Z"', f'"Z{number}"') for number in range(len(CASES))]
    python_model(root, "many", MODEL, CONFIG + "".join(outputs))
    python_model(root, "twice", MODEL, CONFIG + OUTPUTS + "instance_group { count: 2 }")
    python_model(root, "streaming", STREAMING, CONFIG + OUTPUTS + "model_transaction_policy { decoupled: true }")
    with running(f"--model-repository={root}") as started:
        yield started


#: what `execute` returns; status; part of the reply; the line of the log
CASES = [
    ("[good]", 200, '"shape":[1,2]', ""),
    ("[answer(ones(1, 2, dtype=np.float64), TEXT)]", 200, '"datatype":"FP64"',
     "output 'Y1' is FP64 [1, 2], but config.pbtxt line 18 says data_type: TYPE_FP32. Clients receive it as it is; "
     "convert it in the model, or write data_type: TYPE_FP64"),
    ("[answer(ones(1, 3), TEXT)]", 200, '"shape":[1,3]',
     "output 'Y2' is FP32 [1, 3], but config.pbtxt line 28 says dims: [2], behind a batch dimension of 1: [1, 2]. "
     "Clients receive it as it is; return that shape from the model, or change dims"),
    ("[answer(ones(2, dtype=np.int8), TEXT)]", 200, '"shape":[2]',
     "output 'Y3' is INT8 [2], but config.pbtxt line 36 says data_type: TYPE_FP32 and config.pbtxt line 37 says dims:"),
    ("[answer(ones(3, 2), TEXT)]", 200, '"shape":[3,2]', "output 'Y4' is FP32 [3, 2], but"),
    ("[answer(Y55=ones(1, 2), Z5=TEXT)]", 200, '"name":"Z5"', "the model returned an output 'Y55', but its"),
    ("[answer(ones(1, 2))]", 200, '"name":"Y6"',
     "a response has no output 'Z6', which the request asked for and config.pbtxt line 66 declares. Clients receive "),
    ("[answer()]", 200, '"outputs":[]', "a response has no output 'Y7'"),
    ("[answer(ones(1, 2, dtype=np.float16), TEXT)]", 400, "FP16", "output 'Y8' is FP16 [1, 2], but"),
    ("[answer(np.array([[b'1', b'x']]), TEXT)]", 200, '"datatype":"BYTES"', "output 'Y9' is BYTES"),
    ("[answer(ones(1, 2), np.array([['text']], dtype=object))]", 200, '"data":["text"]', ""),
    ("[answer(ones(1, 2), np.array([[b'\\xff']], dtype=object))]", 400, "not valid UTF-8", ""),
    ("[answer(ones(4, 1).T[:, ::2], TEXT)]", 200, '"data":[1.0,1.0]', ""),
    ("[answer(np.array([[np.nan, np.inf]], np.float32), TEXT)]", 200, '"shape":[1,2]', ""),
    ("[answer(ones(0, 2), TEXT[:0])]", 200, '"shape":[0,2]', "output 'Y14' is FP32 [0, 2], but"),
    ("[answer(ones(1, 100_000), TEXT)]", 200, '"shape":[1,100000]', "output 'Y15' is FP32"),
    ("[answer(ones(1, 2, dtype=complex), TEXT)]", 500, "NumPy dtype is not supported. Tensor 'Y16' is complex128", ""),
    ("[answer(np.array(['text']), TEXT)]", 500, "NumPy dtype is not supported. Tensor 'Y17' is <U4, expected", ""),
    ("[answer([1, 2])]", 500, "incompatible constructor arguments", ""),
    ("[answer(None)]", 500, "incompatible constructor arguments", ""),
    ("[pb_utils.InferenceResponse([None])]", 500, "should not be empty", ""),
    ("[pb_utils.InferenceResponse([np.ones(1)])]", 500, "must be a list of Tensor", ""),
    ("[pb_utils.InferenceResponse(pb_utils.Tensor('Y', TEXT))]", 500, "must be a list of Tensor, found Tensor", ""),
    ("[np.ones(1)]", 500, "Expected an 'InferenceResponse' object", ""),
    ("good", 500, "Expected a list in the execute return", ""),
    ("[good, good]", 500, "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2", ""),
    ("[answer(ones(1, -2))]", 500, "negative dimensions", ""),
]  # fmt: skip
UNKNOWN = "[answer(ones(1, 2), TEXT, Yy=TEXT)]"


def infer(server: Running, model: str, deed: str, *outputs: str) -> tuple[int, str]:
    """Status and body."""
    inputs = [{"name": "DEED", "datatype": "BYTES", "shape": [1, 1], "data": [deed]}]
    listed = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs, **listed})
    return status, body.decode()


def warnings(server: Running, model: str, count: int = 0) -> list[str]:
    """The lines of the log about the outputs of a model, without their heads; waits for `count` of them."""
    end = time.monotonic() + PATIENCE
    while True:
        found = re.findall(rf"^W.*\] model '{model}' version 1: (.*)$", server.log(), re.MULTILINE)
        if len(found) >= count or time.monotonic() > end:
            return [str(line) for line in found]
        time.sleep(0.01)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0][:40] for case in CASES])
def test_outputs_of_every_wrong_kind(server: Running, number: int) -> None:
    deed, expected, part, line = CASES[number]
    names = f"Y{number}", f"Z{number}"
    for _ in range(2):
        status, text = infer(server, "many", deed, *names)
        assert (status, part in text) == (expected, True), text

    assert infer(server, "many", "[good]", *names)[0] == 200
    assert "Traceback" not in server.log()
    server.wait_for_log(f"^W.*{re.escape(line)}" if line else "")


def test_each_output_is_reported_once_and_no_other(server: Running) -> None:
    """After the cases above."""
    for number, (deed, *_) in enumerate(CASES):
        infer(server, "many", deed, f"Y{number}", f"Z{number}")
    outputs = ["Y1", "Y14", "Y15", "Y2", "Y3", "Y4", "Y5", "Y55", "Y7", "Y8", "Y9", "Z14", "Z6", "Z7"]

    told = warnings(server, "many", len(outputs))

    assert sorted(re.findall(r"output '(\w+)'", line)[0] for line in told) == outputs


def test_two_instances_report_an_output_once_and_the_status_shows_it(server: Running) -> None:
    deeds = ("[answer(ones(1, 3), TEXT)]", "[answer(ones(1, 4), TEXT)]", "[answer(ones(1, 2))]", UNKNOWN)
    for deed in deeds * 3:
        assert infer(server, "twice", deed)[0] == 200

    first, second, third = sorted(warnings(server, "twice", 3))
    assert first.startswith("a response has no output 'Z', which the request asked for")
    assert re.match(r"output 'Y' is FP32 \[1, [34]\], but config.pbtxt line 10 says dims: \[2\]", second)
    assert third == (
        "the model returned an output 'Yy', but its configuration declares 'Y', 'Z'; did you mean 'Y'? "
        "Clients do not receive it; rename it in the model, or declare it in config.pbtxt"
    )
    _, status = server.get("/edge-serve/status")
    problems = [event["text"] for event in json.loads(status)["errors"] if event.get("model") == "twice"]
    assert sorted(problems) == [f"model 'twice' version 1: {text}" for text in (first, second, third)]


def test_a_request_for_some_outputs_is_no_problem(server: Running) -> None:
    before = warnings(server, "twice")
    for names in (("Y",), ("Z", "Y"), ("Z",)):
        assert infer(server, "twice", "[good]", *names)[0] == 200

    assert warnings(server, "twice") == before


def test_a_stream_with_wrong_outputs_is_reported_too(server: Running) -> None:
    deed = "[answer(ones(1, 2)), answer(ones(1, 3)), answer(Yy=TEXT), good]"
    _, body = server.post("/v2/models/streaming/generate_stream", {"DEED": deed})

    events = [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n") if event]
    assert [event.get("Y") for event in events] == [[1, 1], [1, 1, 1], None, [1, 1]]
    first, second = warnings(server, "streaming", 2)
    assert first.startswith("output 'Y' is FP32 [1, 3], but")
    assert second.startswith("the model returned an output 'Yy', but")
