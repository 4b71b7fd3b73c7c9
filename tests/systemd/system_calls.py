"""Runs a program under the system calls that a unit allows: `python -m tests.systemd.system_calls UNIT PROGRAM...`.

The list is `systemd-analyze syscall-filter`'s, and libseccomp makes the filter, as in systemd. Neither needs root.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.systemd.restrictions import SYSTEMD

#: seccomp.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def lists(unit: Path) -> list[str]:
    """Return the values of `SystemCallFilter=` in their order."""
    lines = unit.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith("SystemCallFilter=")]


def allowed(filters: Iterable[str], groups: dict[str, set[str]]) -> set[str]:
    """Return the names of the system calls that are allowed: those of each list, but for those of a list with `~`."""
    found = set(groups["@default"])
    for one in filters:
        names = {name for word in one.lstrip("~").split() for name in groups.get(word, {word})}
        found = found - names if one.startswith("~") else found | names
    return found


def read_groups() -> dict[str, set[str]]:
    """Return group -> system calls."""
    text = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    groups: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line, set())
        elif (word := line.strip()) and not word.startswith("#") and groups:
            members.add(word)
    while any(word.startswith("@") for members in groups.values() for word in members):
        for name, members in groups.items():
            groups[name] = {one for word in members for one in (groups[word] if word[0] == "@" else (word,))}
    return groups


def restrict(names: Iterable[str]) -> None:
    """Let this process make these system calls only: the others fail with EPERM."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.EPERM))
    for name in names:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # this processor has it
            library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0)
    if status := library.seccomp_load(context):
        raise OSError(-status, "seccomp_load")


def main(unit: str, *program: str) -> None:
    """Become the program."""
    restrict(allowed(lists(SYSTEMD / unit), read_groups()))
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
