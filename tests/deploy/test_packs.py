"""The packages of backend packs; `make test-system` installs one on a booted machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.debian import pack
from deploy.debian.__main__ import main
from deploy.debian.releases import RELEASES


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_scripts_are_of_their_pack_and_valid(script: str, tmp_path: Path) -> None:
    text = pack._script(script, "openvino")
    assert "PACK=openvino\n" in text
    assert "@" not in text
    (tmp_path / script).write_text(text)
    subprocess.run(["sh", "-n", str(tmp_path / script)], check=True, timeout=10)


def test_a_package_needs_the_server_and_the_python_of_its_release() -> None:
    text = pack.control("edge-serve-backend-openvino", "1-1", RELEASES["trixie"], "arm64", 7)
    assert "Package: edge-serve-backend-openvino\n" in text
    assert "Depends: python3.13, libc6 (>= 2.41), libstdc++6, edge-serve\n" in text
    assert text.startswith("Package: ")
    assert "Description: backend openvino of edge-serve\n" in text


@pytest.mark.parametrize("name", pack.packs())
def test_drop_ins_relax_one_line_and_say_why(name: str) -> None:
    """A pack relaxes the sandbox of the unit by nothing but MemoryDenyWriteExecute=."""
    file = pack.SOURCES / name / pack.DROP_IN
    lines = file.read_text().splitlines() if file.is_file() else ["#", "[Service]", "MemoryDenyWriteExecute=no"]
    assert [line for line in lines if not line.startswith("#")] == ["[Service]", "MemoryDenyWriteExecute=no"]
    assert lines[0].startswith("#")


def test_packs_that_have_locked_wheels_have_packages() -> None:
    assert pack.packs() == ["fil", "openvino", "pytorch"]


def test_a_release_without_wheels_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pack=pytorch", "--release=jammy", "--arch=amd64", f"--out={tmp_path}"]) == 1
    assert (
        "deb: jammy amd64: pack 'pytorch' has libraries for 3.10-aarch64, 3.11, 3.12, 3.13" in capsys.readouterr().err
    )
