"""mkosi.finalize, the last script before the root is packed, on a small tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "image/mkosi/mkosi.finalize"
RELEASE = 'ID=debian\nIMAGE_ID="edge"\nIMAGE_VERSION="7"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The parts of a root that the script reads."""
    texts = {
        "usr/lib/os-release": RELEASE,
        "usr/lib/edge-device/state-schema": "3\n",
        "etc/passwd": "edge-serve:x:800:800::/:/x\nedge-ota:x:801:801::/:/x\n",
        "usr/share/doc/libc6/copyright": "LGPL\n",
        "etc/machine-id": "uninitialized\n",
    }
    for name, text in texts.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def finalize(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    places = {"BUILDROOT": str(root), "OUTPUTDIR": str(root.parent), "PATH": os.environ["PATH"]}
    return subprocess.run([SCRIPT], env=places | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("environment", "profile"), [({}, "base"), ({"PROFILES": "nvidia"}, "nvidia")])
def test_the_profile_and_the_form_of_the_data_are_in_os_release(
    root: Path, environment: dict[str, str], profile: str
) -> None:
    done = finalize(root, **environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "usr/lib/os-release").read_text() == f"{RELEASE}VARIANT_ID={profile}\nEDGE_STATE_SCHEMA=3\n"
    assert (root / "etc/machine-id").read_text() == ""
    assert "==== libc6 ====" in (root.parent / "licences.txt").read_text()


def test_a_root_without_the_form_of_its_data_stops_the_build(root: Path) -> None:
    (root / "usr/lib/edge-device/state-schema").unlink()
    assert finalize(root).returncode != 0


def test_a_file_that_no_two_devices_may_share_stops_the_build(root: Path) -> None:
    (root / "var/log").mkdir(parents=True)
    (root / "var/log/alternatives.log").touch()

    done = finalize(root)

    assert done.returncode == 1
    assert "var/log/alternatives.log" in done.stderr
