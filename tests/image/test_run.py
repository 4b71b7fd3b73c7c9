"""`make image-run`: its disk, and each reason why it cannot boot. A stand-in for QEMU prints its words."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from image import qemu, run
from tests.system.machine import wait_until

#: prints its words, one in a line
_STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$@"\n'

needs_zstd = pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd: apt-get install zstd")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an image and firmware, on a host with a stand-in for QEMU."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / qemu.PROGRAM).write_text(_STAND_IN)
    (programs / qemu.PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    firmware = (tmp_path / "code.fd", tmp_path / "variables.fd")
    for file in firmware:
        file.write_bytes(file.name.encode())
    monkeypatch.setattr(qemu, "_FIRMWARE", (("/nowhere/code", "/nowhere/vars"), tuple(map(str, firmware))))
    (tmp_path / "edge.raw").write_bytes(b"an image" + bytes(4096))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def free_ports() -> list[str]:
    """Return options for ports that no program uses."""
    words = []
    for name in ("http", "grpc", "metrics"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            words += [f"--{name}-port", str(free.getsockname()[1])]
    return words


def head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def boot(*words: str) -> int:
    return run.main(["--image", "edge.raw", "--folder", "vm", "--size", "1", *free_ports(), *words])


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that a refused run prints."""
    assert boot(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_device_writes_to_a_separate_disk_that_the_next_run_keeps(
    host: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (host / "edge.raw").read_bytes()
    assert boot("--memory", "777", "--cores", "3") == 0
    said = capfd.readouterr().out
    words = said.splitlines()
    assert words[words.index("-m") + 1] == "777"
    assert words[words.index("-smp") + 1] == "3"
    assert "tcg" in words[words.index("-accel") + 1], "emulated, though /dev/kvm may be there"
    assert said.count("hostfwd=tcp:127.0.0.1:") == 3
    disk = host / "vm/disk.raw"
    assert f"file={disk.relative_to(host)}" in said
    assert (disk.stat().st_size, head(disk)) == (1 << 30, b"an image")
    assert disk.stat().st_blocks * 512 < 1 << 20, "with holes"

    with disk.open("r+b") as file:
        file.write(b"written ")
    assert boot() == 0
    assert head(disk) == b"written "
    assert boot("--fresh") == 0
    assert head(disk) == b"an image"
    assert (host / "edge.raw").read_bytes() == before


@needs_zstd
def test_a_compressed_image_boots(host: Path) -> None:
    subprocess.run(["zstd", "-q", "edge.raw", "-o", "edge.img.zst"], check=True)
    assert boot("--image", "edge.img.zst") == 0
    assert head(host / "vm/disk.raw") == b"an image"


def test_a_kept_disk_of_another_image_is_reported(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boot()
    (host / "other.raw").write_bytes(b"another")
    capsys.readouterr()
    assert boot("--image", "other.raw") == 0
    assert "was made from another image than other.raw; --fresh boots this one" in capsys.readouterr().err


@needs_zstd
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_image_leaves_no_disk(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (host / "edge.img.zst").write_bytes(b"no zstd")
    assert "edge.img.zst damaged?" in refusal(capsys, "--image", "edge.img.zst")
    assert not list((host / "vm").glob("disk*"))


def test_an_interrupted_run_ends_without_a_traceback_and_leaves_no_part_of_a_disk(host: Path) -> None:
    # 2>&-: interrupted at the very start of this program, Python leaves it behind, and the pipe with it
    (host / "bin/cp").write_text("#!/bin/sh\nfor last; do :; done\necho half > $last\nexec sleep 60 2>&-\n")
    (host / "bin/cp").chmod(0o755)
    words = ["--image", "edge.raw", "--folder", "vm", *free_ports()]
    program = "import sys; from image import qemu, run; qemu._FIRMWARE = ((sys.argv[1], sys.argv[2]),); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}sys.exit(run.main(sys.argv[3:]))", "code.fd", "variables.fd", *words],
        env={**os.environ, "PYTHONPATH": str(run.ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert wait_until(lambda: (host / "vm/disk.raw.part").exists() or process.poll() is not None, 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")
    assert not list((host / "vm").glob("disk*"))
    (host / "bin/cp").unlink()
    assert boot() == 0, "the next run begins anew"


@pytest.mark.usefixtures("host")
def test_a_missing_image_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gone.raw is no file" in refusal(capsys, "--image", "gone.raw")
    monkeypatch.setattr(run, "ROOT", Path("nowhere"))
    assert run.main([]) == 2
    assert "has no *.img.zst: make image" in capsys.readouterr().err


def test_missing_programs_are_named_with_their_package(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "code.fd").unlink()
    assert "apt-get install ovmf" in refusal(capsys)
    monkeypatch.setenv("PATH", str(host))
    assert "apt-get install qemu-system-x86 ovmf" in refusal(capsys)


@pytest.mark.usefixtures("host")
def test_a_port_that_is_taken_is_named_with_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(capsys, "--grpc-port", port)
    assert f"another program listens on port {port} (--grpc-port)" in said


def test_a_folder_that_cannot_be_written_is_named(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (host / "file").touch()
    assert "--folder names another folder" in refusal(capsys, "--folder", "file/vm")


def test_commas_of_an_oem_string_stay(host: Path) -> None:
    emulated = qemu.Emulated(host / "disk", host / "variables", {}, network=False, strings=("a=b,c", host / "file"))
    words = emulated.command()
    assert "type=11,value=a=b,,c" in words
    assert f"type=11,path={host / 'file'}" in words
    assert words[words.index("-nic") + 1] == "none"


@pytest.mark.parametrize(("name", "kind"), [("disk.raw", "raw"), ("disk.qcow2", "qcow2")])
def test_a_disk_is_opened_by_its_kind(tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "firmware", lambda arm: (tmp_path / "code", tmp_path / "variables"))
    command = qemu.Emulated(tmp_path / name, tmp_path / "variables", {}).command()
    drives = [word for word in command if word.startswith("if=none,id=disk,")]
    assert [f"format={kind}" in drive for drive in drives] == [True]


def test_an_image_for_arm_runs_on_an_arm_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.for_arm(Path("dist/edge-serve_0.1.0_base-arm64.img.zst"))
    assert not run.for_arm(Path("dist-arm64.old/edge-serve_0.1.0_base.img.zst"))
    monkeypatch.setattr(qemu, "_FIRMWARE_ARM", ())
    with pytest.raises(FileNotFoundError, match="apt-get install qemu-efi-aarch64"):
        qemu.Emulated(tmp_path / "disk.raw", tmp_path / "variables", {}, arm=True).command()
    (tmp_path / "code").touch()
    monkeypatch.setattr(qemu, "_FIRMWARE_ARM", ((str(tmp_path / "code"), str(tmp_path / "code")),))
    words = qemu.Emulated(tmp_path / "disk.raw", tmp_path / "variables", {}, arm=True).command()
    assert (words[0], words[2], words[words.index("-cpu") + 1]) == ("qemu-system-aarch64", "virt", "cortex-a72")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install qemu-system-arm qemu-efi-aarch64" in qemu.why_not(arm=True)
