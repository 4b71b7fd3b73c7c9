"""Requests that a server must refuse: one of each kind, and any number of seeded variations."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

from tests.server.raw_http import infer_json, request

_INFER = "/v2/models/m/infer"
_NAMES = ("INPUT0", "INPUT1")
#: what `bombs` inflate to; larger than the tests' --http-max-input-size
BOMB = 4 << 20
#: of models in the path of a load
_WRONG_NAMES = (
    "none", "..", ".", "%2e%2e%2fx", "n" * 300, "n" * 5000, "%00", "%0a", "a%20b", "%ff", "m%2f1", "~", "%5c", "1",
)  # fmt: skip


def good_inputs() -> list[dict[str, Any]]:
    """Inputs that the add/sub model takes."""
    return [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in _NAMES]


def good_binary(path: str = _INFER) -> bytes:
    """A good request with binary tensors."""
    return _binary(64, 64, b"\1" * 128, path=path)


def _binary(size0: object, size1: object, tail: bytes, length: object = None, path: str = _INFER) -> bytes:
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": size}}
        for name, size in zip(_NAMES, (size0, size1), strict=True)
    ]
    text = json.dumps({"inputs": inputs}).encode()
    return request(
        "POST", path, text + tail, f"Inference-Header-Content-Length: {len(text) if length is None else length}"
    )


def _changed(**changes: object) -> bytes:
    first, second = good_inputs()
    return infer_json("m", [{key: value for key, value in {**first, **changes}.items() if value is not None}, second])


def broken_framing() -> list[bytes]:
    """After these the server closes the connection."""
    post = f"POST {_INFER} HTTP/1.1\r\nHost: x\r\n"
    chunked = post + "Transfer-Encoding: chunked\r\n\r\n"
    texts = [
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n",
        "GET\r\n\r\n",
        "GET /v2\r\n\r\n",
        "\r\n" * 9 + "GET",
        "GET /v2 HTTP/2.0\r\n\r\n",
        "GET /v2 HTTP/1.1\nHost: x\n\n",
        "GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET /v2 HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        "GET /v2 HTTP/1.1\r\nA: \x00\r\n\r\n",
        f"GET /{'a' * 20000} HTTP/1.1\r\n\r\n",
        "GET /v2 HTTP/1.1\r\n" + "A: b\r\n" * 200 + "\r\n",
        "GET /v2 HTTP/1.1\r\nA: " + "b" * 70000 + "\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        post + "Content-Length: -1\r\n\r\n",
        post + "Content-Length: x\r\n\r\n",
        post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        post + f"Content-Length: {10**15}\r\n\r\n",
        post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + "Transfer-Encoding: gzip\r\n\r\n",
        post + "Content-Length: 5\r\nExpect: tea\r\n\r\n",
        chunked + "xyz\r\n",
        chunked + "-1\r\n",
        chunked + "5\r\nabcdefg\r\n",
        chunked + "1;" + "a" * 2000 + "\r\n",
        chunked + f"{1 << 40:x}\r\n",
        chunked + "2\r\nab\r\n0\r\nContent-Length: 3\r\n\r\n",
        chunked + "0\r\n" + "T: " + "t" * 9000 + "\r\n\r\n",
    ]
    return [text.encode("latin-1") for text in texts]


def refused() -> list[bytes]:
    """Well-framed requests with an error in them: the connection stays."""
    one = good_inputs()[0]
    return [
        *_wrong_documents(),
        *_wrong_tensors(one),
        *_wrong_binary(),
        *_wrong_compression(),
        *_wrong_paths(),
        *_wrong_loads(),
    ]


def _wrong_documents() -> list[bytes]:
    bodies = [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"inputs":[]}',
        b'{"inputs":{}}',
        b'{"inputs":[7]}',
        b'{"inputs":[null]}',
        b'{"id":7,"inputs":[]}',
        b'{"inputs":[{"name":"INPUT0"}]}',
        b'{"inputs":[{"name":1,"datatype":"INT32","shape":[1],"data":[1]}]}',
        b'{"parameters":7,"inputs":[]}',
        b'{"parameters":{"sequence_id":[]},"inputs":[]}',
        b'{"a":NaN,"inputs":[' + b"{" * 9,
        b'{"a":NaN,"inputs":' + b"[" * 5000,
        b'{"a":NaN,"b":' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
        b'{"inputs":[{"name":"\\ud800","datatype":"INT32","shape":[1,16],"data":[1]}]}',
    ]
    return [request("POST", _INFER, body) for body in bodies]


def _wrong_tensors(one: dict[str, Any]) -> list[bytes]:
    numbers = list(range(16))
    deep: Any = [1]
    for _ in range(300):
        deep = [deep]
    return [
        _changed(name="OTHER"),
        _changed(name="INPUT1"),
        _changed(datatype="FP32"),
        _changed(datatype="COMPLEX"),
        _changed(datatype="BYTES"),
        _changed(shape=[1, 15]),
        _changed(shape=[2, 16]),
        _changed(shape=[]),
        _changed(shape=[-1, 16]),
        _changed(shape=[1.5, 16]),
        _changed(shape="x"),
        _changed(shape=[2**63 - 1]),
        _changed(shape=[2**63, 16]),
        _changed(shape=[2**40, 2**40]),
        _changed(shape=[1] * 2000),
        _changed(shape=[99, 16]),
        _changed(shape=[2**63 - 1] * 20000),
        _changed(data=numbers[:-1]),
        _changed(data=[*numbers, 16]),
        _changed(data=None),
        _changed(data="abc"),
        _changed(data=[2**31] * 16),
        _changed(data=[1.5] * 16),
        _changed(data=[True] * 16),
        _changed(data=[None] * 16),
        _changed(data=["a"] * 16),
        _changed(data=[1e400] * 16),
        _changed(data=deep),
        _changed(parameters={"binary_data_size": 64}),
        _changed(data=None, parameters={"binary_data_size": -1}),
        _changed(data=None, parameters={"binary_data_size": 64}),
        _changed(data=None, parameters={"binary_data_size": 2**63}),
        _changed(data=None, parameters={"shared_memory_region": "none", "shared_memory_byte_size": 64}),
        infer_json("m", [one]),
        infer_json("m", [one, one]),
        infer_json("m", [*good_inputs(), one]),
        infer_json("m", good_inputs(), outputs=[{"name": "NONE"}]),
        infer_json("m", good_inputs(), outputs=[{}]),
        infer_json("m", good_inputs(), outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}]),
        infer_json("m", good_inputs(), parameters={"triton_x": 1}),
        infer_json("m", good_inputs(), parameters={"x": [1]}),
        infer_json("m", good_inputs(), parameters={"priority": -1}),
        infer_json("m", good_inputs(), "timeout-ms: soon"),
        infer_json("m", good_inputs(), parameters={"sequence_id": "x" * 200}),
    ]


def _wrong_binary() -> list[bytes]:
    return [
        _binary(64, 64, b"\1" * 127),
        _binary(64, 64, b"\1" * 129),
        _binary(60, 68, b"\1" * 128),
        _binary(0, 128, b"\1" * 128),
        _binary(2**62, 64, b"\1" * 128),
        _binary("64", 64, b"\1" * 128),
        _binary(64, 64, b"\1" * 128, -1),
        _binary(64, 64, b"\1" * 128, 10**9),
        _binary(64, 64, b"\1" * 128, 3),
        _binary(64, 64, b"\1" * 128, "x"),
        _binary(64, 64, b"\1" * 128, "9" * 40),
        _binary(64, 64, b"\1" * 128, 0),
        _binary(64, 64, b"\1" * 200_000),
        _binary(100_000, 100_000, b"\1" * 200_000),
        _binary(10**6, 64, b"\1" * 400_000),
        request("POST", _INFER, b"\1" * 64, "Inference-Header-Content-Length: 0"),
        request("POST", "/v2/models/text/infer", b"\xff" * 40_000, "Inference-Header-Content-Length: 5"),
    ]


def _wrong_compression() -> list[bytes]:
    good = json.dumps({"inputs": good_inputs()}).encode()
    zipped, bomb = gzip.compress(good), gzip.compress(bytes(BOMB))
    zipped_length = "Inference-Header-Content-Length: 9999"
    return [
        *(
            request("POST", _INFER, body, f"Content-Encoding: {name}")
            for body, name in (
                (b"", "gzip"),
                (b"not gzip", "gzip"),
                (zipped[:-9], "gzip"),
                (zipped[:20], "gzip"),
                (bomb, "gzip"),
                (zlib.compress(bytes(BOMB)), "deflate"),
                (good, "br"),
                (good, "gzip, gzip"),
                (gzip.compress(zipped), "gzip"),
            )
        ),
        request("POST", _INFER, zipped, "Content-Encoding: gzip", zipped_length),
    ]


def _wrong_paths() -> list[bytes]:
    body = json.dumps({"inputs": good_inputs()}).encode()
    paths = [
        "/",
        "/v3",
        "/v2/",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/none/infer",
        "/v2/models/m/versions/7/infer",
        "/v2/models/m/versions/x/infer",
        "/v2/models/m/versions/99999999999999999999/infer",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/%00/infer",
        "/v2/models/..%2f..%2fetc/infer",
        "/v2/models/m/generate2",
        f"/v2/models/{'m' * 4000}/infer",
        "/v2/models/m/versions/1/versions/1",
        "/%ff%fe",
        "/v2/models/a%20b/infer",
    ]
    others = [("DELETE", _INFER), ("PUT", "/v2"), ("POST", "/v2/health/live"), ("BREW", "/v2"), ("GET", _INFER)]
    return [request("POST", path, body) for path in paths] + [request(method, path, b"") for method, path in others]


def _load(name: str, parameters: object) -> bytes:
    text = json.dumps({"parameters": parameters}).encode()
    return request("POST", f"/v2/repository/models/{name}/load", text)


def _wrong_loads() -> list[bytes]:
    config = json.dumps({"backend": "python", "max_batch_size": 8})
    content = base64.b64encode(b"x" * 50).decode()
    deep = "[" * 3000 + "]" * 3000
    parameters: list[object] = [
        7,
        [],
        {"config": 7},
        {"config": "{"},
        {"config": "[]"},
        {"config": deep},
        {"config": '{"input":' + deep + "}"},
        {"config": '{"a":' * 3000 + "1" + "}" * 3000},
        {"config": '{"no_such_field": 1}'},
        {"config": "\x00"},
        {"config": '{"backend": "no_such_backend"}'},
        {"config": '{"max_batch_size": 99999999999999999999}'},
        {"config": '{"max_batch_size": -7}'},
        {"color": "red"},
        {"file:1/model.py": content},
        {"config": config, "file:1/model.py": "***"},
        {"config": config, "file:": content},
        {"config": config, "file:../../x": content},
        {"config": config, "file:/etc/x": content},
        {"config": config, "file:1/\x00": content},
        {"config": config, f"file:{'d/' * 3000}x": content},
        {"config": config, f"file:{'n' * 300}": content},
        {"config": config, "file:1": content, "file:1/model.py": content},
        {"config": config, "file:1/": content},
        {"config": config, "file:.": content},
        {"config": '{"name": "other"}'},
    ]
    return [
        *(_load("spare", one) for one in parameters),
        *(_load(name, {}) for name in _WRONG_NAMES),
        request("POST", "/v2/repository/models/m/load", b"{"),
        request("POST", "/v2/repository/models/m/unload", b"{"),
        request("POST", "/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":7}}'),
        request("POST", "/v2/repository/index", b'{"ready":7}'),
        request("POST", "/v2/repository/index", b"["),
        request("POST", "/v2/repository/x/models/m/load", b"{}"),
        request("POST", "/v2/systemsharedmemory/region/a/register", b'{"key":"/k","offset":0,"byte_size":64}'),
    ]


def mutations(seed: int) -> Iterator[bytes]:
    """Good requests with a few bytes changed, lost or doubled; most are bad, some stay good."""
    dice = random.Random(seed)
    good = [infer_json("m", good_inputs()), good_binary(), request("GET", "/v2/models/m/config")]
    while True:
        data = bytearray(dice.choice(good))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(3):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 20)]
                case _:
                    data[at:at] = data[at : at + dice.randint(1, 20)]
        yield bytes(data)
