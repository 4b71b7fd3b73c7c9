"""Disks of this machine: the facts by which a user recognizes one, and the reasons why it may not be overwritten.

Everything is read from files below `root`, which stands in for / in tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from image.errors import ImageError

#: names that the kernel gives to disks: SATA and USB, virtio, Xen, NVMe, SD and eMMC
_DISKS = re.compile(r"sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+")
#: names of block devices that are no disks -> their kind
_OTHERS = {
    r"loop\d+": "a loop device, which is a file",
    r"zram\d+|ram\d+": "memory",
    r"dm-\d+": "made by the device mapper (LVM, LUKS)",
    r"md\d+": "a RAID of several disks",
    r"sr\d+": "an optical drive",
    r"mmcblk\d+(boot\d+|rpmb|gp\d+)": "a boot area of an eMMC",
    r"nbd\d+": "a disk of the network",
}
#: the kernel counts in sectors of this size, whatever the disk's own are
_SECTOR = 512

#: device path -> facts such as TYPE and LABEL, as blkid names them
Probe = Callable[[Sequence[str]], Mapping[str, Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of a disk, or the whole disk where it has a file system without partitions."""

    name: str
    size: int
    mounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk.

    Attributes:
        name: the kernel's name, `sdb`
        bus: `USB`, or "" if it is not known
        writable: its write protection is off
        parts: its partitions
        mounts: mount points of the disk without partitions
        users: devices made of the disk, and uses of it that are no mounts
        system: the running system is on it
    """

    name: str
    path: str
    size: int
    model: str
    bus: str
    writable: bool
    parts: tuple[Part, ...]
    mounts: tuple[str, ...]
    users: tuple[str, ...]
    system: bool

    def __str__(self) -> str:
        words = [self.path, gigabytes(self.size), self.model, self.bus]
        return ", ".join(word for word in words if word)


def gigabytes(size: int) -> str:
    """Return a size as makers of disks print it."""
    return f"{size / 1e9:.1f} GB"


def find_disk(device: str, root: Path = Path("/")) -> Disk:
    """Return the disk with a path such as /dev/sdb or /dev/disk/by-id/....

    Raises:
        ImageError: there is none, or it is a device of another kind.
    """
    if not device:
        raise ImageError(f"name a disk: make flash DEVICE=/dev/sdX; {_choice(root)}")
    blocks = root / "sys/class/block"
    path = Path(os.path.realpath(root / device.removeprefix("/")))
    name = path.name
    if path.parent != Path(os.path.realpath(root / "dev")) or not (blocks / name).exists():
        raise ImageError(f"{device} is no disk of this machine; {_choice(root)}")
    if (blocks / name / "partition").exists():
        whole = Path(os.path.realpath(blocks / name)).parent.name
        raise ImageError(f"{device} is a partition, expected the whole disk: DEVICE=/dev/{whole}")
    for pattern, kind in _OTHERS.items():
        if re.fullmatch(pattern, name):
            raise ImageError(f"{device} is {kind}, expected a disk; {_choice(root)}")
    if not _DISKS.fullmatch(name):
        raise ImageError(f"{device} is a device of an unknown kind, expected a disk; {_choice(root)}")
    return _read(name, root)


def disks(root: Path = Path("/")) -> list[Disk]:
    """Return the disks of this machine."""
    names = sorted(path.name for path in (root / "sys/class/block").glob("*") if _DISKS.fullmatch(path.name))
    return [_read(name, root) for name in names]


def _choice(root: Path) -> str:
    found = [f"{disk}{' (the running system)' if disk.system else ''}" for disk in disks(root)]
    return "disks here: " + ("; ".join(found) or "none")


def check(disk: Disk, least: int) -> None:
    """Check that a disk may be overwritten and has at least `least` bytes.

    Raises:
        ImageError: with the first reason why not.
    """
    mounted = [(part.name, place) for part in disk.parts for place in part.mounts]
    mounted += [(disk.name, place) for place in disk.mounts]
    if disk.system:
        raise ImageError(f"{disk} is the disk of the running system: choose another disk, or start from another one")
    if mounted:
        places = ", ".join(f"/dev/{name} at {place}" for name, place in mounted)
        command = " ".join(f"'{place}'" for _, place in mounted)
        raise ImageError(f"{disk} is mounted ({places}): umount {command}")
    if disk.users:
        users = ", ".join(disk.users)
        raise ImageError(f"{disk} is in use by {users}: stop that first (swapoff, vgchange, cryptsetup)")
    if disk.size == 0:
        raise ImageError(f"{disk.path} has no medium: insert the card")
    if disk.size < least:
        raise ImageError(f"{disk} is too small: an image needs {gigabytes(least)}, two systems and the data")
    if not disk.writable:
        raise ImageError(f"{disk} is write-protected: move the switch of the card or its adapter")


def contents(disk: Disk, probe: Probe) -> Iterator[str]:
    """Describe what is on a disk, one line for each partition."""
    paths = [disk.path, *(f"/dev/{part.name}" for part in disk.parts)]
    facts = probe(paths)
    whole = facts.get(disk.path, {})
    if whole.get("TYPE"):
        yield f"{disk.path}: {_system(whole)}"
    for part in disk.parts:
        found = facts.get(f"/dev/{part.name}", {})
        yield f"/dev/{part.name}: {gigabytes(part.size)}, {_system(found)}"
    if not disk.parts and not whole.get("TYPE"):
        table = whole.get("PTTYPE")
        yield f"a partition table ({table}) without partitions" if table else "no partitions, and no known file system"
    labels = {found.get("PART_ENTRY_NAME", "") for found in facts.values()}
    versions = sorted(label.removeprefix("edge_") for label in labels if re.fullmatch(r"edge_\d+", label))
    if "edge-data" in labels or versions:
        kept = ", and the data of a device" if "edge-data" in labels else ""
        yield f"an edge-serve system is on it (version {', '.join(versions) or 'unknown'}{kept})"


def _system(facts: Mapping[str, str]) -> str:
    words = [facts.get("TYPE", "no known file system")]
    words += [repr(facts[key]) for key in ("LABEL", "PART_ENTRY_NAME") if facts.get(key)]
    return " ".join(words)


def _read(name: str, root: Path) -> Disk:
    blocks = root / "sys/class/block"
    folder = Path(os.path.realpath(blocks / name))
    parts = sorted((path.parent.name for path in folder.glob("*/partition")), key=lambda one: (len(one), one))
    devices = [name, *parts]
    mounts = _mounts(blocks, root)
    holders = [holder.name for device in devices for holder in (blocks / device / "holders").glob("*")]
    swaps = [f"swap on {path}" for path in _swaps(root) if Path(path).name in devices]
    return Disk(
        name=name,
        path=f"/dev/{name}",
        size=_size(blocks / name),
        model=_model(folder / "device"),
        bus="USB" if "/usb" in str(folder) else "",
        writable=_text(blocks / name / "ro") != "1",
        parts=tuple(Part(one, _size(blocks / one), tuple(mounts.get(one, ()))) for one in parts),
        mounts=tuple(mounts.get(name, ())),
        users=(*sorted(set(holders)), *swaps),
        system=not _under(blocks, [one for one, places in mounts.items() if "/" in places]).isdisjoint(devices),
    )


def _mounts(blocks: Path, root: Path) -> dict[str, list[str]]:
    """Return device -> its mount points. Btrfs has numbers of its own, so there the source of the mount counts."""
    numbers = {_text(path / "dev"): path.name for path in blocks.glob("*")}
    found: dict[str, list[str]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        number, place = fields.split()[2], _unescaped(fields.split()[4])
        source = os.path.basename(os.path.realpath(root / rest.split()[1].removeprefix("/")))
        name = numbers.get(number) or (source if (blocks / source).exists() else "")
        if name:
            found.setdefault(name, []).append(place)
    return found


def _under(blocks: Path, names: list[str]) -> set[str]:
    """Return the devices, and all that they are made of."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += [slave.name for slave in (blocks / name / "slaves").glob("*")]
    return found


def _swaps(root: Path) -> list[str]:
    return [line.split()[0] for line in _text(root / "proc/swaps").splitlines()[1:] if line.split()]


def _model(device: Path) -> str:
    words = [_text(device / name) for name in ("vendor", "model", "name")]
    return " ".join(word for word in words if word and not word.startswith("0x"))


def _size(block: Path) -> int:
    return int(_text(block / "size") or 0) * _SECTOR


def _text(path: Path) -> str:
    """Return the text of a file of the kernel; "" = there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _unescaped(place: str) -> str:
    """Return a mount point without the escapes of mountinfo, such as \\040 for a space."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), place)
