"""How long does the infer codec alone take per request?

Seeded inputs, no sockets, no server.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import orjson

from benchmarks.report import Report
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Array, DataType, InferTensor, from_array, from_numpy_type
from edge_serve.protocol.v2.infer import InferDecoder, InferEncoder

IMAGE = (1, 3, 224, 224)


def signature(datatype: DataType, names: tuple[str, ...], outputs: tuple[str, ...]) -> Signature:
    """Return the signature of a model with tensors of one type and any shape."""
    inputs = {name: TensorSpec(name, datatype, (-1,)) for name in names}
    return Signature(
        "bench", "1", "python", 8, inputs, {n: TensorSpec(n, datatype, (-1,)) for n in outputs}, required=1
    )


def binary_body(arrays: dict[str, Array], outputs: tuple[str, ...]) -> tuple[bytes, int]:
    """Return a request as the Triton client writes it, and the length of its JSON part."""
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _type(array).name,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    header = orjson.dumps({"inputs": inputs, "outputs": wanted})
    return header + b"".join(array.tobytes() for array in arrays.values()), len(header)


def different(body: bytes, length: int) -> list[tuple[bytes, int]]:
    """Return requests with JSON parts of one length that differ, twice as many as a decoder keeps templates of."""
    head, old = body[:length], b'{"inputs":[{"name":'
    heads = [head.replace(old, b'{"inputs":[{"number":%d,"name":' % number) for number in range(10_000, 12_048)]
    return [(one + body[length:], len(one)) for one in heads]


def json_body(name: str, array: Array) -> bytes:
    """Return a JSON request with flat data and numbers written as doubles, as most JSON clients do."""
    item = {"name": name, "shape": list(array.shape), "datatype": _type(array).name, "data": array.ravel().tolist()}
    return orjson.dumps({"inputs": [item]})


def _type(array: Array) -> DataType:
    datatype = from_numpy_type(array.dtype)
    assert datatype is not None
    return datatype


def response(arrays: dict[str, Array]) -> InferResponse:
    """Return a response of model `bench` with these outputs."""
    outputs = [
        InferTensor(name, _type(array), array.shape, from_array(array, _type(array))) for name, array in arrays.items()
    ]
    return InferResponse("bench", "1", outputs=outputs)


def measure(call: Callable[[], object], seconds: float) -> float:
    """Return microseconds per call: the best of rounds of about 10 ms, repeated for `seconds`."""
    call()
    start = time.perf_counter()
    call()
    inner = max(1, int(0.01 / max(time.perf_counter() - start, 1e-7)))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - start) / inner)
    return round(best * 1e6, 3)


def run(seconds: float = 0.5) -> Report:
    """Measure all questions, `seconds` for each."""
    report = Report("codec_alone", "microseconds per request in the infer codec alone")
    report.rows = [{"case": name, "us": measure(call, seconds)} for name, call in questions().items()]
    return report


def questions() -> dict[str, Callable[[], object]]:
    """Return the calls to time, by name."""
    random = np.random.default_rng(1)
    small = random.integers(-1000, 1000, (1, 16), dtype=np.int32)
    image = random.standard_normal(IMAGE, dtype=np.float32)
    ints = signature(DataType.INT32, ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"))
    picture = Signature(
        "bench", "1", "python", 8,
        {"X": TensorSpec("X", DataType.FP32, IMAGE[1:])}, {"Y": TensorSpec("Y", DataType.FP32, IMAGE[1:])}, required=1,
    )  # fmt: skip
    outputs = ("OUTPUT0", "OUTPUT1")
    body, length = binary_body({"INPUT0": small, "INPUT1": small}, outputs)
    big_body, big_length = binary_body({"X": image}, ("Y",))
    unseen = itertools.cycle(different(body, length))
    text, big_text = json_body("INPUT0", small), json_body("X", image)
    decoder, encoder = InferDecoder(), InferEncoder()
    asked = decoder.decode(ints, "", body, length)
    plain = InferRequest("bench")
    answer, picture_answer = response({"OUTPUT0": small, "OUTPUT1": small}), response({"Y": image})
    big_binary = InferRequest("bench", binary_default=True)
    return {
        "decode 2 x INT32[16] binary": lambda: decoder.decode(ints, "", body, length),
        "decode 2 x INT32[16] binary, JSON part never seen": lambda: decoder.decode(ints, "", *next(unseen)),
        "encode 2 x INT32[16] binary": lambda: encoder.encode(answer, asked, ints),
        "encode 2 x INT32[16] JSON": lambda: encoder.encode(answer, plain, ints),
        "decode INT32[16] JSON": lambda: decoder.decode(ints, "", text, None),
        "decode FP32[3,224,224] binary": lambda: decoder.decode(picture, "", big_body, big_length),
        "encode FP32[3,224,224] binary": lambda: encoder.encode(picture_answer, big_binary, picture),
        "decode FP32[3,224,224] JSON": lambda: decoder.decode(picture, "", big_text, None),
        "encode FP32[3,224,224] JSON": lambda: encoder.encode(picture_answer, plain, picture),
    }
