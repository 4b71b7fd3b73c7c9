"""The shared libraries that an ELF file needs (DT_NEEDED, elf(5)), without loading it or its libraries."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
#: of one file; a damaged one may claim any number
_MOST = 4096


def needed(path: Path) -> list[str]:
    """Return the names of the libraries that a 64-bit little-endian ELF file is linked with.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _needed(data)
        except (struct.error, IndexError, OverflowError) as error:
            raise ValueError(f"'{path}' is a damaged ELF file") from error


def _needed(data: mmap.mmap) -> list[str]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("found no 64-bit little-endian ELF file")
    (start,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    loads, dynamic = [], (0, 0)
    for number in range(count):
        kind, _, offset, address, _, length, _, _ = _PROGRAM_HEADER.unpack_from(data, start + number * size)
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
    names, table = [], 0
    for number in range(min(dynamic[1] // _DYNAMIC.size, _MOST)):
        tag, value = _DYNAMIC.unpack_from(data, dynamic[0] + number * _DYNAMIC.size)
        if tag == _DT_NEEDED:
            names.append(value)
        elif tag == _DT_STRTAB:
            table = value
        elif not tag:
            break
    where = next((table - address + offset for address, offset, length in loads if 0 <= table - address < length), -1)
    return [_string(data, where + name) for name in names] if where >= 0 else []


def _string(data: mmap.mmap, offset: int) -> str:
    return data[offset : data.find(b"\0", offset, offset + 4096)].decode(errors="replace")
