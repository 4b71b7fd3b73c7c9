"""The status document and the status page over HTTP."""

from __future__ import annotations

import gzip
import re

import pytest

from edge_serve.access.roles import Role
from edge_serve.errors import Internal
from edge_serve.transport.http.page import page_files
from edge_serve.transport.v2.routes import Operation, RouteGroup
from tests.transport.v2_scene import JSON, PLAIN, Door

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_the_status_is_a_json_document_without_caching() -> None:
    exchange = Door().call("GET", "/edge-serve/status")

    assert (exchange.status, exchange.content_type) == (200, JSON)
    client = {"role": "admin", "admin_refusal": ""}
    assert exchange.json == {"server": {"state": "ready"}, "models": [], "client": client}
    assert exchange.headers["Cache-Control"] == "no-store"


def test_a_document_that_cannot_be_collected_is_an_error() -> None:
    door = Door()
    door.service.document = Internal("see the log")
    exchange = door.call("GET", "/edge-serve/status")

    assert (exchange.status, exchange.json) == (500, {"error": "see the log"})


def test_the_status_is_in_the_group_of_statistics() -> None:
    door = Door(restricted={RouteGroup.STATISTICS: ("key", "secret")}, ui=True)

    assert door.call("GET", "/edge-serve/status").status == 403
    assert door.call("GET", "/edge-serve/status", headers={"key": "secret"}).status == 200
    assert door.call("GET", "/ui").status == 200


def test_the_order_to_leave_safe_mode_is_an_administrator_s() -> None:
    path = "/edge-serve/safe-mode/leave"
    assert Door().call("POST", path).json == {"left_out": ["left", "out"]}
    assert Door().call("GET", path).status == 405
    assert Operation.LEAVE_SAFE_MODE.role("POST") is Role.ADMIN


def test_a_reload_is_an_administrator_s() -> None:
    path = "/edge-serve/reload"
    body = b'{"models": ["det", "det"], "unload_first": true}'
    one = {"name": "det", "versions": ["1"], "changed": True, "reason": ""}
    assert Door().call("POST", path, body).json == {"models": [one]}
    assert Door().call("POST", path).json == {"models": []}
    assert Door().call("GET", path).status == 405
    assert Operation.RELOAD.role("POST") is Role.ADMIN


def test_the_page_comes_plain_and_compressed() -> None:
    door = Door(ui=True)
    plain = door.call("GET", "/ui")
    packed = door.call("GET", "/ui", headers={"Accept-Encoding": "br, gzip"})

    assert (plain.status, plain.content_type) == (200, "text/html; charset=utf-8")
    assert plain.content.startswith(b"<!doctype html>")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content


def test_a_browser_that_has_the_page_gets_304() -> None:
    door = Door(ui=True)
    etag = door.call("GET", "/ui").headers["ETag"]
    again = door.call("GET", "/ui", headers={"If-None-Match": etag})
    other = door.call("GET", "/ui", headers={"If-None-Match": 'W/"other"'})

    assert (again.status, again.content) == (304, b"")
    assert again.headers["ETag"] == etag
    assert other.status == 200


def test_only_the_pages_own_files_may_run() -> None:
    policy = Door(ui=True).call("GET", "/ui").headers["Content-Security-Policy"]

    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


def test_the_page_loads_only_files_of_this_server() -> None:
    door = Door(ui=True)
    page = door.call("GET", "/ui").content.decode()
    seen: set[str] = set()
    wanted = {"ui/page.css", "ui/main.js"}
    named = re.findall(r'(?:href|src)="(ui/[^"]+)"', page)
    while wanted - seen:
        path = min(wanted - seen)
        seen.add(path)
        exchange = door.call("GET", f"/{path}")
        text = exchange.content.decode()
        assert (exchange.status, exchange.headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert exchange.content_type == ("text/css" if path.endswith("css") else "text/javascript") + "; charset=utf-8"
        wanted |= {f"ui/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
        page += text
    assert seen == {f"ui/{name}" for name in page_files() if name}, "every file is used"
    assert sorted(named) == sorted(seen), "every file is loaded at once, and none in vain"
    assert set(re.findall(r"https?://[^\s'\"`$]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| on[a-z]+=", page)


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
        ("GET", "/ui/index.html", {}, True),
        ("GET", "/ui/absent.js", {}, True),
        ("GET", "/ui/../v2.py", {}, True),
        ("GET", "/ui/main.js", {}, False),
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
    models = [{"name": "m\udcff"}]
    door.service.document = {"models": models}

    assert door.call("GET", "/edge-serve/status").json["models"] == models
