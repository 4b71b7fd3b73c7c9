"""Debian's packages in the image and of the tools that pack it, against the committed lists packages.txt and tools.txt.

The archive has no old versions, so a build takes the versions of the day. The lists make a change visible: the build
stops until someone has read the difference and accepted it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from image.errors import ImageError

LOCK = Path(__file__).parent / "packages.txt"
LOCK_OF_TOOLS = Path(__file__).parent / "tools.txt"
ACCEPT = "python -m image lock"
#: packages of mkosi's tree of tools whose programs and libraries write bytes of the image: they install packages, make
#: file systems and their hashes, archives, and the kernel image. The other 400 only run beside them
TOOLS = frozenset((
    "apt", "coreutils", "cpio", "dosfstools", "dpkg", "e2fsprogs", "erofs-utils", "findutils", "gzip", "kmod",
    "libblkid1", "libcryptsetup12", "libext2fs2t64", "libfdisk1", "libkmod2", "liblz4-1", "liblzma5",
    "libsystemd-shared", "libuuid1", "libzstd1", "mtools", "python3-pefile", "python3.13", "sed", "systemd",
    "systemd-boot", "systemd-repart", "systemd-ukify", "tar", "util-linux", "xz-utils", "zlib1g", "zstd",
))  # fmt: skip

_HEAD = (
    "# Debian's packages in the image and its initrd: name, version, architecture. Written by `python -m image lock`;\n"
    "# `make image` stops where the archive has others.\n"
)
_HEAD_OF_TOOLS = (
    "# Debian's packages that write the bytes of the image: name, version, architecture. By `python -m image lock`;\n"
    "# `make image` stops where its tree of tools has others.\n"
)
#: built from this checkout, so its version changes with every commit
_OURS = "edge-serve"


def read_manifests(paths: list[Path]) -> list[tuple[str, str, str]]:
    """Return (name, version, architecture) of each package in manifests of mkosi, sorted.

    Raises:
        ImageError: a manifest is missing or is not one of mkosi's.
    """
    found = set()
    for path in paths:
        try:
            entries = json.loads(path.read_text())["packages"]
            found |= {(one["name"], one["version"], one["architecture"]) for one in entries}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ImageError(f"{path} is no manifest of a build ({error!r}): run 'make image' first") from None
    return sorted(one for one in found if one[0] != _OURS)


def read_tools(tree: Path) -> list[tuple[str, str, str]]:
    """Return (name, version, architecture) of the packages of TOOLS in mkosi's tree of tools, sorted.

    Raises:
        ImageError: it is no such tree.
    """
    try:
        text = (tree / "var/lib/dpkg/status").read_text()
    except OSError as error:
        raise ImageError(f"{error.filename} cannot be read ({error.strerror}): run 'make image' first") from None
    found = []
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", stanza, re.MULTILINE))
        if fields.get("Package") in TOOLS and fields.get("Status", "").endswith(" installed"):
            found.append((fields["Package"], fields["Version"], fields["Architecture"]))
    return sorted(found)


def write(packages: list[tuple[str, str, str]], lock: Path = LOCK) -> str:
    """Return the text of a list."""
    return (_HEAD_OF_TOOLS if lock == LOCK_OF_TOOLS else _HEAD) + "".join(f"{' '.join(one)}\n" for one in packages)


def differences(locked: str, packages: list[tuple[str, str, str]]) -> list[str]:
    """Return one line for each package that the list has in another version, or that only one side has."""
    lines = [line.split() for line in locked.splitlines() if line and not line.startswith("#")]
    before = {(name, arch): version for name, version, arch in lines}
    now = {(name, arch): version for name, version, arch in packages}
    told = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key, "absent"), now.get(key, "absent")
        if old != new:
            told.append(f"{key[0]} ({key[1]}): {old} -> {new}")
    return told


def check(packages: list[tuple[str, str, str]], lock: Path = LOCK, older: str = "") -> None:
    """Compare the packages of a build with the list.

    Args:
        older: what to do where this machine's packages are older than the list.

    Raises:
        ImageError: they differ, with each difference and the command that accepts them.
    """
    told = differences(lock.read_text() if lock.exists() else "", packages)
    if told:
        listed = "\n".join(f"  {line}" for line in told)
        raise ImageError(
            f"{len(told)} Debian packages differ from image/{lock.name}:\n{listed}\n"
            f"Read the changes, accept them with '{ACCEPT}', commit the list, and build again (make image){older}"
        )
