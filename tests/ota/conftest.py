"""For the tests of edge-ota."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota.layout import Layout


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, where there is one: these tests call fsync tens of thousands of times."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="edge-ota-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The state directory of a device."""
    return Layout(tmp_path / "state")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The model repository of a device."""
    path = tmp_path / "models"
    path.mkdir()
    return path
