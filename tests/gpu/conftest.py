"""Marks the tests of this folder `gpu`, and skips them where no GPU is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.devices.device import Gpus
from edge_serve.devices.find import find_devices

HERE = f"{Path(__file__).parent}/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if str(item.path).startswith(HERE):  # `item.path.parents` took 7 % of the collection of all tests
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def gpus() -> Gpus:
    """Return the GPUs of this machine, of which there is at least one."""
    found = find_devices()
    if not found.found:
        pytest.skip(f"no NVIDIA GPU here{': ' if found.reason else ''}{found.reason}")
    return found
