"""Fixtures of the backends' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .hosting import PythonScene, installed


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PythonScene]:
    """Python models, and a host that records."""
    made = PythonScene(tmp_path)
    with installed(made.host):
        yield made
        made.close()
