"""The decision whether a role may make a request."""

from __future__ import annotations

import hashlib

import pytest

from edge_serve.access.credentials import parse_certificate_roles, parse_tokens
from edge_serve.access.policy import AccessRequest, AdminAccess, Policy
from edge_serve.access.roles import Role
from edge_serve.errors import PermissionDenied, Unauthenticated
from edge_serve.messages.peer import LOCAL, Certificate, Peer

FAR = Peer(local=False)
CAMERA = Certificate("ab" * 32, frozenset({("CN", "camera")}))
TOKENS = parse_tokens(
    "".join(
        f"{role.word} sha256:{hashlib.sha256(role.word.encode()).hexdigest()}\n"
        for role in (Role.HEALTH, Role.READ, Role.INFER, Role.ADMIN)
    )
)
ROLES = parse_certificate_roles("infer CN=camera")


def bearer(token: str) -> AccessRequest:
    return AccessRequest(f"Bearer {token}")


@pytest.mark.parametrize("needed", list(Role))
def test_nothing_configured_and_on_this_device(needed: Role) -> None:
    assert Policy().check(LOCAL, needed, AccessRequest()) is None


def test_administration_from_elsewhere() -> None:
    assert Policy().check(FAR, Role.INFER, AccessRequest()) is None
    refusal = Policy().check(FAR, Role.ADMIN, AccessRequest())
    assert isinstance(refusal, PermissionDenied)
    assert "from another machine" in refusal.message
    assert "--admin-access=anywhere" in refusal.message
    assert Policy(admin_access=AdminAccess.ANYWHERE).check(FAR, Role.ADMIN, AccessRequest()) is None


def test_administration_through_a_proxy_on_this_device() -> None:
    refusal = Policy().check(LOCAL, Role.ADMIN, AccessRequest(forwarded=True))
    assert isinstance(refusal, PermissionDenied)
    assert "through a proxy" in refusal.message


@pytest.mark.parametrize("peer", [LOCAL, FAR])
def test_administration_through_its_socket_only(peer: Peer) -> None:
    policy = Policy(TOKENS, admin_access=AdminAccess.SOCKET)
    assert isinstance(policy.check(peer, Role.ADMIN, bearer("admin")), PermissionDenied)
    assert policy.check(Peer(local=True, administrator=True), Role.ADMIN, AccessRequest()) is None


def test_a_page_from_elsewhere_may_not_administrate() -> None:
    for access in AdminAccess:
        refusal = Policy(admin_access=access).check(LOCAL, Role.ADMIN, AccessRequest(origin="http://evil"))
        assert isinstance(refusal, PermissionDenied)
    assert Policy().check(LOCAL, Role.READ, AccessRequest(origin="http://evil")) is None


@pytest.mark.parametrize("given", [Role.HEALTH, Role.READ, Role.INFER, Role.ADMIN])
@pytest.mark.parametrize("needed", list(Role))
def test_a_role_includes_the_lesser(given: Role, needed: Role) -> None:
    refusal = Policy(TOKENS).check(LOCAL, needed, bearer(given.word))
    if needed <= given:
        assert refusal is None
    else:
        assert isinstance(refusal, PermissionDenied)
        assert needed.word in refusal.message
        assert given.word in refusal.message


@pytest.mark.parametrize(
    "authorization", [None, "Basic YTpi", "Bearer", "bearer  ", "Token admin", "admin", "Bearer x"]
)
def test_without_a_token_that_is_known(authorization: str | None) -> None:
    refusal = Policy(TOKENS).check(LOCAL, Role.READ, AccessRequest(authorization))
    assert isinstance(refusal, Unauthenticated)
    assert refusal.invalid is (authorization in ("Bearer x", "Bearer", "bearer  "))


def test_the_word_bearer_in_any_case() -> None:
    assert Policy(TOKENS).check(LOCAL, Role.READ, AccessRequest("bEARER read")) is None


def test_anonymous_clients_may_have_a_role() -> None:
    policy = Policy(TOKENS, anonymous=Role.READ)
    assert policy.check(FAR, Role.READ, AccessRequest()) is None
    assert isinstance(policy.check(FAR, Role.INFER, AccessRequest()), Unauthenticated)
    assert isinstance(policy.check(FAR, Role.READ, bearer("wrong")), Unauthenticated)


def test_certificates() -> None:
    known, unknown = Peer(local=False, certificate=CAMERA), Peer(False, False, Certificate("cd" * 32, frozenset()))
    policy = Policy(certificates=ROLES)
    assert policy.check(known, Role.INFER, AccessRequest()) is None
    assert isinstance(policy.check(known, Role.ADMIN, AccessRequest()), PermissionDenied)
    assert isinstance(policy.check(unknown, Role.READ, AccessRequest()), PermissionDenied)
    assert isinstance(policy.check(FAR, Role.READ, AccessRequest()), Unauthenticated)


def test_the_higher_of_token_and_certificate_counts() -> None:
    policy = Policy(TOKENS, ROLES, admin_access=AdminAccess.ANYWHERE)
    camera = Peer(local=False, certificate=CAMERA)
    assert policy.check(camera, Role.INFER, bearer("read")) is None
    assert policy.check(camera, Role.ADMIN, bearer("admin")) is None


def test_an_admins_token_does_not_open_administration_from_elsewhere() -> None:
    assert isinstance(Policy(TOKENS).check(FAR, Role.ADMIN, bearer("admin")), PermissionDenied)


@pytest.mark.parametrize("anonymous", [Role.READ, Role.INFER])
def test_the_log_is_for_own_roles_and_for_this_device(anonymous: Role) -> None:
    policy = Policy(TOKENS, ROLES, anonymous)
    camera = Peer(local=False, certificate=CAMERA)
    unknown = Peer(local=False, certificate=Certificate("cd" * 32, frozenset()))
    assert not policy.may_read_log(FAR, AccessRequest())
    assert not policy.may_read_log(LOCAL, AccessRequest(forwarded=True))
    assert not policy.may_read_log(unknown, bearer("health"))
    assert not policy.may_read_log(FAR, bearer("unknown"))
    assert policy.may_read_log(LOCAL, AccessRequest())
    assert policy.may_read_log(FAR, bearer("read"))
    assert policy.may_read_log(camera, AccessRequest())
    assert not Policy().may_read_log(FAR, AccessRequest())
