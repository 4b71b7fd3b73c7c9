"""The files with the wheels of each pack."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import requirements
from deploy.debian.releases import MACHINES, RELEASES
from edge_serve.backends.packs import SOURCES
from edge_serve.errors import InvalidArgument
from edge_serve.pack.install import GPU, find_lock

LOCKED = sorted(path.parent.name for path in SOURCES.glob("*/requirements.in"))
#: torch's wheel for this one: its hash could not be confirmed when the files were written (docs/pytorch.md)
MISSING = ("pytorch", "3.10", "x86_64")


@pytest.mark.parametrize("name", LOCKED)
@pytest.mark.parametrize("machine", MACHINES.values())
@pytest.mark.parametrize("python", [release.python for release in RELEASES.values()])
def test_each_python_has_wheels_with_hashes_and_numpy(name: str, python: str, machine: str) -> None:
    if (name, python, machine) == MISSING:
        with pytest.raises(InvalidArgument, match="name another interpreter with --python"):
            find_lock(SOURCES / name, python, machine)
        return
    lock = find_lock(SOURCES / name, python, machine)
    assert lock is not None
    entries = requirements.read(lock.read_text())
    assert "numpy" in {entry.name for entry in entries}
    assert all(entry.hashes for entry in entries)


@pytest.mark.parametrize("python", [release.python for release in RELEASES.values()])
def test_pytorch_has_libraries_for_gpus(python: str) -> None:
    lock = find_lock(SOURCES / "pytorch", python, "x86_64", gpu=True)
    assert lock is not None
    entries = {entry.name: entry for entry in requirements.read(lock.read_text())}
    assert {"numpy", "torch", "nvidia-cudnn-cu13"} <= entries.keys()
    assert len(entries["torch"].hashes) == len(MACHINES)


def test_libraries_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "requirements-3.12.txt").touch()
    with pytest.raises(InvalidArgument, match="has no libraries for NVIDIA GPUs: leave out --gpu"):
        find_lock(tmp_path, "3.12", "x86_64", gpu=True)
    (tmp_path / f"requirements-3.12-{GPU}.txt").touch()
    with pytest.raises(InvalidArgument, match=r"GPUs and Python 3\.12, expected some for Python 3\.13: name another"):
        find_lock(tmp_path, "3.13", "x86_64", gpu=True)
    with pytest.raises(InvalidArgument, match=r"has libraries for 3\.12, expected some for Python 3\.13"):
        find_lock(tmp_path, "3.13", "x86_64")


@pytest.mark.parametrize("name", LOCKED)
def test_no_pack_installs_telemetry(name: str) -> None:
    assert not [path for path in (SOURCES / name).glob("requirements-*.txt") if "telemetry" in path.read_text()]
