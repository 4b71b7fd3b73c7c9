"""Models for tests of "try it": one for each thing that the page has to cope with."""

from __future__ import annotations

from pathlib import Path

from tests.server.running import python_model

#: what a hostile model name, label and output look like
EVIL = "<img src=x onerror=alert(1)><script>document.title='mine'</script>"

_HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        {body}
"""


def _code(body: str) -> str:
    return _HEAD.replace("{body}", body.strip().replace("\n", "\n        "))


PICTURE = """
x = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
axes = tuple(i for i in range(x.ndim) if x.shape[i] != 3 or i == 0)
means = x.astype(np.float32).mean(axis=axes if len(axes) < x.ndim else None)
lead = (1,) * (x.ndim == 4)
shape = pb_utils.Tensor("SHAPE", np.array(x.shape, np.int64).reshape(lead + (-1,)))
return pb_utils.InferenceResponse([pb_utils.Tensor("MEANS", means.astype(np.float32).reshape(lead + (3,))), shape])
"""
_PICTURE_OUTPUTS = """
output { name: "MEANS" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
output { name: "SHAPE" data_type: TYPE_INT64 dims: [ -1 ] }
"""
TEXT = """
x = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
text = np.array([one[::-1] if len(one) < 4096 else str(len(one)).encode() for one in x.reshape(-1)], np.object_)
return pb_utils.InferenceResponse([pb_utils.Tensor("REVERSED", text.reshape(x.shape))])
"""
FAILS = f"raise ValueError({'the lens is ' + EVIL!r})"
EVERYTHING = """
return pb_utils.InferenceResponse([
    pb_utils.Tensor("OUT_" + tensor.name(), tensor.as_numpy()) for tensor in request.inputs()])
"""
TYPES = ("BOOL", "UINT8", "UINT64", "INT8", "INT64", "FP16", "FP32", "FP64", "STRING")
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)[0].decode()
            for word in text.split():
                tensor = pb_utils.Tensor("WORD", np.array([word.encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        replies = []
        for request in requests:
            def value(name):
                return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
            id = int(value("CORRID"))
            self.sums[id] = int(value("INPUT")) + (0 if value("START") else self.sums[id])
            out = np.array([[self.sums[id]]], np.int32)
            replies.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", out)]))
        return replies
"""
SUMS_CONFIG = """
backend: "python"
max_batch_size: 4
sequence_batching { control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
] }
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def write_models(root: Path) -> None:
    """All of them."""
    python_model(root, "add_sub")
    layouts = {
        "chw": 'max_batch_size: 4\ninput { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 8, 16 ] }',
        "hwc": 'input { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }',
    }
    for name, config in layouts.items():
        model = python_model(root, name, _code(PICTURE), f'backend: "python"\n{config}\n{_PICTURE_OUTPUTS}')
        (model / "labels.txt").write_text(f"red\n{EVIL}\nblue\n")
    python_model(
        root, "text", _code(TEXT),
        'backend: "python"\ninput { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }\n'
        'output { name: "REVERSED" data_type: TYPE_STRING dims: [ -1 ] }',
    )  # fmt: skip
    python_model(
        root, "fails", _code(FAILS),
        'backend: "python"\ninput { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }',
    )  # fmt: skip
    python_model(
        root, "sleeps", _code("import time; time.sleep(600)"),
        'backend: "python"\ninput { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }',
    )  # fmt: skip
    tensors = "\n".join(
        f'input {{ name: "{one}" data_type: TYPE_{one} dims: [ 2, -1 ] optional: true }}\n'
        f'output {{ name: "OUT_{one}" data_type: TYPE_{one} dims: [ 2, -1 ] }}'
        for one in TYPES
    )
    python_model(root, "everything", _code(EVERYTHING), f'backend: "python"\n{tensors}')
    python_model(
        root, "stream", STREAM,
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }',
    )  # fmt: skip
    python_model(root, "sums", SUMS, SUMS_CONFIG)
    python_model(root, "broken", "raise RuntimeError('no camera')")
