"""`make image-run`: boots the newest image in QEMU, with its ports on loopback and its console on the terminal.

The image stays as it is: the device writes to a disk of its own, build/image-run/disk.raw, which the next run keeps.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from image import qemu
from image.artifacts import newest
from image.errors import ImageError

ROOT = Path(__file__).parents[1]
FOLDER = Path("build/image-run")
_COMMAND = "make image-run"
#: port of the device, and the option that moves it
_PORTS = {8000: "http", 8001: "grpc", 8002: "metrics"}


def parser() -> argparse.ArgumentParser:
    """Return the options of `python -m image run`."""
    made = argparse.ArgumentParser(prog="python -m image run", description="Boot the device image in QEMU.")
    made.add_argument("--image", type=Path, help="the image, .img.zst or .raw (default: the newest of dist/)")
    made.add_argument("--folder", type=Path, default=FOLDER, help="folder of the disk (default: %(default)s)")
    made.add_argument("--fresh", action="store_true", help="boot a new disk: the first boot of a flashed device")
    made.add_argument("--size", type=int, default=qemu.DISK_GIB, metavar="GIB", help="of a new disk (%(default)s)")
    made.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of the device (%(default)s)")
    made.add_argument("--cores", type=int, default=2, help="of the device (%(default)s)")
    made.add_argument("--kvm", action="store_true", help="use /dev/kvm; emulation is the default, and works everywhere")
    for port, name in _PORTS.items():
        made.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help="on loopback (%(default)s)")
    return made


def main(arguments: Sequence[str]) -> int:
    """Boot the image until its machine ends. Return 2 and print the reason if that is impossible."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except ImageError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    ports = {port: getattr(options, f"{name}_port") for port, name in _PORTS.items()}
    image = options.image or newest(ROOT / "dist")
    if problem := _problem(image, ports, options.kvm) or _prepare(image, options):
        return _refuse(problem)
    print(_explanation(options.folder, ports), flush=True)
    emulated = qemu.Emulated(
        options.folder / "disk.raw", options.folder / "variables", ports, options.memory, options.cores,
        kvm=options.kvm, serial=("mon:stdio",), arm=for_arm(image),
    )  # fmt: skip
    return subprocess.run(emulated.command()).returncode


def _refuse(problem: str) -> int:
    print(f"{_COMMAND}: {problem}", file=sys.stderr)
    return 2


def for_arm(image: Path) -> bool:
    """Return whether an image is for ARM machines, by the name that `make image-arm64` gives it."""
    return "-arm64." in image.name


def _problem(image: Path, ports: dict[int, int], kvm: bool) -> str:
    """Return why the image cannot boot; "" = it can."""
    if not image.is_file():
        return f"{image} is no file: --image names an .img.zst or a .raw file"
    if why := qemu.why_not(for_arm(image)):
        return why
    if image.suffix == ".zst" and not shutil.which("zstd"):
        return "zstd is not installed: apt-get install zstd"
    if kvm and not os.access("/dev/kvm", os.W_OK):
        return "--kvm: this user cannot write to /dev/kvm, or there is none; leave --kvm out"
    taken = [f"{here} (--{_PORTS[there]}-port)" for there, here in ports.items() if not qemu.port_is_free(here)]
    if taken:
        return f"another program listens on port {', '.join(taken)}: stop it, or choose another port by that option"
    return ""


def _prepare(image: Path, options: argparse.Namespace) -> str:
    """Make the disk, or keep the one of the last run. Return why that is impossible; "" = it is there."""
    folder: Path = options.folder
    disk, made_of = folder / "disk.raw", folder / "image"
    name = f"{image.resolve()} {image.stat().st_mtime_ns}\n"
    if disk.exists() and not options.fresh:
        if not made_of.exists() or made_of.read_text() != name:
            print(f"{disk} was made from another image than {image}; --fresh boots this one", file=sys.stderr)
        return ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk.unlink(missing_ok=True)
        print(f"writing {image} to {disk}", flush=True)
        qemu.new_disk(image, disk, options.size)
        qemu.new_variables(folder / "variables", for_arm(image))
        made_of.write_text(name)
    except OSError as error:
        return f"{disk} cannot be written: {error.strerror or error}; --folder names another folder"
    except subprocess.CalledProcessError:
        return f"{disk} could not be written (the reason is above): is the disk full, or {image} damaged?"
    return ""


def _explanation(folder: Path, ports: dict[int, int]) -> str:
    http, grpc, metrics = (ports[port] for port in _PORTS)
    return (
        f"http://127.0.0.1:{http}/ui   inference on the same port, gRPC on {grpc}, metrics on {metrics}\n"
        f"disk: {folder / 'disk.raw'}, kept for the next run; --fresh boots a new one\n"
        "an emulated boot takes about a minute; Ctrl-A, then X, ends it"
    )
