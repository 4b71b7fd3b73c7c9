"""A device without stored settings whose edge-serve.toml cannot be used: its server refuses all clients."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_serve.access.credentials import read_tokens
from tests.image.provision.board import MINIMAL, Board
from tests.image.provision.test_reset import reset
from tests.server.running import Running, running

SETTINGS = "etc/edge-serve/conf.d/50-device.conf"
TOKEN = "3f0123456789abcdef0123456789abcdef"
TOKENS = f'[[server.tokens]]\nname = "camera-3"\nrole = "read"\ntoken = "{TOKEN}"\n'
MISTAKE = '[host]\nnam = "edge-1"\n'
INDEX = "/v2/repository/index"


def lose_data(board: Board) -> None:
    """Lose the data partition: /var is in memory, and /etc/edge-serve begins as the image's."""
    reset(board)
    board.lasting = False


@contextmanager
def served(board: Board, tmp_path: Path) -> Iterator[Running]:
    """Start a server with the settings that were derived."""
    flags = []
    for name, value in re.findall(r"^EDGE_SERVE_(\w+)=(.*)$", board.text(SETTINGS) or "", re.MULTILINE):
        flags.append(f"--{name.lower().replace('_', '-')}={value.replace('/etc/', f'{board.root}/etc/', 1)}")
    (tmp_path / "models").mkdir(exist_ok=True)
    with running(f"--model-repository={tmp_path / 'models'}", *flags) as server:
        yield server


def status(server: Running, token: str = "") -> int:
    """Return the status of a question for the models."""
    return server.request("POST", INDEX, b"", headers={"Authorization": f"Bearer {token}"} if token else {})[0]


def answer_of(board: Board, token: str = "") -> int:
    """Return the status that a server with the derived settings would answer, from its file of tokens.

    Two tests start such a server.
    """
    file = re.search(r"^EDGE_SERVE_TOKEN_FILE=(.*)$", board.text(SETTINGS) or "", re.MULTILINE)
    return 200 if file is None or read_tokens(f"{board.root}{file[1]}").role_of(token) else 401


def test_a_server_whose_settings_are_lost_is_closed_until_the_file_is_corrected(board: Board, tmp_path: Path) -> None:
    assert board.configure(TOKENS) == []
    good = board.text("boot/edge-serve.toml") or ""
    lose_data(board)
    board.write(good + MISTAKE)
    assert len(board.boot()) == 1
    assert board.faults()["settings-closed"] == (
        "the server refuses all clients but those with a token that was made on the device: "
        "edge-serve.toml cannot be used, and no settings before it are stored"
    )
    with served(board, tmp_path) as server:
        assert [status(server), status(server, TOKEN)] == [401, 401]

    board.write(good)
    assert board.boot() == []
    assert board.faults() == {}
    with served(board, tmp_path) as server:
        assert [status(server), status(server, TOKEN)] == [401, 200]


class Killed(BaseException):
    """The program ends at once."""


def kill(*arguments: object) -> None:
    """End the program, as a time limit does."""
    raise Killed


@pytest.mark.parametrize("step", ["read.read", "store.save"])
def test_a_first_start_that_is_killed_leaves_a_closed_server(
    board: Board, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"image.device.provision.{step}", kill)
        with pytest.raises(Killed):
            board.configure(TOKENS)
    assert board.faults() == {
        "settings-closed": "edge-serve.toml is not applied yet: the server refuses all clients but those with a token "
        "that was made on the device"
    }
    assert [answer_of(board), answer_of(board, TOKEN)] == [401, 401]

    assert board.boot() == []
    assert board.faults() == {}
    assert [answer_of(board), answer_of(board, TOKEN)] == [401, 200]


def test_a_first_start_that_is_killed_without_its_boot_partition_says_that_the_server_is_closed(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.mounted = False
    monkeypatch.setattr("image.device.provision.flow._read", kill)
    with pytest.raises(Killed):
        board.boot()
    assert "settings-closed" in board.faults()


def test_a_first_file_of_an_open_device_is_a_fault_until_it_is_applied(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert board.boot() == []
    with monkeypatch.context() as patched:
        patched.setattr("image.device.provision.programs.check_all", kill)
        with pytest.raises(Killed):
            board.configure(TOKENS)
    assert board.faults() == {
        "settings-not-applied": "edge-serve.toml is not applied yet: the server serves all clients"
    }
    assert board.text(SETTINGS) is None

    assert board.boot() == []
    assert board.faults() == {}
    assert "EDGE_SERVE_TOKEN_FILE=" in (board.text(SETTINGS) or "")


def test_a_file_without_tokens_opens_the_server_again(board: Board, tmp_path: Path) -> None:
    assert len(board.configure(MISTAKE)) == 1
    assert "EDGE_SERVE_TOKEN_FILE=/etc/edge-serve/tokens\n" in (board.text(SETTINGS) or "")
    assert len(board.boot()) == 1, "the second start is as the first"
    assert "settings-closed" in board.faults()

    assert board.configure("") == []
    assert board.faults() == {}
    with served(board, tmp_path) as server:
        assert status(server) == 200


@pytest.mark.parametrize("found", ["unmounted", "directory", "unreadable"])
def test_a_boot_partition_that_cannot_be_read_closes_a_server_without_settings(
    board: Board, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    assert board.configure(TOKENS) == []
    lose_data(board)
    if found == "unmounted":
        board.mounted = False
    elif found == "directory":
        (board.esp / "edge-serve.toml").unlink()
        (board.esp / "edge-serve.toml").mkdir()
    else:

        def fail(*arguments: object) -> bytes:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("image.device.provision.read.read", fail)
    assert len(board.boot()) == 1
    assert "settings-closed" in board.faults()
    assert "EDGE_SERVE_TOKEN_FILE=" in (board.text(SETTINGS) or "")


def test_tokens_that_were_made_on_a_closed_device_are_valid(board: Board) -> None:
    assert len(board.configure(MISTAKE)) == 1
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (board.root / "etc/edge-serve/tokens").write_text(f"read sha256:{digest} camera-3\n")
    assert len(board.boot()) == 1
    assert "but those with a token that was made on the device" in board.faults()["settings-closed"]
    assert [answer_of(board), answer_of(board, TOKEN)] == [401, 200]


def test_a_device_that_never_had_a_file_stays_open_without_its_boot_partition(board: Board) -> None:
    assert board.boot() == []
    board.mounted = False
    assert len(board.boot()) == 1
    assert "settings-closed" not in board.faults()
    assert answer_of(board) == 200

    board.mounted = True
    assert len(board.configure(TOKENS + MISTAKE)) == 1, "the state before stays in force, as with stored settings"
    assert board.text(SETTINGS) is None
    assert board.configure(TOKENS) == []
    assert [answer_of(board), answer_of(board, TOKEN)] == [401, 200]


def test_a_device_that_had_a_file_is_closed_once_its_settings_are_lost(board: Board) -> None:
    """They may have had tokens, also if the device began without a file."""
    assert board.boot() == []
    assert board.configure(TOKENS) == []
    (board.state / "current").unlink()
    shutil.rmtree(board.state / "config")
    board.mounted = False
    assert len(board.boot()) == 1
    assert "settings-closed" in board.faults()


def test_a_new_device_without_its_boot_partition_opens_when_it_has_no_file(board: Board) -> None:
    board.mounted = False
    assert len(board.boot()) == 1
    assert "settings-closed" in board.faults()
    board.mounted = True
    assert board.boot() == []
    assert board.faults() == {}
    assert answer_of(board) == 200


def test_a_device_that_cannot_note_its_missing_file_serves(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("image.device.provision.store.note_never_configured", fail)
    assert board.boot() == []
    assert board.text(SETTINGS) is None


def test_a_new_device_without_a_file_is_open(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    assert board.boot() == []
    assert board.faults() == {}
    assert "<4>" not in capsys.readouterr().out
    assert board.text(SETTINGS) is None
    board.write(MINIMAL)
    assert board.boot() == []
    assert board.text(SETTINGS) is None
