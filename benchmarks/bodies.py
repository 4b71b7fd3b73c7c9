"""Bodies of v2 infer requests, for load generators that send one body again and again."""

from __future__ import annotations

import json
import random

import numpy as np
import numpy.typing as npt


def add_sub_json() -> bytes:
    """Return 16 + 16 numbers for `add_sub`, as a person would write them."""
    numbers = list(range(16))
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": numbers} for name in ("INPUT0", "INPUT1")]
    return json.dumps({"inputs": inputs}).encode()


def picture_json() -> bytes:
    """Return 150,528 seeded floats for `picture`."""
    generator = random.Random(1)
    data = [round(generator.random(), 6) for _ in range(3 * 224 * 224)]
    return json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": data}]}
    ).encode()


def picture_binary(model: str, tensor: str, values: npt.NDArray[np.float32]) -> bytes:
    """Return a whole HTTP request with one FP32 tensor, binary in and out."""
    parameters = {"binary_data_size": values.nbytes}
    described = {"name": tensor, "datatype": "FP32", "shape": list(values.shape), "parameters": parameters}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    fields = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + values.nbytes}\r\n\r\n"
    )
    return fields.encode() + head + values.tobytes()
