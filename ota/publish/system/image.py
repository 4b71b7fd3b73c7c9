"""Reads the three files of an image: root, verity, and UKI. Refuses files that do not belong together.

The UKI names product, version, profile, and form of the data partition (.osrel), the root hash (.cmdline), and its
processor. The root hash is computed again from the root and the salt in the verity file, so that no device gets a
system that cannot boot.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.documents.system import ENDINGS
from ota.errors import UsageError

#: of PE/COFF -> as `uname -m` says
ARCHITECTURES = {0x8664: "x86_64", 0xAA64: "aarch64"}
#: word of the command line: unless its value is `no`, systemd takes units and files from firmware
CREDENTIALS = "systemd.import_credentials"
#: sections that a device starts from, and those that are read here
_NEEDED = (".osrel", ".cmdline", ".linux", ".initrd")
_MOST_SECTION = 64 * 1024
_HASH_BYTES = 32
_EXPECTED = "expected the files edge_N.root, edge_N.verity, and edge_N.efi of one image, which 'make image' writes"


@dataclass(frozen=True, slots=True)
class SystemImage:
    """The three files of an image, and the names that its UKI has."""

    paths: Mapping[str, Path]
    product: str
    profile: str
    arch: str
    version: int
    root_hash: str
    state_schema: int


def read_image(paths: Sequence[Path]) -> SystemImage:
    """Return the image of three files, given in any order.

    Raises:
        UsageError: a file is missing, cut off, or of another kind, or they do not belong together.
    """
    found: dict[str, Path] = {}
    for path in paths:
        kind = _kind_of(path)
        if kind in found:
            raise UsageError(f"{found[kind]} and {path} are both a {kind}: {_EXPECTED}")
        found[kind] = path
    if missing := [kind for kind in ENDINGS if kind not in found]:
        raise UsageError(f"there is no {missing[0]} among {', '.join(map(str, paths)) or 'no files'}: {_EXPECTED}")
    arch, sections = _read_uki(found["uki"])
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', sections[".osrel"], re.MULTILINE))
    product, version = release.get("IMAGE_ID", ""), release.get("IMAGE_VERSION", "")
    if not product or not re.fullmatch("[1-9][0-9]{0,8}", version):
        raise UsageError(
            f"{found['uki']} names IMAGE_ID {product!r} and IMAGE_VERSION {version!r}, "
            f"expected a name and a number: {_EXPECTED}"
        )
    schema = release.get("EDGE_STATE_SCHEMA", "")
    if not release.get("VARIANT_ID") or not re.fullmatch("[1-9][0-9]{0,8}", schema):
        raise UsageError(
            f"{found['uki']} names the profile {release.get('VARIANT_ID', '')!r} (VARIANT_ID) and the form "
            f"{schema!r} of the data partition (EDGE_STATE_SCHEMA), so devices could take it that it does not fit: "
            "build the image again"
        )
    words = [one for one in sections[".cmdline"].split() if _key(one) == CREDENTIALS]
    if words[-1:] != [f"{CREDENTIALS}=no"]:
        has = " ".join(words) or "no such word"
        raise UsageError(
            f"{found['uki']} takes credentials from firmware: its command line has {has}, "
            f"expected {CREDENTIALS}=no. Publish the edge_N.efi that 'make image' wrote"
        )
    image = SystemImage(
        paths=found,
        product=product,
        profile=release["VARIANT_ID"],
        arch=arch,
        version=int(version),
        root_hash=_named_root_hash(found["uki"], sections[".cmdline"]),
        state_schema=int(schema),
    )
    _check_root(image)
    return image


def _kind_of(path: Path) -> str:
    with files.wrap_errors(path), open(path, "rb") as file:
        head = file.read(8)
    if not head:
        raise UsageError(f"{path} is empty: {_EXPECTED}")
    return "uki" if head.startswith(b"MZ") else "verity" if head == b"verity\0\0" else "root"


def _key(word: str) -> str:
    """Return the key of a word of the command line, in which `-` and `_` are the same."""
    return word.partition("=")[0].replace("-", "_")


def _read_uki(path: Path) -> tuple[str, dict[str, str]]:
    """Return the processor, and the first 64 KiB of each section as text, by its name.

    Raises:
        UsageError: it is no kernel of an image, or a section is missing or cut off.
    """
    try:
        with files.wrap_errors(path), open(path, "rb") as file:
            start = struct.unpack("<I", file.read(64)[60:64])[0]
            file.seek(start)
            head = file.read(24)
            signature, machine, count, optional = struct.unpack("<4sHH12xH", head[:22])
            if signature != b"PE\0\0" or machine not in ARCHITECTURES:
                raise UsageError(f"{path} is no kernel for {' or '.join(ARCHITECTURES.values())}: {_EXPECTED}")
            file.seek(start + 24 + optional)
            table = file.read(40 * count)
            whole, texts = file.seek(0, os.SEEK_END), {}
            for number in range(count):
                section, length, size, offset = struct.unpack("<8sI4xII", table[40 * number :][:24])
                name, size = section.rstrip(b"\0").decode(errors="replace"), min(length, size)
                if offset + size > whole:
                    raise UsageError(f"{path} is cut off: its section {name} ends at {offset + size} of {whole} bytes")
                file.seek(offset)
                texts[name] = file.read(min(size, _MOST_SECTION)).rstrip(b"\0").decode(errors="replace")
    except struct.error:
        raise UsageError(f"{path} is cut off: {_EXPECTED}") from None
    if missing := [name for name in _NEEDED if name not in texts]:
        raise UsageError(f"{path} has no section {missing[0]}: {_EXPECTED}")
    return ARCHITECTURES[machine], texts


def _named_root_hash(path: Path, command_line: str) -> str:
    found = re.search(r"(?:^|\s)roothash=([0-9a-f]{64})(?:\s|$)", command_line)
    if found is None:
        raise UsageError(f"{path} has no roothash= in its command line: build the image with verity")
    return found.group(1)


def _check_root(image: SystemImage) -> None:
    """Refuse a root that dm-verity would refuse. The format is that of cryptsetup's verity, version 1."""
    path = image.paths["verity"]
    with files.wrap_errors(path), open(path, "rb") as file:
        block = file.read(512)
        try:
            version, kind, name, data_size, hash_size, count, salt_size = struct.unpack("<8xII16x32sIIQH6x", block[:88])
        except struct.error:
            raise UsageError(f"{path} is cut off: {_EXPECTED}") from None
        if (version, kind, name.rstrip(b"\0")) != (1, 1, b"sha256") or data_size != hash_size or not data_size:
            raise UsageError(f"{path} has another format than verity 1 with SHA-256: build the image again")
        salt = block[88 : 88 + salt_size]
        file.seek(hash_size)
        tree = file.read()
    if image.paths["root"].stat().st_size < count * data_size:
        raise UsageError(f"{image.paths['root']} is cut off: {path} covers {count * data_size} bytes of it")
    expected, found = _hash_tree(_blocks(image.paths["root"], data_size, count), salt, hash_size)
    top = hashlib.sha256(salt + tree[:hash_size]).hexdigest()
    for what, value in ((path, top), (image.paths["root"], found)):
        if value != image.root_hash:
            raise UsageError(
                f"{what} has the root hash {value[:12]}..., and {image.paths['uki']} names {image.root_hash[:12]}...: "
                f"{_EXPECTED}"
            )
    if len(tree) < len(expected):
        raise UsageError(f"{path} is cut off: expected a hash tree of {len(expected)} bytes, found {len(tree)}")
    if not tree.startswith(expected):
        raise UsageError(f"{path} is not the hash tree of {image.paths['root']}: {_EXPECTED}")


def _hash_tree(blocks: Iterator[bytes], salt: bytes, size: int) -> tuple[bytes, str]:
    """Return the levels of the hash tree over blocks, the top first, and the root hash."""
    hashes = [hashlib.sha256(salt + one).digest() for one in blocks]
    fan, tree = size // _HASH_BYTES, b""
    while len(hashes) > 1:
        groups = [b"".join(hashes[start : start + fan]).ljust(size, b"\0") for start in range(0, len(hashes), fan)]
        hashes, tree = [hashlib.sha256(salt + one).digest() for one in groups], b"".join(groups) + tree
    return tree, hashes[0].hex() if hashes else ""


def _blocks(path: Path, size: int, count: int) -> Iterator[bytes]:
    with files.wrap_errors(path), open(path, "rb") as file:
        for _ in range(count):
            yield file.read(size)
