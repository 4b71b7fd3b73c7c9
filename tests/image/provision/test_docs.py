"""docs/image_settings.md: its example is accepted, and its messages are those of the device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from image.device.provision.schema import KEYS, TABLES
from tests.image.provision.board import Board

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/image_settings.md").read_text()
EXAMPLE: str = re.findall(r"<!-- example -->\n```toml\n(.*?)```", PAGE, re.DOTALL)[0]
TOKEN = "3f0123456789abcdef0123456789abcdef"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA93+4rk2w2hFhZ6n3MMH5OJtKqQ2VqDzHg8sD+0Vx0I"


def test_the_example_is_accepted_and_has_every_table(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image.device.provision.programs._certificate", lambda *arguments: [])
    monkeypatch.setattr("image.device.provision.programs._authority", lambda *arguments: [])
    for name in ("root.json", "device.json", "ca.pem", "server.crt", "server.key"):
        board.write("{}", name)
    board.write(EXAMPLE)
    lines = [one.split(": ")[0] for one in board.boot()]
    assert lines == [f"edge-serve.toml, line {number}" for number in (26, 32)], "placeholders are refused"
    board.write(EXAMPLE.replace('token = "..."', f'token = "{TOKEN}"').replace("ssh-ed25519 AAAA...", KEY))
    assert board.boot() == []
    assert all(f"[{table}" in EXAMPLE for table in TABLES)


def test_the_boot_partition_has_the_example() -> None:
    shipped = ROOT / "image/mkosi/mkosi.extra/efi/edge-serve.example.toml"
    comment, _, text = shipped.read_text().partition("\n\n")
    assert text == EXAMPLE
    assert all(line.startswith("# ") for line in comment.splitlines())


def test_the_messages_of_the_page_are_those_of_the_device() -> None:
    sources = "".join(one.read_text() for one in (ROOT / "image/device/provision").glob("*.py"))
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## Understand a message")[1], re.MULTILINE)
    messages = [one for row in rows for one in re.findall("`([^`]+)`", row)]
    assert len(messages) > 10
    plain = sources.replace("{name}", "edge-serve.toml.txt")
    assert [one for one in messages if one not in plain] == []


def test_each_secret_is_in_the_table_of_secrets() -> None:
    table = PAGE.split("## Know what happens to secrets")[1]
    assert all(f"`{key.path[1]}`" in table for key in KEYS if key.secret)
