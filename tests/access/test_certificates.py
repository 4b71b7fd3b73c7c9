"""The file of certificates' roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.access.certificates import parse_certificate_roles, read_certificate_roles
from edge_serve.access.roles import Role
from edge_serve.errors import InvalidArgument
from edge_serve.messages.peer import Certificate

CAMERA = Certificate("ab" * 32, frozenset({("CN", "camera-3"), ("O", "Acme, Inc.")}))
OTHER = Certificate("cd" * 32, frozenset({("CN", "camera-4")}))


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ("sha256:" + "ab" * 32, True),
        ("sha256:" + ":".join(["AB"] * 32), True),
        ("sha256:" + "cd" * 32, False),
        ("CN=camera-3", True),
        (r"CN=camera-3,O=Acme\, Inc.", True),
        (r"cn=camera-3 , o=Acme\, Inc.", True),
        ("CN=camera", False),
        ("CN=camera-3,O=Acme", False),
        ("CN=camera-3,OU=x", False),
    ],
)
def test_what_fits(rule: str, fits: bool) -> None:
    roles = parse_certificate_roles(f"# rules\n\ninfer {rule}  # ours\n")
    assert roles.role_of(CAMERA) is (Role.INFER if fits else Role.NONE)


def test_the_highest_role_counts() -> None:
    roles = parse_certificate_roles(f"read CN=camera-3\nadmin sha256:{'ab' * 32}\ninfer CN=camera-3\nread CN=camera-4")
    assert roles.role_of(CAMERA) is Role.ADMIN
    assert roles.role_of(OTHER) is Role.READ


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("infer", "line 1: expected a role and a certificate"),
        ("boss CN=x", "line 1: found role 'boss'"),
        ("infer sha256:abc", "line 1: found 'sha256:abc', expected sha256: and 64"),
        ("infer camera-3", "line 1: found 'camera-3', expected sha256"),
        ("infer CN=,O=x", "line 1: found 'CN=,O=x'"),
    ],
)
def test_what_a_line_may_not_be(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_certificate_roles(line)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "roles"
    with pytest.raises(InvalidArgument, match="cannot read the certificate role file"):
        read_certificate_roles(str(path))
    path.write_text("infer")
    with pytest.raises(InvalidArgument, match=r"roles': line 1: expected"):
        read_certificate_roles(str(path))
    path.write_text("infer CN=camera-4")
    assert read_certificate_roles(str(path)).role_of(OTHER) is Role.INFER
