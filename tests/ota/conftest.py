"""For the tests of edge-ota."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota.layout import StateLayout

LIBRARIES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")
#: of the software tokens
PIN = "1234"
TOKENS = ("edge", "device")
UMASK = os.umask(0o022)
os.umask(UMASK)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask, which commands of the agent set."""
    yield
    os.umask(UMASK)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, where there is one: these tests call fsync tens of thousands of times."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="edge-ota-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    """The state directory of a device."""
    return StateLayout(tmp_path / "state")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The model repository of a device."""
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def softhsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The library of the software tokens TOKENS: one for all tests, because a process opens it once."""
    pytest.importorskip("pkcs11", reason="needs python-pkcs11: pip install 'edge-serve[ota-hsm]'")
    found = next((one for one in LIBRARIES if Path(one).exists()), "")
    if not found or shutil.which("softhsm2-util") is None:
        pytest.skip("needs SoftHSM2: apt-get install softhsm2")
    place = tmp_path_factory.mktemp("tokens")
    (place / "softhsm2.conf").write_text(f"directories.tokendir = {place}\nobjectstore.backend = file\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(place / "softhsm2.conf"))
        for label in TOKENS:
            command = ["softhsm2-util", "--init-token", "--free", "--label", label, "--pin", PIN, "--so-pin", PIN]
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        yield found
