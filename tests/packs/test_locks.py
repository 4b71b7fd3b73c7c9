"""The files with the wheels of each pack."""

from __future__ import annotations

import pytest

from deploy import requirements
from deploy.debian.releases import RELEASES
from edge_serve.pack.install import SOURCES

LOCKED = sorted(path.parent.name for path in SOURCES.glob("*/requirements.in"))


@pytest.mark.parametrize("name", LOCKED)
def test_each_python_has_wheels_with_hashes_and_numpy(name: str) -> None:
    for release in RELEASES.values():
        entries = requirements.read((SOURCES / name / f"requirements-{release.python}.txt").read_text())
        assert "numpy" in {entry.name for entry in entries}
        assert all(entry.hashes for entry in entries)


@pytest.mark.parametrize("name", LOCKED)
def test_no_pack_installs_telemetry(name: str) -> None:
    assert not [path for path in (SOURCES / name).glob("requirements-*.txt") if "telemetry" in path.read_text()]
