"""The v2 operations over HTTP."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from edge_serve.errors import InvalidArgument, Unavailable
from edge_serve.protocol.http1.errors import ContentTooLarge
from edge_serve.transport.v2.routes import RouteGroup
from tests.footprint import footprint
from tests.transport.v2_scene import BINARY, JSON, PLAIN, Door, FakeExchange, FakeLease, head_of


def binary_request(values: bytes = bytes(8), /, **members: Any) -> tuple[bytes, dict[str, str]]:
    item = {
        "name": "X",
        "datatype": "INT32",
        "shape": [len(values) // 4],
        "parameters": {"binary_data_size": len(values)},
    }
    text = json.dumps({"inputs": [item], **members}).encode()
    return text + values, {"Inference-Header-Content-Length": str(len(text))}


REQUEST = b'{"inputs":[{"name":"X","datatype":"INT32","shape":[2],"data":[1,2]}]}'


def test_json_in_json_out() -> None:
    exchange = Door().infer(REQUEST)
    assert (exchange.status, exchange.content_type, exchange.headers) == (200, JSON, {})
    assert exchange.json["outputs"] == [{"name": "Y", "datatype": "INT32", "shape": [2], "data": [1, 2]}]


def test_binary_in_binary_out() -> None:
    body, headers = binary_request(
        b"\1\0\0\0\2\0\0\0", id="r", outputs=[{"name": "Y", "parameters": {"binary_data": True}}]
    )
    door = Door()
    for _ in range(2):  # the second time from what was remembered
        exchange = door.infer(body, headers)
        assert (exchange.status, exchange.content_type) == (200, BINARY)
        length = int(exchange.headers["Inference-Header-Content-Length"])
        assert json.loads(exchange.content[:length])["id"] == "r"
        assert exchange.content[length:] == b"\1\0\0\0\2\0\0\0"
    assert [request.model_version for request in door.service.requests] == ["", ""]
    assert door.call("POST", "/v2/models/m/versions/03/infer", body, headers).status == 200
    assert door.service.requests[-1].model_version == "3"


def test_raw_request_gets_a_binary_reply() -> None:
    exchange = Door().infer(b"\1\0\0\0", {"Inference-Header-Content-Length": "0"})
    assert (exchange.status, exchange.content_type) == (200, BINARY)
    assert exchange.content.endswith(b"\1\0\0\0")


@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "content_type", "text"),
    [
        ("nope", REQUEST, {}, 404, PLAIN, "Request for unknown model: 'nope' is not found"),
        ("d", REQUEST, {}, 501, PLAIN, "HTTP end point doesn't support models with decoupled transaction policy"),
        ("m", b"{", {}, 500, JSON, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ("m", b"", {}, 400, JSON, "the request body is empty"),
        ("m", b'{"inputs":[]}', {}, 400, JSON, "expected 1 inputs but got 0 inputs for model 'm'"),
        (
            "m",
            REQUEST,
            {"Inference-Header-Content-Length": "-1"},
            400,
            PLAIN,
            "inference header size should be in range",
        ),
        ("m", REQUEST, {"Content-Encoding": "br"}, 501, PLAIN, "Unsupported compression type"),
        ("m", REQUEST, {"Content-Encoding": "gzip"}, 400, PLAIN, "neither gzip nor deflate"),
        ("m", REQUEST, {"timeout-ms": "soon"}, 400, PLAIN, "Unable to parse timeout-ms"),
        ("broken", REQUEST, {}, 500, JSON, "the server failed to handle this request, its log says why"),
    ],
)
def test_refused_inference(
    model: str, body: bytes, headers: dict[str, str], status: int, content_type: str, text: str
) -> None:
    door = Door()
    exchange = door.infer(body, headers, model)
    assert (exchange.status, exchange.content_type) == (status, content_type)
    assert text in exchange.error
    assert door.service.requests == []
    assert door.service.client_errors == ([] if model == "broken" else [(model, "", status)])


def test_an_unsupported_encoding_is_refused_with_the_supported_ones() -> None:
    assert Door().infer(REQUEST, {"Content-Encoding": "br"}).headers == {"Accept-Encoding": "gzip, deflate"}


@pytest.mark.parametrize(("later", "content_type"), [(False, JSON), (True, PLAIN)])
def test_a_refusal_and_a_model_that_fails(later: bool, content_type: str) -> None:
    """A refusal of the scheduler is application/json, a later error text/plain, as in Triton."""
    door = Door()
    door.service.later = later
    door.service.error = Unavailable("Exceeds maximum queue size")
    door.service.response_lease = FakeLease()
    exchange = door.infer(REQUEST)
    for answer in door.service.waiting:
        answer()
    assert (exchange.status, exchange.content_type, exchange.error) == (503, content_type, "Exceeds maximum queue size")
    assert door.service.response_lease.released == 1
    assert door.service.client_errors == [("m", "", 503)]  # the service looks whose error it is


def test_errors_of_clients_are_counted_for_inference_only() -> None:
    door = Door()
    assert door.call("GET", "/v2/models/m/versions/9").status == 404
    assert door.call("POST", "/v2/models/m/versions/9/infer", REQUEST).status == 404
    assert door.call("GET", "/v2/models/m/infer").status == 405
    assert door.service.client_errors == [("m", "9", 404), ("m", "", 405)]


def test_compressed_both_ways() -> None:
    body, headers = binary_request()
    packed = gzip.compress(body)
    exchange = Door().infer(packed, {**headers, "Content-Encoding": "gzip", "Accept-Encoding": "deflate;q=0.1, gzip"})
    assert (exchange.status, exchange.headers) == (200, {"Content-Encoding": "gzip"})
    assert json.loads(gzip.decompress(exchange.content))["outputs"][0]["data"] == [0, 0]
    refused = Door(max_input_size=len(body) - 1).infer(packed, {**headers, "Content-Encoding": "gzip"})
    assert "Decompressed data size exceeds the maximum allowed value" in refused.error


def test_forwarded_headers_become_parameters() -> None:
    door = Door(header_forward_pattern=re.compile("x-.*", re.IGNORECASE))
    body, headers = binary_request(parameters={"mine": 3})
    for value in ("1", "2"):
        door.infer(body, {**headers, "X-One": value})
        assert door.service.requests[-1].parameters == {"mine": 3, "X-One": value}
    for received, parameter in ((b"J\xc3\xbcrgen", "J\u00fcrgen"), (b"J\xfcrgen", "J\ufffdrgen")):  # UTF-8, latin-1
        door.infer(body, {**headers, "X-One": received.decode("latin-1")})
        assert door.service.requests[-1].parameters["X-One"] == parameter
    refused = Door(header_forward_pattern=re.compile("t")).infer(REQUEST, {"triton_x": "1"})
    assert (refused.status, refused.content_type) == (400, JSON)
    assert "is reserved for Triton usage and cannot be forwarded" in refused.error


def test_a_timeout_becomes_a_deadline() -> None:
    door = Door()
    door.infer(REQUEST, {"timeout-ms": "250"})
    door.infer(REQUEST)
    assert [request.deadline_ns for request in door.service.requests] == [250_001_000, 0]


def test_a_client_that_leaves_cancels_its_request() -> None:
    door = Door()
    door.service.later = True
    exchange = door.infer(REQUEST)
    assert exchange.status == 0
    assert exchange.on_cancelled is not None
    exchange.on_cancelled()
    assert door.service.ticket.cancelled == 1
    door.service.waiting.pop()()
    assert exchange.status == 200
    assert exchange.on_cancelled is None


def test_nothing_is_left_to_cancel_once_answered_at_once() -> None:
    assert Door().infer(REQUEST).on_cancelled is None


# ---- memory ----------------------------------------------------------------------------------------------------


def placed(door: Door, body: bytes, headers: dict[str, str]) -> FakeExchange:
    """Do the work of the connection: ask for memory, receive the body there, hand over."""
    head = head_of("POST", "/v2/models/m/infer", headers, len(body))
    lease = door.application.place(head, len(body))
    assert lease is not None
    view = lease.view[: len(body)]
    view[:] = body
    return FakeExchange(head, view, lease)


@pytest.mark.parametrize("padding", range(0, 64, 7))
def test_the_first_tensor_of_a_placed_body_lies_on_256_bytes(padding: int) -> None:
    door = Door()
    body, headers = binary_request(id="x" * padding)
    exchange = placed(door, body, headers)
    door.application.handle(exchange)
    assert exchange.status == 200
    (tensor,) = door.service.requests[0].inputs
    assert tensor.offset % 256 == 0
    lease = door.service.leases[0]
    start = tensor.offset - lease.offset
    lease.view[start] = 77
    assert tensor.data[0] == 77  # the tensor is that memory
    assert start + 8 <= door.service.lease_sizes[0] < len(body) + 256
    assert lease.released == 1


@pytest.mark.parametrize("damage", ["json", "model"])
def test_the_memory_of_a_refused_body_is_given_back(damage: str) -> None:
    door = Door()
    body, headers = binary_request()
    exchange = placed(door, b"[" + body[1:] if damage == "json" else body, headers)
    if damage == "model":
        exchange.head = head_of("POST", "/v2/models/nope/infer", headers, len(body))
    door.application.handle(exchange)
    assert exchange.status in (404, 500)
    assert [lease.released for lease in door.service.leases] == [1]
    assert door.service.requests == []


def test_the_memory_of_a_reply_is_given_back_when_it_has_been_sent() -> None:
    door = Door()
    lease = door.service.response_lease = FakeLease(memoryview(bytearray(8)), 0)
    binary: dict[str, Any] = {"outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}
    exchange = door.infer(*binary_request(**binary))
    assert lease.released == 0
    assert exchange.on_sent is not None
    exchange.on_sent()
    assert lease.released == 1
    assert door.infer(REQUEST).on_sent is None  # JSON holds a copy
    assert lease.released == 2
    body, headers = binary_request(**binary)
    assert door.infer(body, {**headers, "Accept-Encoding": "gzip"}).on_sent is None
    assert lease.released == 3


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v2/models/m/infer", {}),
        ("/v2/models/m/infer", {"Inference-Header-Content-Length": "20", "Content-Encoding": "gzip"}),
        ("/v2/models/m/infer", {"Inference-Header-Content-Length": "900000"}),
        ("/v2/models/nope/infer", {"Inference-Header-Content-Length": "20"}),
        ("/v2/repository/models/m/load", {"Inference-Header-Content-Length": "20"}),
        ("/nowhere", {}),
    ],
)
def test_other_bodies_are_not_placed(path: str, headers: dict[str, str]) -> None:
    assert Door().application.place(head_of("POST", path, headers, 70_000), 70_000) is None


def test_bodies_that_are_too_large_are_refused_before_they_are_read() -> None:
    door = Door(max_input_size=1000)
    for path in ("/v2/models/m/infer", "/v2/repository/models/m/load"):
        with pytest.raises(InvalidArgument, match="request JSON size of 1001 bytes exceeds"):
            door.application.check(head_of("POST", path, {}, 1001), 1001)
    assert door.service.client_errors == [("m", "", 400)]
    headers = {"Inference-Header-Content-Length": "200"}
    assert door.application.place(head_of("POST", "/v2/models/m/infer", headers, 5000), 5000) is not None
    door.service.lease_error = Unavailable("no tensor memory is left")
    with pytest.raises(Unavailable):
        door.application.place(head_of("POST", "/v2/models/m/infer", headers, 5000), 5000)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/m/unload",
        "/v2/logging",
        "/v2/systemsharedmemory/region/r/register",
        "/edge-serve/reload",
    ],
)
def test_a_large_body_of_a_short_operation_is_refused_unread(path: str) -> None:
    door, body = Door(), b'{"a":[' + b"{}," * 100_000 + b"{}]}"
    with pytest.raises(ContentTooLarge, match="a body of 300010 bytes is larger than 262144 bytes"):
        door.application.check(head_of("POST", path, length=len(body)), len(body))

    assert door.call("POST", path, body).status == 413  # a chunked body, whose size the head does not say
    door.application.check(head_of("POST", "/v2/repository/models/m/load", length=len(body)), len(body))  # has files


def test_health_may_be_json() -> None:
    door = Door(health_json=True)
    assert door.call("GET", "/v2/health/live").json == {"live": True}
    assert door.call("GET", "/v2/health/ready").json == {"ready": True}
    assert door.call("GET", "/v2/models/m/ready").json == {"name": "m", "ready": True}


# ---- the other operations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type", "expected"),
    [
        ("GET", "/v2/health/live", 200, PLAIN, None),
        ("GET", "/v2/health/ready?x=1", 200, PLAIN, None),
        ("GET", "/v2", 200, JSON, {"name": "triton", "version": "2", "extensions": ["x"]}),
        ("GET", "/v2/models/m/ready", 200, PLAIN, None),
        ("GET", "/v2/models/nope/ready", 400, PLAIN, {"error": "Model version not ready"}),
        ("GET", "/v2/models/m/versions/9/ready", 400, PLAIN, {"error": "Model version not ready"}),
        ("GET", "/v2/models/nope", 404, JSON, {"error": "Request for unknown model: 'nope' is not found"}),
        ("GET", "/v2/models/%6d/config", 200, JSON, {"name": "m", "made": True}),
        ("GET", "/v2/models/nope/config", 404, JSON, {"error": "Request for unknown model: 'nope' is not found"}),
        ("POST", "/v2/repository/index", 200, JSON, [{"name": "m", "version": "3", "state": "READY"}]),
        ("POST", "/v2/repository/x/index", 200, JSON, [{"name": "m", "version": "3", "state": "READY"}]),
        ("POST", "/v2/repository/r/models/m/load", 501, JSON,
         {"error": "'repository_name' specification is not supported"}),
        ("GET", "/v2/systemsharedmemory/status", 200, JSON, []),
        ("GET", "/v2/cudasharedmemory/status", 200, JSON, []),
        ("GET", "/v2/systemsharedmemory/region/r/status", 404, JSON,
         {"error": "Unable to find system shared memory region: 'r'"}),
        ("GET", "/v2/", 404, PLAIN, {"error": "Not Found"}),
        ("POST", "/v2/models/m/inferx", 404, PLAIN, {"error": "Not Found"}),
        ("POST", "/v2", 405, JSON, {"error": "Method Not Allowed"}),
        ("PUT", "/v2/models/m", 405, JSON, {"error": "Method Not Allowed"}),
        ("GET", "/v2/models/m/infer", 405, PLAIN, {"error": "Method Not Allowed"}),
        ("POST", "/v2/health/live", 405, PLAIN, {"error": "Method Not Allowed"}),
    ],
)  # fmt: skip
def test_operations(method: str, path: str, status: int, content_type: str, expected: Any) -> None:
    exchange = Door().call(method, path)
    assert (exchange.status, exchange.content_type) == (status, content_type)
    assert exchange.content == b"" if expected is None else exchange.json == expected


def test_405_names_the_methods() -> None:
    assert Door().call("PUT", "/v2/logging").headers == {"Allow": "GET, POST"}


def test_health_of_a_server_that_is_not_well() -> None:
    door = Door()
    door.service.alive = False
    assert [door.call("GET", path).status for path in ("/v2/health/live", "/v2/health/ready")] == [200, 400]
    assert door.call("GET", "/v2/models/m/ready").error == "Model version not ready"
    door.service.is_exiting = True
    exchange = door.call("GET", "/v2/health/live")
    assert (exchange.status, exchange.error) == (503, "Server exiting")


def test_statistics() -> None:
    def names(path: str) -> tuple[str, str]:
        (entry,) = Door().call("GET", path).json["model_stats"]
        return entry["name"], entry["version"]

    assert names("/v2/models/stats") == ("all", "1")
    assert names("/v2/models/m/stats") == ("m", "1")
    assert names("/v2/models/m/versions/3/stats") == ("m", "3")


def test_load_and_unload() -> None:
    door = Door()
    body = b'{"parameters":{"config":"{}","file:1/model.py":"YQ=="}}'
    exchange = door.call("POST", "/v2/repository/models/a%2Bb/load", body)
    assert (exchange.status, exchange.content, exchange.content_type) == (200, b"", JSON)
    door.call("POST", "/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":true}}')
    assert door.service.loads == [("a+b", {"config": "{}", "file:1/model.py": b"a"}), ("m", True)]
    door.service.control_error = Unavailable("explicit model load / unload is not allowed if polling is enabled")
    refused = door.call("POST", "/v2/repository/models/m/load")
    assert (refused.status, refused.error) == (503, door.service.control_error.message)
    wrong = door.call("POST", "/v2/repository/models/m/load", b"{")
    assert (wrong.status, wrong.content_type, len(door.service.loads)) == (500, JSON, 3)


def test_index_of_ready_models() -> None:
    assert Door().call("POST", "/v2/repository/index", b'{"ready":true}').content == b"[]"


def test_restricted_operations_want_their_header() -> None:
    door = Door(restricted={RouteGroup.METADATA: ("Adm-Key", "v"), RouteGroup.INFERENCE: ("Adm-Key", "v")})
    for method, path in (("GET", "/v2/models/nope"), ("POST", "/v2"), ("POST", "/v2/models/m/infer")):
        for headers in ({}, {"adm-key": "w"}):
            exchange = door.call(method, path, REQUEST, headers)
            assert (exchange.status, exchange.content_type) == (403, PLAIN)
            assert exchange.error == "This API is restricted, expecting header 'Adm-Key'"
    assert door.call("GET", "/v2/models/m", headers={"ADM-KEY": "v"}).status == 200
    assert door.call("GET", "/v2/models/m/config").status == 200
    assert door.infer(REQUEST, {"Adm-Key": "v"}).status == 200


def test_a_version_that_is_no_number_of_64_bits() -> None:
    exchange = Door().call("GET", "/v2/models/m/versions/99999999999999999999")
    assert exchange.status == 400
    assert "version should be an integral value > 0" in exchange.error


def test_heads_are_remembered_within_bounds() -> None:
    door, sizes = Door(), []
    for number in range(3000):
        assert door.call("GET", f"/v2/models/m?{number}").status == 200
        sizes.append(footprint(door.application) if number % 500 == 499 else 0)
    assert max(sizes) < 1.1 * sizes[999]
    before = footprint(door.application)
    assert door.call("GET", "/v2/models/m", headers={"X-Long": "y" * 5000}).status == 200
    assert footprint(door.application) < before + 5
