"""For the tests of edge-ota."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.layout import Layout


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
