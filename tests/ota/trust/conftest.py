"""A repository, and a device that trusts it, for each test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ota.simulator import Repository
from tests.ota.trust.device import MANIFEST, Device


@pytest.fixture(scope="session")
def signed_once() -> Repository:
    """A repository with one manifest; signing it takes as long as a test."""
    repository = Repository()
    repository.add(MANIFEST, b'{"release": 1}')
    repository.publish()
    return repository


@pytest.fixture
def repository(signed_once: Repository) -> Repository:
    """A repository of one's own with one manifest."""
    return signed_once.copy()


@pytest.fixture
def device(tmp_path: Path, repository: Repository) -> Device:
    """A device that has not run yet."""
    return Device(tmp_path, repository.root())


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: tests of what is synced look at `files.point`."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
