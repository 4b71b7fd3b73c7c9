"""`python -m ota.conformance`, the client under test of TUF's own suite, against a server that is really there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ota.conformance import main
from tests.ota.faulty_server import FaultyServer
from tests.ota.simulator import Repository

NAME = "a folder/the file.txt"


@pytest.fixture
def repository() -> Repository:
    """A repository whose metadata never expires, as the program asks the real clock."""
    repository = Repository(now=4e9)
    repository.signed["timestamp"].unrecognized_fields["x-issued"] = ""
    repository.add(NAME, b"content")
    repository.publish()
    return repository


@pytest.fixture
def server(repository: Repository) -> Iterator[FaultyServer]:
    """The repository on a web server."""
    with FaultyServer({}) as server:
        _publish(server, repository)
        yield server


def _publish(server: FaultyServer, repository: Repository) -> None:
    server.files.update({quote(path): data for path, data in repository.files.items()})


def _run(tmp_path: Path, server: FaultyServer, *more: str) -> int:
    return main(["--metadata-dir", str(tmp_path / "metadata"), "--metadata-url", f"{server.url}metadata", *more])


def _init(tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "initial_root.json").write_bytes(repository.root())
    assert main(["--metadata-dir", str(tmp_path / "metadata"), "init", str(tmp_path / "initial_root.json")]) == 0


def test_init_refresh_download(repository: Repository, server: FaultyServer, tmp_path: Path) -> None:
    _init(tmp_path, repository)
    assert server.requests == []
    assert _run(tmp_path, server, "refresh") == 0
    where = ("--target-dir", str(tmp_path), "--target-base-url", f"{server.url}targets")
    assert _run(tmp_path, server, "--target-name", NAME, *where, "download") == 0

    assert (tmp_path / "a%20folder%2Fthe%20file.txt").read_bytes() == b"content"
    known = sorted(path.name for path in (tmp_path / "metadata").glob("*.json"))
    assert known == ["root.json", "snapshot.json", "targets.json", "timestamp.json"]


@pytest.mark.fault("T8")
def test_the_floors_are_in_force(
    repository: Repository, server: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of tuf's own metadata is lost, and the server goes back."""
    _init(tmp_path, repository)
    old = server.files["metadata/timestamp.json"]
    repository.publish()
    _publish(server, repository)
    assert _run(tmp_path, server, "refresh") == 0
    server.files["metadata/timestamp.json"] = old
    for path in (tmp_path / "metadata").glob("*.json"):
        path.unlink()

    assert _run(tmp_path, server, "refresh") == 1
    assert "rolled_back: the repository serves an old state: role/timestamp is 2" in capsys.readouterr().err


@pytest.mark.fault("N3")
def test_a_bucket_that_says_forbidden_for_what_it_does_not_have(
    repository: Repository, server: FaultyServer, tmp_path: Path
) -> None:
    """Buckets that may not be listed say so; the chain of roots ends there."""
    server.fault(path="2.root.json", status=403)
    _init(tmp_path, repository)

    assert _run(tmp_path, server, "refresh") == 0
