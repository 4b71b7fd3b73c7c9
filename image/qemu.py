"""The command line that emulates a device in QEMU: UEFI firmware, the disk, the network, a watchdog, serial consoles.

The processor is emulated unless the caller asks for KVM: on some machines /dev/kvm exists, and no kernel boots with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "qemu-system-x86_64"
PROGRAM_ARM = "qemu-system-aarch64"
#: UEFI firmware and an empty store of its variables, in the folders of Debian, Fedora, and Arch
_FIRMWARE = (
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
)
_FIRMWARE_ARM = (("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),)
#: GiB of the emulated disk: the image's partitions, the second slot, and more than a gigabyte of data
DISK_GIB = 14


@dataclass(frozen=True, slots=True)
class Emulated:
    """An emulated device.

    Attributes:
        disk: raw or .qcow2 file that it boots from and writes to
        variables: file of its firmware's variables
        ports: port of the device -> port of this machine, on loopback
        network: its network cable is plugged in
        clock: time at which its clock starts, in ISO 8601; "" = now
        strings: OEM strings of its firmware (SMBIOS type 11), each a text or the file with it
        arm: an ARM machine (arm64), else x86-64
        serial: QEMU's word for the other end of each serial port; the first one is the console
    """

    disk: Path
    variables: Path
    ports: Mapping[int, int]
    memory_mib: int = 2048
    cores: int = 2
    network: bool = True
    clock: str = ""
    kvm: bool = False
    strings: Sequence[str | Path] = ()
    serial: Sequence[str] = ("stdio",)
    more: Sequence[str] = ()
    arm: bool = False

    def command(self) -> list[str]:
        """Return QEMU's command line.

        Raises:
            FileNotFoundError: no UEFI firmware is installed.
        """
        code, _ = firmware(self.arm)
        machine = [PROGRAM_ARM, "-machine", "virt"] if self.arm else [PROGRAM, "-machine", "q35"]
        return [
            *machine, *self._processor(), "-m", str(self.memory_mib),
            "-nodefaults", "-display", "none",
            *(word for port in self.serial for word in ("-serial", port)),
            "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}",
            "-drive", f"if=pflash,unit=1,format=raw,file={self.variables}",
            "-drive", f"if=none,id=disk,format={self._format()},discard=unmap,file={self.disk}",
            # without bootindex= the firmware tries to boot from the network first, which takes two minutes
            "-device", "virtio-blk-pci,drive=disk,bootindex=1",
            *self._network(), "-device", "virtio-rng-pci", "-device", "i6300esb",
            *(("-rtc", f"base={self.clock}") if self.clock else ()),
            *(word for text in self.strings for word in ("-smbios", _oem(text))),
            *self.more,
        ]  # fmt: skip

    def _format(self) -> str:
        return "qcow2" if self.disk.suffix == ".qcow2" else "raw"

    def _processor(self) -> list[str]:
        model = (
            "cortex-a72" if self.arm else "max"
        )  # an emulated `max` of ARM checks each return address, at a high cost
        kind = (
            ["-accel", "kvm", "-cpu", "host"] if self.kvm else ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", model]
        )
        return [*kind, "-smp", str(self.cores)]

    def _network(self) -> list[str]:
        if not self.network:
            return ["-nic", "none"]
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in self.ports.items())
        return ["-netdev", f"user,id=net{forwards}", "-device", "virtio-net-pci,netdev=net,romfile="]


def firmware(arm: bool = False) -> tuple[Path, Path]:
    """Return the firmware's code, and its empty variables.

    Raises:
        FileNotFoundError: no UEFI firmware is installed.
    """
    for code, variables in _FIRMWARE_ARM if arm else _FIRMWARE:
        if Path(code).exists() and Path(variables).exists():
            return Path(code), Path(variables)
    package = "qemu-efi-aarch64" if arm else "ovmf"
    raise FileNotFoundError(f"no UEFI firmware for virtual machines is installed: apt-get install {package}")


def why_not(arm: bool = False) -> str:
    """Return why this machine cannot emulate a device; "" = it can."""
    program, packages = (PROGRAM_ARM, "qemu-system-arm qemu-efi-aarch64") if arm else (PROGRAM, "qemu-system-x86 ovmf")
    if not shutil.which(program):
        return f"{program} is not installed: apt-get install {packages}"
    try:
        firmware(arm)
    except FileNotFoundError as error:
        return str(error)
    return ""


def new_disk(image: Path, disk: Path, gib: int = DISK_GIB) -> None:
    """Write an image (`.raw`, or `.img.zst` as `make image` makes it) to a new raw file of `gib` GiB, with holes.

    A raw file, because mtools and the tests then change it without a running machine.

    Raises:
        OSError, subprocess.CalledProcessError: the file could not be written; nothing is left of it.
    """
    part = disk.with_name(f"{disk.name}.part")
    try:
        if image.suffix == ".zst":
            subprocess.run(["zstd", "-q", "-d", "-f", "--sparse", str(image), "-o", str(part)], check=True)
        else:
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", str(image), str(part)], check=True)
        os.truncate(part, max(part.stat().st_size, gib << 30))
        part.rename(disk)
    finally:
        part.unlink(missing_ok=True)


def new_variables(path: Path, arm: bool = False) -> None:
    """Write the empty store of the firmware's variables.

    Raises:
        FileNotFoundError: no UEFI firmware is installed.
    """
    shutil.copyfile(firmware(arm)[1], path)


def port_is_free(port: int) -> bool:
    """Return whether no program listens on a port of loopback."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _oem(text: str | Path) -> str:
    # a comma ends a value on QEMU's command line, unless it is doubled
    return f"type=11,path={text}" if isinstance(text, Path) else f"type=11,value={text.replace(',', ',,')}"
