"""A CUDA context under the restrictions of the unit, with what 10-nvidia.conf relaxes. Needs systemd, and root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gpu.test_visible import CONTEXT
from tests.systemd.restrictions import command, culprits, restrictions

#: /home and /root, where a virtual environment may lie, are hidden from the process
PYTHON = "/usr/bin/python3"


def run(settings: Sequence[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(settings, [PYTHON, "-c", CONTEXT]), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def works(settings: Sequence[tuple[str, str]]) -> bool:
    done = run(settings)
    return done.returncode == 0 and done.stdout == "copied\n"


@pytest.fixture(autouse=True)
def _systemd() -> None:
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run") is None:
        pytest.skip("systemd does not run here")
    if os.geteuid():
        pytest.skip("only root can start a unit: sudo .venv/bin/python -m pytest tests/gpu/test_unit.py")
    if not Path(PYTHON).exists():
        pytest.skip(f"there is no {PYTHON}")
    if not works([]):
        pytest.skip(f"no CUDA context even without restrictions: {run([]).stderr.strip()[-300:]}")


@pytest.mark.timeout(600)
def test_context_works_under_the_restrictions_of_the_unit() -> None:
    """The failure names the restrictions that alone are in the way: 10-nvidia.conf has to relax them."""
    settings = restrictions()
    if works(settings):
        return
    reason = run(settings).stderr.strip()[-300:]
    pytest.fail(f"{reason}\nit works without one of these: {culprits(settings, works) or 'none alone'}")


def test_a_context_that_is_refused_is_noticed() -> None:
    """Without 10-nvidia.conf the devices are closed."""
    assert not works([pair for pair in restrictions() if pair[0] != "DeviceAllow"])
