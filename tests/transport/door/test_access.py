"""Roles of operations, and doors that ask for them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_serve.access.roles import Role
from edge_serve.errors import PermissionDenied, Unauthenticated
from edge_serve.messages.peer import LOCAL, Certificate, Peer
from edge_serve.transport.door.access import Access, AccessSettings
from edge_serve.transport.grpc_service.calls import UnaryCalls
from edge_serve.transport.http.metrics import MetricsApplication
from edge_serve.transport.http.replies import MethodNotAllowed
from edge_serve.transport.v2.application import V2Application
from edge_serve.transport.v2.head import V2Settings
from edge_serve.transport.v2.routes import Operation, PathNotFound, Restricted, RouteGroup
from tests.footprint import footprint
from tests.transport.metrics_scene import answered, page_of
from tests.transport.v2_scene import Door, FakeExchange, FakeService, head_of

FAR = Peer(local=False)


def line(role: str, token: str) -> str:
    return f"{role} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"


class Guarded:
    """An application behind an access."""

    def __init__(self, **settings: Any) -> None:
        self.access = Access(AccessSettings(**settings))
        self.service = FakeService()
        v2 = V2Settings(restricted={RouteGroup.STATISTICS: ("k", "v")})
        self.application = V2Application(self.service, v2, config_to_json=lambda config: config, access=self.access)

    def call(self, method: str, path: str, headers: dict[str, str] | None = None, peer: Peer = LOCAL) -> FakeExchange:
        exchange = FakeExchange(head_of(method, path, headers))
        self.application.for_peer(peer).handle(exchange)
        return exchange


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(line("read", "r") + line("infer", "i") + line("admin", "a"))
    return path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_roles_of_operations() -> None:
    admin = {
        Operation.MODEL_LOAD, Operation.MODEL_UNLOAD, Operation.SYSTEM_SHM_REGISTER,
        Operation.SYSTEM_SHM_UNREGISTER, Operation.CUDA_SHM_REGISTER, Operation.CUDA_SHM_UNREGISTER,
        Operation.LEAVE_SAFE_MODE, Operation.RELOAD,
    }  # fmt: skip
    for operation in Operation:
        roles = {method: operation.role(method) for method in operation.methods}
        if operation in admin:
            assert set(roles.values()) == {Role.ADMIN}
        elif operation.group is RouteGroup.INFERENCE:
            assert set(roles.values()) == {Role.INFER}
        elif operation.group is RouteGroup.HEALTH:
            assert set(roles.values()) == {Role.HEALTH}
        elif operation in (Operation.LOGGING, Operation.TRACE_SETTING):
            assert roles == {"GET": Role.READ, "POST": Role.ADMIN}
        elif operation.group.value != "page":
            assert set(roles.values()) == {Role.READ}


def test_roles_of_calls_are_those_of_operations() -> None:
    for path, call in UnaryCalls(FakeService()).table.items():
        changes = any(word in path for word in ("Load", "Unload", "Register", "Unregister"))
        wanted = {RouteGroup.HEALTH: Role.HEALTH}.get(call.group, Role.ADMIN if changes else Role.READ)
        assert call.role is wanted, path


def test_statuses_and_challenges(tokens: Path) -> None:
    door = Guarded(token_file=str(tokens))
    nobody = door.call("GET", "/v2")
    assert (nobody.status, nobody.headers) == (401, {"WWW-Authenticate": 'Bearer realm="edge-serve"'})
    assert "Authorization: Bearer" in nobody.error
    wrong = door.call("GET", "/v2", bearer("x"))
    assert wrong.headers == {"WWW-Authenticate": 'Bearer realm="edge-serve", error="invalid_token"'}
    assert door.call("GET", "/v2", bearer("r")).status == 200
    assert door.call("GET", "/v2/health/live").status == 401
    low = door.call("POST", "/v2/repository/models/m/load", bearer("i"))
    assert (low.status, low.headers) == (403, {})
    assert door.call("POST", "/v2/repository/models/m/load", bearer("a")).status == 200
    assert door.access.denied == 4


def test_a_head_that_comes_again_gets_the_same_answer_until_the_file_changes(tokens: Path) -> None:
    door = Guarded(token_file=str(tokens))
    for _ in range(2):
        assert door.call("GET", "/v2", bearer("new")).status == 401
        assert door.call("GET", "/v2", bearer("r")).status == 200
    tokens.write_text(line("read", "new"))
    os.utime(tokens, (1, 1))
    asyncio.run(door.access.reload_changed())
    assert door.call("GET", "/v2", bearer("r")).status == 200  # not settled
    asyncio.run(door.access.reload_changed())
    assert door.call("GET", "/v2", bearer("new")).status == 200
    assert door.call("GET", "/v2", bearer("r")).status == 401


def test_clients_are_distinguished() -> None:
    door = Guarded()
    load = ("POST", "/v2/repository/models/m/load")
    for _ in range(2):
        assert door.call(*load).status == 200
        assert door.call(*load, peer=FAR).status == 403
        assert door.call("GET", "/v2", peer=FAR).status == 200
    assert door.call(*load, {"X-Forwarded-For": "1.2.3.4"}).status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://h"}, 403),  # the name in Host, which its owner may have made to point here
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "https://friend"}, 200),
    ],
)
def test_pages_of_other_servers_may_not_administrate(headers: dict[str, str], status: int) -> None:
    door = Guarded(origins=["https://friend"])
    assert door.call("POST", "/v2/repository/models/m/load", headers).status == status
    assert door.call("GET", "/v2", headers).status == 200


def test_our_own_page_is_not_foreign() -> None:
    access = Access(AccessSettings())
    assert not access.is_foreign("http://127.0.0.1:8000", "127.0.0.1:8000")
    assert not access.is_foreign("https://localhost", "localhost")
    assert access.is_foreign("http://127.0.0.1:9000", "127.0.0.1:8000")
    assert Access(AccessSettings(origins=["*"])).is_foreign("http://any", "127.0.0.1:8000")


def test_a_page_opened_by_the_name_of_the_machine_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(AccessSettings())
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="Cart-7.example.com"))
    for name in ("cart-7.example.com", "cart-7.local", "CART-7.local", "cart-7", "cart-7.local.", "localhost."):
        assert not access.is_foreign(f"http://{name.lower()}:8000", f"{name}:8000")
    for name in ("evil.example", "cart-8.local", "cart-7.evil.example", "cart-8", "local", "."):
        assert access.is_foreign(f"http://{name}:8000", f"{name}:8000")
    assert access.is_foreign("http://evil.example:8000", "cart-7.local:8000")
    assert access.is_foreign("http://cart-7.local:9000", "cart-7.local:8000")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=""))
    assert access.is_foreign("http://.local:8000", ".local:8000")


def test_an_error_names_the_clients_role_and_the_reason_against_administration(tokens: Path) -> None:
    guarded = Guarded(token_file=str(tokens))

    def told(token: str, host: str = "localhost:8000", peer: Peer = LOCAL) -> tuple[str, str]:
        headers = {**bearer(token), "Host": host, "k": "v"}
        client = guarded.call("GET", "/edge-serve/status", headers, peer).json["client"]
        return client["role"], client["admin_refusal"]

    assert told("a") == ("admin", "")
    assert told("i") == ("infer", "this needs the role admin, and this client has the role infer")
    assert told("r")[0] == "read"
    role, refusal = told("a", peer=FAR)
    assert role == "infer"
    assert "from another machine" in refusal
    role, refusal = told("a", host="of-another-machine.local:8000")  # browsers send this origin with a POST of the page
    assert role == "infer"
    assert "http://of-another-machine.local:8000" in refusal
    assert "by the device's address or host name, or start the server with the page's origin in --http-cors" in refusal
    assert told("a", host=f"{os.uname().nodename}:8000") == ("admin", "")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": f"{os.uname().nodename}:8000"}, True),
        ({"host": "evil.example:8000"}, False),  # DNS rebinding: the page's own server, so without an origin
        ({"host": "127.0.0.1:8000", "origin": "http://evil.example"}, False),
        ({"host": "evil.example:8000", "authorization": "Bearer r"}, True),
        ({"host": "box.lan:8000"}, True),
    ],
)
def test_pages_of_others_read_no_log_on_the_device(tokens: Path, headers: dict[str, str], allowed: bool) -> None:
    settings = AccessSettings(str(tokens), anonymous=Role.READ, origins=["*", "http://box.lan:8000"])
    gate = Access(settings).gate(LOCAL)
    assert gate is not None
    assert gate.rights_of_page(headers.get)[2] is allowed


def test_the_socket_for_administration_knows_no_restrictions(tokens: Path) -> None:
    door = Guarded(token_file=str(tokens))
    admin = Peer(local=True, administrator=True)
    assert door.call("POST", "/v2/repository/models/m/load", peer=admin).status == 200
    assert door.call("GET", "/v2/models/m/stats", peer=admin).status == 200
    assert door.call("GET", "/v2/models/m/stats", bearer("r")).status == 403  # --http-restricted-api holds for others


def test_a_large_body_is_refused_before_it_is_read(tokens: Path) -> None:
    door = Guarded(token_file=str(tokens))
    head = head_of("POST", "/v2/models/m/infer", {}, 100_000)
    with pytest.raises(Unauthenticated):
        door.application.for_peer(LOCAL).check(head, 100_000)
    head = head_of("POST", "/v2/models/m/infer", bearer("r"), 100_000)
    with pytest.raises(PermissionDenied):
        door.application.for_peer(LOCAL).check(head, 100_000)
    refusals: tuple[tuple[str, str, type[Exception]], ...] = (
        ("POST", "/nowhere", PathNotFound),
        ("GET", "/v2/models/m/infer", MethodNotAllowed),
        ("GET", "/v2/models/m/stats", Restricted),
    )
    for method, path, error in refusals:
        with pytest.raises(error):
            door.application.for_peer(LOCAL).check(head_of(method, path, bearer("i"), 0), 0)


def test_clients_with_certificates_do_not_pile_up(tmp_path: Path) -> None:
    roles = tmp_path / "roles"
    roles.write_text("read CN=c1\n")
    door, sizes = Guarded(certificate_file=str(roles)), []
    for number in range(1000):
        peer = Peer(False, False, Certificate(f"{number:064x}", frozenset({("CN", f"c{number}")})))
        assert door.call("GET", "/v2", peer=peer).status == (200 if number == 1 else 403)
        sizes.append(footprint(door.application) if number % 100 == 99 else 0)
    assert max(sizes) < 1.1 * sizes[99]


def test_the_metrics_page_needs_the_role_read(tokens: Path) -> None:
    access = Access(AccessSettings(token_file=str(tokens)))
    metrics = MetricsApplication(page_of(b"page"), access)
    for headers, status in (({}, 401), (bearer("r"), 200), (bearer("x"), 401)):
        exchange = FakeExchange(head_of("GET", "/metrics", headers))
        application = metrics.for_peer(LOCAL)
        answered(application, exchange)
        assert exchange.status == status
    assert access.denied == 2


def test_without_an_access_nothing_stands_in_the_way() -> None:
    door = Door()
    exchange = FakeExchange(head_of("POST", "/v2/repository/models/m/load"))
    door.application.for_peer(FAR).handle(exchange)
    assert exchange.status == 200
