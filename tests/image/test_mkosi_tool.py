"""apt's sources for the image, from those of the building machine; and mkosi's failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from image import build, mkosi_tool
from image.errors import ImageError

HOST = """\
http://mirror.test/debian/ bookworm
http://mirror.test/debian/ bookworm-updates
http://mirror.test/debian/ bookworm-backports
http://mirror.test/debian-security/ bookworm-security
http://other.test/node nodistro
http://other.test/apt sdk-bookworm
"""


def fields(text: str, name: str) -> list[str]:
    return [line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{name}:")]


def test_the_archives_of_this_machine_give_the_images_release() -> None:
    text = mkosi_tool.sources(HOST)

    assert list(zip(fields(text, "URIs"), fields(text, "Suites"), strict=True)) == [
        ("http://mirror.test/debian", "trixie"),
        ("http://mirror.test/debian", "trixie-updates"),
        ("http://mirror.test/debian-security", "trixie-security"),
    ]
    assert set(fields(text, "Signed-By")) == {mkosi_tool.KEYRING}


def test_a_profile_with_a_driver_takes_packages_that_are_not_free() -> None:
    components = build.PROFILES["nvidia"]
    assert set(fields(mkosi_tool.sources(HOST, components=components), "Components")) == {components}
    assert set(fields(mkosi_tool.sources(HOST), "Components")) == {"main"}


def test_a_mirror_takes_the_place_of_this_machines_sources() -> None:
    text = mkosi_tool.sources(HOST, "http://near.test/debian/")

    assert fields(text, "Suites") == ["trixie", "trixie-updates", "trixie-security"]
    assert fields(text, "URIs") == ["http://near.test/debian"] * 2 + ["http://near.test/debian-security"]


@pytest.mark.parametrize("targets", ["", "http://archive.test/ubuntu noble\n", HOST.replace("/debian/", "/raspbian/")])
def test_error_without_debians_archive_advises_to_name_a_mirror(targets: str) -> None:
    with pytest.raises(ImageError, match="EDGE_IMAGE_MIRROR"):
        mkosi_tool.sources(targets)


def test_an_archive_that_does_not_answer_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="check the network") as refused:
        mkosi_tool.fetch(tmp_path, mkosi_tool.sources("", f"file://{tmp_path}/nowhere/debian"))
    assert "trixie cannot be read" in str(refused.value)


def test_steps_are_printed_and_a_failure_names_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mkosi"
    package.mkdir()
    (package / "__main__.py").write_text(
        "import sys\nprint('‣ Building root image')\nprint('noise')\nsys.exit(len(sys.argv) - 1)\n"
    )
    log = tmp_path / "log"
    mkosi_tool.run(tmp_path, [], log)
    assert "Building root image" in capsys.readouterr().out
    assert "noise" in log.read_text()

    with pytest.raises(ImageError, match=f"status 1.*{log}"):
        mkosi_tool.run(tmp_path, ["build"], log)
    assert "noise" in capsys.readouterr().err


def test_the_list_of_sources_is_read_as_apt_prints_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(mkosi_tool, "KEYRING", str(keyring))
    monkeypatch.delenv("EDGE_IMAGE_MIRROR", raising=False)
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, HOST, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert "trixie-security" in mkosi_tool.host_sources()
    assert asked[0][:2] == ["apt-get", "indextargets"]
    assert sys.executable not in asked[0]
