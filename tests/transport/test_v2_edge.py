"""The status document and the status page over HTTP."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re

import pytest

from edge_serve.access.roles import Role
from edge_serve.protocol.routes import Group, Operation
from edge_serve.transport.access import role_of_operation
from tests.transport.v2_scene import JSON, PLAIN, Door

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_the_status_is_a_json_document_that_nobody_keeps() -> None:
    exchange = Door().call("GET", "/edge-serve/status")

    assert (exchange.status, exchange.content_type) == (200, JSON)
    assert exchange.json == {"server": {"state": "ready"}}
    assert exchange.headers["Cache-Control"] == "no-store"


def test_the_status_is_in_the_group_of_statistics() -> None:
    door = Door(restricted={Group.STATISTICS: ("key", "secret")}, ui=True)

    assert door.call("GET", "/edge-serve/status").status == 403
    assert door.call("GET", "/edge-serve/status", headers={"key": "secret"}).status == 200
    assert door.call("GET", "/ui").status == 200


def test_the_order_to_leave_safe_mode_is_an_administrator_s() -> None:
    path = "/edge-serve/safe-mode/leave"
    assert Door().call("POST", path).json == {"left_out": ["left", "out"]}
    assert Door().call("GET", path).status == 405
    assert role_of_operation(Operation.LEAVE_SAFE_MODE, "POST") is Role.ADMIN


def test_the_page_comes_plain_and_compressed() -> None:
    door = Door(ui=True)
    plain = door.call("GET", "/ui")
    packed = door.call("GET", "/ui", headers={"Accept-Encoding": "br, gzip"})

    assert (plain.status, plain.content_type) == (200, "text/html; charset=utf-8")
    assert plain.content.startswith(b"<!doctype html>")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content


def test_a_browser_that_has_the_page_is_told_so() -> None:
    door = Door(ui=True)
    etag = door.call("GET", "/ui").headers["ETag"]
    again = door.call("GET", "/ui", headers={"If-None-Match": etag})
    other = door.call("GET", "/ui", headers={"If-None-Match": 'W/"other"'})

    assert (again.status, again.content) == (304, b"")
    assert again.headers["ETag"] == etag
    assert other.status == 200


def test_only_the_pages_own_script_and_style_may_run() -> None:
    exchange = Door(ui=True).call("GET", "/ui")
    policy = exchange.headers["Content-Security-Policy"]

    for kind in (b"script", b"style"):
        (text,) = re.findall(rb"<%b>(.*?)</%b>" % (kind, kind), exchange.content, re.DOTALL)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_page_names_no_other_place() -> None:
    text = Door(ui=True).call("GET", "/ui").content.decode()

    assert set(re.findall(r"https?://[^\s'\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?:link|script|img|iframe)[^>]+(?:src|href)=\"(?!data:)", text)


def test_a_browser_at_the_root_is_led_to_the_page() -> None:
    exchange = Door(ui=True).call("GET", "/", headers=BROWSER)

    assert (exchange.status, exchange.headers["Location"], exchange.headers["Vary"]) == (302, "ui", "Accept")


@pytest.mark.parametrize(
    ("method", "path", "headers", "ui"),
    [
        ("GET", "/", {}, True),
        ("GET", "/", {"Accept": "*/*"}, True),
        ("POST", "/", BROWSER, True),
        ("POST", "/ui", {}, True),
        ("GET", "/ui/", {}, True),
        ("GET", "/", BROWSER, False),
        ("GET", "/ui", BROWSER, False),
    ],
)
def test_anything_else_gets_tritons_answer(method: str, path: str, headers: dict[str, str], ui: bool) -> None:
    door = Door(ui=ui)
    exchange, nowhere = door.call(method, path, headers=headers), door.call("GET", "/nowhere")

    assert (exchange.status, exchange.content_type, exchange.content) == (404, PLAIN, b'{"error":"Not Found"}')
    assert (exchange.status, exchange.headers, exchange.content) == (404, nowhere.headers, nowhere.content)


def test_a_name_that_is_no_utf8_does_not_break_the_document() -> None:
    door = Door()
    door.service.document = {"models": [{"name": "m\udcff"}]}

    assert door.call("GET", "/edge-serve/status").json == door.service.document
