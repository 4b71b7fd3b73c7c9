"""Python models that misbehave when a file is there, as the text of their model.py.

Each returns its input until then. The files are in the service's own directory, which its processes can read.
"""

from __future__ import annotations

TRIGGERS = "/var/lib/edge-serve"

_MODEL = """\
import os

import triton_python_backend_utils as pb_utils


def misbehave():
{misdeed}


class TritonPythonModel:
    def execute(self, requests):
        if os.path.exists("{trigger}"):
            misbehave()
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        tensors = [pb_utils.Tensor("OUTPUT0", tensor.as_numpy()) for tensor in inputs]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""

_MISDEEDS = {
    "hangs": "import time\nwhile True:\n    time.sleep(1)",
    "segfaults": "import ctypes\nctypes.string_at(0)",
    "hungry": "kept = []\nwhile True:\n    kept.append(bytearray(b'x') * (16 << 20))",
}


def trigger(name: str) -> str:
    """Return the path of the file that makes the model misbehave."""
    return f"{TRIGGERS}/{name}.now"


def source(name: str) -> str:
    """Return the text of model.py."""
    lines = _MISDEEDS[name].splitlines()
    return _MODEL.format(trigger=trigger(name), misdeed="\n".join(f"    {line}" for line in lines))
