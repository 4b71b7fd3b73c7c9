"""A file of 1 GB over bad links. In a process of its own, whose memory is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota.documents.manifest import FileEntry
from ota.layout import StateLayout
from tests.ota.faulty_server import FaultyServer

from .large import Made, entry_of_made, text_of
from .steps import store_manifest

MB = 1_000_000
GB = 1000 * MB
CHUNK = 8 * MB
MOST_KB = 80 * 1024

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("gigabyte")
    yield path
    shutil.rmtree(path)


def fetch(server: FaultyServer, state: Path, entry: FileEntry) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.ota.fetch.large", server.url, str(state), text_of(entry)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert StateLayout(state).blob(entry.sha256).stat().st_size == entry.size
    found: dict[str, int] = json.loads(done.stdout)
    print(f"sent {server.sent / MB:.1f} MB in {len(server.requests)} requests, peak {found['peak_kb'] / 1024:.1f} MB")
    return found


@pytest.mark.fault("N1")
@pytest.mark.parametrize("chunk", [CHUNK, 0], ids=["chunked", "whole"])
def test_a_link_that_breaks_every_50_mb(state: Path, chunk: int) -> None:
    entry, stored = entry_of_made(Made(GB), chunk)
    with FaultyServer(stored) as server:
        server.fault(cut_every=50 * MB)
        found = fetch(server, state, entry)

        assert server.sent <= 1.1 * GB
        assert found["peak_kb"] < MOST_KB


@pytest.mark.fault("N2")
def test_a_server_without_range(state: Path) -> None:
    entry, stored = entry_of_made(Made(GB), 0)
    with FaultyServer(stored) as server:
        server.fault(no_range=True)
        found = fetch(server, state, entry)

        assert server.sent == GB
        assert found["peak_kb"] < MOST_KB


def test_five_percent_changed(state: Path) -> None:
    old = Made(GB)
    entry, _ = entry_of_made(old, CHUNK)
    store_manifest(state, entry, release=17)
    path = StateLayout(state).blob(entry.sha256)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.writelines(old.blocks())
    new, stored = entry_of_made(Made(GB, changed=range(333, 383)), CHUNK)
    with FaultyServer(stored) as server:
        found = fetch(server, state, new)

        assert found["missing"] == server.sent <= 100 * MB
        assert found["peak_kb"] < MOST_KB
