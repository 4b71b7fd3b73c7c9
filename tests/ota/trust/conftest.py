"""A repository, and a device that trusts it, for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ota.simulator import Repository
from tests.ota.trust.device import MANIFEST, Device


@pytest.fixture
def repository() -> Repository:
    """A repository with one manifest."""
    repository = Repository()
    repository.add(MANIFEST, b'{"release": 1}')
    repository.publish()
    return repository


@pytest.fixture
def device(tmp_path: Path, repository: Repository) -> Device:
    """A device that has not run yet."""
    return Device(tmp_path, repository.root())
