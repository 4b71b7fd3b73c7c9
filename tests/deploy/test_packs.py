"""The packages of backend packs; `make test-system` installs one on a booted machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.debian import pack
from deploy.debian.__main__ import main
from deploy.debian.package import PROVIDED, control
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
    assert f"Depends: python3.13, libc6 (>= 2.41), libstdc++6, edge-serve, {PROVIDED}\n" in text
    assert f"Provides: {PROVIDED}\n" in control("1-1", RELEASES["trixie"], "arm64", 7)
    assert text.startswith("Package: ")
    assert "Description: backend openvino of edge-serve\n" in text


@pytest.mark.parametrize("name", pack.packs())
def test_drop_ins_relax_one_line_and_say_why(name: str) -> None:
    """A pack relaxes the sandbox of the unit by nothing but MemoryDenyWriteExecute=."""
    file = pack.SOURCES / name / pack.DROP_IN
    lines = file.read_text().splitlines() if file.is_file() else ["#", "[Service]", "MemoryDenyWriteExecute=no"]
    assert [line for line in lines if not line.startswith("#")] == ["[Service]", "MemoryDenyWriteExecute=no"]
    assert lines[0].startswith("#")


def run_script(root: Path, name: str, *arguments: str) -> list[str]:
    """Run a script of the pack fil below another root. Return the commands for systemd; none is carried out."""
    (root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
    for program in ("systemctl", "systemd-run"):
        (root / program).write_text(f'#!/bin/sh\necho "{program} $*" >>{root}/log\n')
        (root / program).chmod(0o755)
    (root / "log").write_text("")
    text = pack._script(name, "fil").replace("/run/", f"{root}/run/").replace("/opt/", f"{root}/")
    environment = {"PATH": f"{root}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", text, name, *arguments], check=True, env=environment, timeout=10)
    return (root / "log").read_text().splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of packs below another root, with the pack fil in two versions; the second one is newer."""
    home = tmp_path / "edge-serve-packs"
    old, new = home / "versions/fil.zz", home / "versions/fil.aa"
    for folder in (old, new, home / "backends"):
        folder.mkdir(parents=True)
    while new.stat().st_ctime_ns <= old.stat().st_ctime_ns:
        new.chmod(0o755)
    (home / "backends/fil").symlink_to("../versions/fil.aa")
    return home


@pytest.mark.parametrize("way", ["remove", "deconfigure"])
def test_a_removal_that_dpkg_takes_back_leaves_the_pack_in_use(home: Path, way: str) -> None:
    run_script(home.parent, "prerm", way)
    assert not (home / "backends/fil").is_symlink()
    run_script(home.parent, "postinst", f"abort-{way}")
    assert str((home / "backends/fil").readlink()) == "../versions/fil.aa"


def test_a_removed_pack_stays_on_the_disk_until_the_server_has_restarted(home: Path) -> None:
    run_script(home.parent, "prerm", "remove")
    said = [*run_script(home.parent, "postrm", "remove"), *run_script(home.parent, "postrm", "purge")]
    assert [one.split()[0:2] for one in said] == [
        ["systemctl", "daemon-reload"], ["systemctl", "try-restart"], ["systemd-run", "--quiet"],
        ["systemd-run", "--quiet"],
    ]  # fmt: skip
    assert (home / "versions/fil.aa").is_dir()
    clean = said[-1].partition("--property=After=edge-serve.service sh -c ")[2]
    subprocess.run(["sh", "-c", clean], check=True, timeout=10)
    assert not home.exists()
    run_script(home.parent, "postrm", "purge")


def test_packs_that_have_locked_wheels_have_packages() -> None:
    assert pack.packs() == ["fil", "openvino", "pytorch"]


def test_a_release_without_wheels_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pack=pytorch", "--release=jammy", "--arch=amd64", f"--out={tmp_path}"]) == 1
    assert (
        "deb: jammy amd64: pack 'pytorch' has libraries for 3.10-aarch64, 3.11, 3.12, 3.13" in capsys.readouterr().err
    )
