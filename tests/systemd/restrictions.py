"""The restrictions of the unit, with those that 10-nvidia.conf relaxes, as arguments of `systemd-run`."""

from __future__ import annotations

import grp
import re
from collections.abc import Callable, Sequence
from pathlib import Path

SYSTEMD = Path(__file__).parents[2] / "systemd"
FILES = (SYSTEMD / "edge-serve.service", SYSTEMD / "edge-serve.service.d/10-nvidia.conf")
#: settings that restrict a process; the others are about its start, its files, and its supervision
_RESTRICTS = re.compile(
    r"(Protect|Private|Device|Keyring|RemoveIPC|NoNew|Capability|Ambient|Restrict|Lock|MemoryDeny|SocketBind|SystemCall"
    r"|Supplementary|UMask)"
)


def restrictions() -> list[tuple[str, str]]:
    """Return the settings in the order of the files; a key may come several times."""
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if re.match(r"\w+=", line)]
    return [(key, value) for key, _, value in pairs if _RESTRICTS.match(key)]


def command(settings: Sequence[tuple[str, str]], program: Sequence[str]) -> list[str]:
    """Return a command that runs a program under settings, as a user without rights, and waits for it.

    Groups that this machine lacks are left out.
    """
    there = {one.gr_name for one in grp.getgrall()}
    made = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "-p", "User=nobody"]
    for key, value in settings:
        if key == "SupplementaryGroups":
            value = " ".join(name for name in value.split() if name in there)
        made += ["-p", f"{key}={value}"]
    return [*made, *program]


def culprits(settings: Sequence[tuple[str, str]], works: Callable[[Sequence[tuple[str, str]]], bool]) -> list[str]:
    """Return the keys without which the program works, each alone; none if it takes several."""
    keys = dict.fromkeys(key for key, _ in settings)
    return [key for key in keys if works([one for one in settings if one[0] != key])]
