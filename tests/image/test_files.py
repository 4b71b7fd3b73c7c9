"""What is durable after a file was replaced or renamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from image.device import files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of what was synced, in order."""
    names: list[str] = []

    def fsync(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_a_renamed_file_is_synced_under_its_new_name(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "edge_1+4-1.efi").write_bytes(b"kernel")
    files.rename(tmp_path / "edge_1+4-1.efi", tmp_path / "edge_1+5.efi")
    assert synced == ["edge_1+5.efi"]


def test_a_replaced_file_is_synced_before_and_after_it_gets_its_name(tmp_path: Path, synced: list[str]) -> None:
    files.replace(tmp_path / "slots.json", b"{}")
    assert synced == [".slots.json.new", "slots.json", tmp_path.name]


def test_a_link_that_names_nothing_is_replaced(tmp_path: Path, synced: list[str]) -> None:
    files.replace_link(tmp_path / "link", "nowhere")
    assert os.readlink(tmp_path / "link") == "nowhere"
    assert synced == [tmp_path.name]
