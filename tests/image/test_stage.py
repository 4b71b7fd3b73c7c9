"""The folder that mkosi reads, and what its files say about the units of the image."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from image.errors import ImageError
from image.stage import CHECKOUT, stage

UNITS = CHECKOUT / "image/mkosi/mkosi.extra/usr/lib/systemd/system"
PRESET = CHECKOUT / "image/mkosi/mkosi.extra/usr/lib/systemd/system-preset/10-edge-device.preset"
MASKS = CHECKOUT / "image/mkosi/mkosi.extra/etc/systemd/system"
#: what a checkout needs
MODELS = ("model_repository/simple", "model_repository/simple_identity")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged") / "config"
    before = os.umask(0o077)
    try:
        stage(folder, "Types: deb\n")
    finally:
        os.umask(before)
    return folder


def test_device_programs_models_and_sources_are_added(staged: Path) -> None:
    extra = staged / "mkosi.extra"
    assert (extra / "usr/lib/edge-device/image/device/__init__.py").exists()
    assert (extra / "usr/share/edge-serve/models/simple/1/model.onnx").exists()
    shipped = sorted(path.name for path in (extra / "usr/share/edge-serve/models").iterdir())
    assert shipped == ["simple", "simple_identity"], "each model makes the boot longer"
    assert (staged / "mkosi.sandbox/etc/apt/sources.list.d/mkosi.sources").read_text() == "Types: deb\n"
    assert list(staged.rglob("__pycache__")) == []


def test_modes_do_not_depend_on_the_umask(staged: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in staged.rglob("*") if not path.is_symlink()}
    assert modes == {0o755, 0o644}
    assert os.access(staged / "mkosi.finalize", os.X_OK)


def test_shell_scripts_of_the_initrd_go_there(tmp_path: Path) -> None:
    for path in ("image/mkosi/mkosi.images/initrd", "image/device/initrd", *MODELS):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "image/__init__.py").touch()
    (tmp_path / "image/device/initrd/edge-state").write_text("#!/bin/sh\nSCHEMA=12\n")
    (tmp_path / "image/device/initrd/edge-state").chmod(0o755)
    stage(tmp_path / "out", "", checkout=tmp_path)

    script = tmp_path / "out/mkosi.images/initrd/mkosi.extra/usr/lib/edge-device/edge-state"
    assert script.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/mkosi.extra/usr/lib/edge-device/state-schema").read_text() == "12\n"
    assert not (tmp_path / "out/mkosi.extra/usr/lib/edge-device/image/device/initrd").exists()


def test_a_checkout_without_models_is_refused(tmp_path: Path) -> None:
    for path in ("image/mkosi", "image/device", "model_repository"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "image/__init__.py").touch()
    with pytest.raises(ImageError, match="no model simple: the checkout is not complete"):
        stage(tmp_path / "out", "", checkout=tmp_path)


def test_every_enabled_unit_of_the_image_exists_here_or_in_a_package() -> None:
    """Names with `edge-` are ours: a line for one that is nowhere enables nothing."""
    names = {path.name for path in (*UNITS.iterdir(), *(CHECKOUT / "systemd").iterdir())}
    enabled = re.findall(r"^enable (edge-\S+)$", PRESET.read_text(), re.MULTILINE)
    assert [one for one in enabled if not any(fnmatch(name, one) for name in names)] == []
    assert PRESET.read_text().splitlines()[-1] == "disable *"


def test_the_driver_of_a_gpu_is_loaded_where_one_is_and_udev_may_be_late(tmp_path: Path) -> None:
    folder = CHECKOUT / "image/mkosi/mkosi.profiles/nvidia/mkosi.extra/usr/lib/systemd/system"
    unit = (folder / "edge-nvidia.service").read_text()
    commands = re.findall(r"^Exec(?:Condition|Start)=(.*)$", unit, re.MULTILINE)
    (tmp_path / "0").mkdir()
    for vendor, status in (("0x8086", 1), ("0x10de", 0)):
        (tmp_path / "0/vendor").write_text(f"{vendor}\n")
        condition = commands[0].replace("/sys/bus/pci/devices", str(tmp_path))
        assert subprocess.run(shlex.split(condition), check=False).returncode == status
    assert commands[1:] == ["/usr/sbin/modprobe nvidia", "/usr/bin/nvidia-modprobe -u -c 0"]


def test_masks_link_to_dev_null_and_name_no_edge_unit() -> None:
    masks = [path for path in MASKS.iterdir() if path.is_symlink()]
    assert {os.readlink(path) for path in masks} == {"/dev/null"}
    assert [path.name for path in masks if path.name.startswith("edge-")] == []
    timers = {"systemd-sysupdate.timer", "systemd-sysupdate-reboot.timer", "getty@.service", "ssh.socket"}
    assert timers <= {path.name for path in masks}


def test_the_watchdog_of_the_root_runs_in_the_initrd_too() -> None:
    place = "mkosi.extra/usr/lib/systemd/system.conf.d/10-edge-device.conf"
    root, initrd = (
        (CHECKOUT / "image/mkosi" / folder / place).read_text().splitlines() for folder in (".", "mkosi.images/initrd")
    )
    settings = [line for line in root if "WatchdogSec=" in line]
    assert [line for line in initrd if "WatchdogSec=" in line] == settings == [
        "RuntimeWatchdogSec=30s", "RebootWatchdogSec=2min",
    ]  # fmt: skip
