"""The files of tokens and of certificate rules."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_serve.access.credentials import (
    new_token,
    parse_certificate_roles,
    parse_tokens,
    read_certificate_roles,
    read_tokens,
)
from edge_serve.access.roles import Role
from edge_serve.errors import InvalidArgument
from edge_serve.messages.peer import Certificate


def hashed(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def test_roles_by_token() -> None:
    text = f"# people\n\ninfer {hashed('a')} camera-3  # on the gate\nadmin {hashed('b')}\n"
    tokens = parse_tokens(text)
    assert [tokens.role_of(token) for token in ("a", "b", "c", "")] == [Role.INFER, Role.ADMIN, None, None]
    assert [entry.name for entry in tokens.entries] == ["camera-3", ""]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("infer secret camera", "line 2 is not '<role> sha256"),
        (f"infer {hashed('a')} two words", "line 2 is not"),
        (f"infer {hashed('a')[:-1]} x", "line 2 is not"),
        (f"boss {hashed('a')} x", "line 2: found role 'boss', expected one of health, read, infer, admin"),
        (f"none {hashed('a')} x", "line 2: found role 'none'"),
        (f"read {hashed('x')}", "line 2 has the same token as another line"),
    ],
)
def test_bad_lines_are_refused(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_tokens(f"admin {hashed('x')}\n{line}\n")
    assert "secret" not in str(caught.value)  # whatever stands there in place of a hash may be a token


def test_tokens_that_are_made_at_once_are_all_written(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def make(number: int) -> list[str]:
        return [new_token(path, Role.READ, f"{number}.{turn}") for turn in range(10)]

    with ThreadPoolExecutor(4) as pool:
        made = [token for tokens in pool.map(make, range(4)) for token in tokens]

    tokens = read_tokens(str(path))
    assert len(tokens.entries) == 40
    assert {tokens.role_of(token) for token in made} == {Role.READ}
    assert os.listdir(tmp_path) == ["tokens"]


def test_a_link_to_the_token_file_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "secrets").mkdir()
    link.symlink_to("secrets/tokens")
    made = [new_token(link, Role.READ, "a"), new_token(link, Role.INFER, "b")]

    assert link.is_symlink()
    tokens = read_tokens(str(tmp_path / "secrets" / "tokens"))
    assert [tokens.role_of(token) for token in made] == [Role.READ, Role.INFER]


def test_a_new_token_is_written_as_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first = new_token(path, Role.READ, "prometheus")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    path.write_text(path.read_text().rstrip("\n"))  # as editors may leave it
    second = new_token(path, Role.ADMIN, "")
    assert first not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    tokens = read_tokens(str(path))
    assert (tokens.role_of(first), tokens.role_of(second)) == (Role.READ, Role.ADMIN)
    assert [entry.name for entry in tokens.entries] == ["prometheus", ""]
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens"]


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    with pytest.raises(InvalidArgument, match="line 1 is not"):
        new_token(path, Role.READ, "")
    assert path.read_text() == "root:x:0:0\n"


def test_names_are_one_word(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="found name 'a b'"):
        new_token(tmp_path / "tokens", Role.READ, "a b")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="edge-serve token"):
        read_tokens(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument, match="cannot read the token file"):
        read_tokens(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="the token file"):
        read_tokens(str(tmp_path / "binary"))


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
def test_certificate_rule_matches_exact_subject_or_fingerprint(rule: str, fits: bool) -> None:
    roles = parse_certificate_roles(f"# rules\n\ninfer {rule}  # ours\n")
    assert roles.role_of(CAMERA) is (Role.INFER if fits else Role.NONE)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("CN=cam#3,O=Acme", "cam#3"),
        (r"CN=cam \#3,O=Acme", "cam #3"),
        ("CN=cam,O=Acme #3", "cam"),
        ("CN=cam,O=Acme\t# 3", "cam"),
    ],
)
def test_a_comment_does_not_begin_inside_a_word(line: str, name: str) -> None:
    roles = parse_certificate_roles(f"admin {line}")
    for one in ("cam", "cam#3", "cam #3"):
        given = roles.role_of(Certificate("ab" * 32, frozenset({("CN", one), ("O", "Acme")})))
        assert given is (Role.ADMIN if one == name else Role.NONE)


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
def test_bad_certificate_rules_are_refused(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_certificate_roles(line)


def test_certificate_files(tmp_path: Path) -> None:
    path = tmp_path / "roles"
    with pytest.raises(InvalidArgument, match="cannot read the certificate role file"):
        read_certificate_roles(str(path))
    path.write_text("infer")
    with pytest.raises(InvalidArgument, match=r"roles': line 1: expected"):
        read_certificate_roles(str(path))
    path.write_text("infer CN=camera-4")
    assert read_certificate_roles(str(path)).role_of(OTHER) is Role.INFER
