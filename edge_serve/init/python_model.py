"""A new Python model: a model.py that answers, and its configuration."""

from __future__ import annotations

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.init.config_text import config_text
from edge_serve.init.directory import VERSION, ModelPlace

_MODEL = '''"""Python model, written by `edge-serve init`: replace the line in `execute` that computes.

The server calls the methods of TritonPythonModel. What they can use: python -m pydoc triton_python_backend_utils
"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Load weights here. Called once, before the first request.

        args["model_repository"] is the directory of the model, args["model_config"] its configuration as JSON.
        """
        self.factor = np.float32(2)

    def execute(self, requests):
        """Return one response for each request, in the same order. Called with one request or more."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()  # the first dimension is the batch
            result = values * self.factor  # change this
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", result)]))
        return responses

    def finalize(self):
        """Close what `initialize` opened. Called once, when the model is unloaded."""
'''


def make(place: ModelPlace) -> pb.ModelConfig:
    """Write the model. Return its configuration."""
    config = pb.ModelConfig(name=place.name, backend="python", max_batch_size=8)
    config.input.add(name="INPUT", data_type=pb.TYPE_FP32, dims=[-1])
    config.output.add(name="OUTPUT", data_type=pb.TYPE_FP32, dims=[-1])
    batch = (
        "The first dimension of every tensor is the batch, of at most so many rows; dims are without it.",
        "0 = no batch dimension.",
    )
    about = (
        "Configuration of a Python model, written by `edge-serve init`: names, types and dims are those of model.py."
    )
    place.write("config.pbtxt", config_text(config, about, batch))
    place.write(f"{VERSION}/model.py", _MODEL)
    return config
