"""Writing an image: the checks before, while, and after. A file stands in for the disk, in slow tests a loop device."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from image import disks, flash
from image.errors import ImageError
from tests.image.machines import ARM64, ESP, X86_64, Machine, image, table

HEAD = table((ESP, "EDGE-SERVE"), (X86_64, "edge_7"))
#: bytes, a hole of zeros, bytes, and an end that is no whole block
CONTENT = HEAD + random.Random(1).randbytes(5 << 20) + bytes(9 << 20) + random.Random(2).randbytes((1 << 20) + 17)


def silent(step: str, done: int) -> None:
    pass


@contextlib.contextmanager
def file(path: Path, old: bytes = b"\xff" * (20 << 20)) -> Iterator[int]:
    path.write_bytes(old)
    device = os.open(path, os.O_RDWR)
    yield device
    os.close(device)


def refused(path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        flash.read_image(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_image_replaces_each_byte_also_by_zeros(tmp_path: Path) -> None:
    with file(tmp_path / "disk") as device:
        flash.write(flash.read_image(image(tmp_path, CONTENT)), device, "/dev/sdb", silent)

    assert (tmp_path / "disk").read_bytes() == CONTENT + b"\xff" * ((20 << 20) - len(CONTENT))


def test_the_system_of_an_image_is_read_from_its_partitions(tmp_path: Path) -> None:
    found = flash.read_image(image(tmp_path, table((ESP, "EDGE-SERVE"), (ARM64, "edge_12"))))

    assert (found.size, str(found.system)) == (512 * 34, "system 12 for arm64")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"a film", "found no partitions"),
        (table((ESP, "EFI"), (X86_64, "Debian")), "found partitions 'EFI', 'Debian'"),
        (HEAD[:600], "found no partitions"),
    ],
)
def test_a_file_that_is_no_image_of_a_device_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    assert f"is no image of edge-serve: {found}, expected a root partition" in refused(image(tmp_path, content))


def test_an_image_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = image(tmp_path, CONTENT)
    os.truncate(path, path.stat().st_size - 5)

    assert "is damaged or cut off: copy or build it again" in refused(path)


def test_an_image_with_another_sum_than_the_one_beside_it_is_refused(tmp_path: Path) -> None:
    path = image(tmp_path, CONTENT)
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n{'0' * 64}  another\n")
    flash.read_image(path)

    sums.write_text(f"{'0' * 64}  {path.name}\n")
    assert "SHA256SUMS beside it has 0000000000000000...: copy the image again" in refused(path)


def test_an_image_without_a_sum_beside_it_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = image(tmp_path, CONTENT)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  another\n")
    flash.read_image(path)

    assert capsys.readouterr().out == f"SHA256SUMS beside {path} has no line for it: its sum is not compared\n"


def test_a_disk_that_returns_other_bytes_is_found(tmp_path: Path) -> None:
    found = flash.read_image(image(tmp_path, CONTENT))

    def forge(step: str, done: int) -> None:
        if (step, done) == ("writing", found.size):
            with (tmp_path / "disk").open("r+b") as forged:
                forged.seek(found.size - 1)
                forged.write(b"\0")

    with file(tmp_path / "disk") as device, pytest.raises(ImageError, match="/dev/sdb returned other bytes"):
        flash.write(found, device, "/dev/sdb", forge)


def test_a_disk_that_ends_while_it_is_read_back_is_found(tmp_path: Path) -> None:
    found = flash.read_image(image(tmp_path, CONTENT))

    def pull_out(step: str, done: int) -> None:
        if step == "reading back":
            os.truncate(tmp_path / "disk", 0)

    with file(tmp_path / "disk") as device, pytest.raises(ImageError) as caught:
        flash.write(found, device, "/dev/sdb", pull_out)
    assert re.fullmatch(
        r"/dev/sdb failed while reading back, after 0.0 GB of 0.0 GB: the disk ends here. It holds no complete system:"
        " flash it again, or take another disk",
        str(caught.value),
    )


def test_nothing_is_written_unless_the_name_is_typed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb")
    disk = disks.find_disk("/dev/sdb", machine.root)

    flash.confirm(disk, None, lambda question: " sdb\n")
    flash.confirm(disk, "/dev/sdb")
    for answer in ("", "y", "sda", "yes"):
        with pytest.raises(ImageError, match=f"found the name '{answer}', expected 'sdb': nothing was written"):
            flash.confirm(disk, None, lambda question, answer=answer: answer)  # type: ignore[misc]
    with pytest.raises(ImageError, match="no name was typed, so nothing was written; in scripts: --yes sdb"):
        flash.confirm(disk, None, no_terminal)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ImageError("no disk")])
def test_a_refusal_and_an_interrupt_end_with_one_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object) -> str:
        raise error

    monkeypatch.setattr(flash, "flash", stop)
    assert flash.main(["/dev/sdb"]) in (1, 130)
    assert capsys.readouterr().err.strip() in ("image: no disk", "image: stopped, nothing was written")


def test_an_interrupt_while_writing_says_that_the_disk_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb")
    disk = disks.find_disk("/dev/sdb", machine.root)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flash, "find_disk", lambda device: disk)
    monkeypatch.setattr(flash, "opened", lambda disk: file(tmp_path / "disk"))
    monkeypatch.setattr(flash, "write", interrupt)
    with pytest.raises(ImageError, match="stopped; /dev/sdb holds no complete system: flash it again"):
        flash.flash(image(tmp_path, CONTENT), "/dev/sdb", "sdb")


def no_terminal(question: str) -> str:
    raise EOFError


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """A loop device on a sparse file of 13 GB."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    (tmp_path / "backing").touch()
    os.truncate(tmp_path / "backing", 13 * 10**9)
    done = subprocess.run(["losetup", "--find", "--show", tmp_path / "backing"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no loop devices: {done.stderr.strip()}")
    yield Path(done.stdout.strip())
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


@pytest.fixture
def disk(loop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A loop device that counts as a disk."""
    monkeypatch.setattr(disks, "_DISKS", re.compile(r"loop\d+"))
    monkeypatch.setattr(disks, "_OTHERS", {})
    return loop


@pytest.mark.slow
def test_a_real_loop_device_is_refused_by_the_command(loop: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "image", "flash", str(loop), "--image", image(tmp_path, CONTENT), "--yes", loop.name],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"image: {loop} is a loop device, which is a file, expected a disk; disks here: " in done.stderr


@pytest.mark.slow
def test_a_real_device_is_written_and_read_back(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-L", "Bob's \x07 day", disk, "100M"], check=True)

    told = flash.flash(image(tmp_path, CONTENT), str(disk), disk.name)
    assert "was read back" in told
    printed = capsys.readouterr().out
    assert "system 7 for x86-64" in printed
    assert f'{disk}: ext4 "Bob\'s ^G day"' in printed
    assert "reading back: 100%" in printed
    with disk.open("rb") as device:
        assert device.read(len(CONTENT)) == CONTENT


@pytest.mark.slow
def test_a_real_device_that_is_mounted_is_refused_also_where_its_mount_is_not_seen(disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", disk, "100M"], check=True)
    found = disks.find_disk(str(disk))
    place = tmp_path / "mounted here"
    place.mkdir()
    subprocess.run(["mount", disk, place], check=True)
    try:
        with pytest.raises(ImageError, match=re.escape(f"is mounted ({disk} at {place}): umount '{place}'")):
            flash.flash(tmp_path / "none", str(disk), disk.name)
        with pytest.raises(ImageError, match="another program uses it"), flash.opened(found):
            pass
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_real_device_that_is_full_is_reported(tmp_path: Path, disk: Path) -> None:
    found = flash.read_image(image(tmp_path, CONTENT))
    os.truncate(tmp_path / "backing", 3 << 20)
    subprocess.run(["losetup", "--set-capacity", disk], check=True)

    with flash.opened(disks.find_disk(str(disk))) as device, pytest.raises(ImageError, match="No space left on device"):
        flash.write(found, device, str(disk), silent)
