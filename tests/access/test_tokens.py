"""The file of tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edge_serve.access.roles import Role
from edge_serve.access.tokens import new_token, parse_tokens, read_tokens
from edge_serve.errors import InvalidArgument


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
def test_what_a_line_may_not_be(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_tokens(f"admin {hashed('x')}\n{line}\n")
    assert "secret" not in str(caught.value)  # whatever stands there in place of a hash may be a token


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
