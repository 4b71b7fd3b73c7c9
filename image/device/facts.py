"""Facts of the device: its name, addresses, fingerprint, version, slot, and the entries of the boot partition."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from image.device import decide, files
from image.device.slots import SlotStore

#: number of a root partition -> its slot (image/mkosi/mkosi.repart)
_SLOTS = {"2": "a", "4": "b"}
_SECONDS = 10.0
_MOST_STATUS = 1024 * 1024
_MOST_TEXT = 200


def read_facts(root: Path = Path("/"), addresses: list[str] | None = None) -> dict[str, Any]:
    """Return the facts, in the form of the status file."""
    return {
        "name": socket.gethostname() if root == Path("/") else (_text(root / "var/lib/edge-device/name") or ""),
        "addresses": read_addresses() if addresses is None else addresses,
        "fingerprint": fingerprint(root),
        "version": version(root),
        "slot": slot(root),
        "entries": list(entries(root)),
        "provisioned": (root / "var/lib/edge-device/current").is_dir(),
        "watchdog": watchdog(root),
        "building": building(root),
        "tls": (root / "etc/edge-serve/credentials/server.crt").exists(),
    }


def read_addresses() -> list[str]:
    """Return the addresses of the network interfaces, IPv4 first; without those of the loopback and link-local ones."""
    import subprocess  # takes long under emulation, and not every program asks for addresses

    try:
        done = subprocess.run(
            ["ip", "-json", "address", "show", "up"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
            check=False,
        )  # fmt: skip
        rows = json.loads(done.stdout or b"[]")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    found = [one for row in rows for one in row.get("addr_info", ()) if one.get("scope") == "global"]
    return [one["local"] for one in sorted(found, key=lambda one: one["family"] != "inet") if not one.get("deprecated")]


def fingerprint(root: Path = Path("/")) -> str:
    """Return the fingerprint of the device's key, as `edge-ota status` prints it; "" = there is no key yet."""
    lines = (_text(root / "var/lib/edge-ota/identity/device.pub") or "").split()
    try:
        der = base64.b64decode("".join(lines[3:-3]), validate=True)
    except ValueError:
        return ""
    return hashlib.sha256(der).hexdigest() if der else ""


def version(root: Path = Path("/")) -> str:
    """Return the version of the image that runs; "" = this is no image."""
    match = re.search(r'^IMAGE_VERSION="?([^"\n]*)', _text(root / "usr/lib/os-release") or "", re.MULTILINE)
    return match[1] if match else ""


def watchdog(root: Path = Path("/")) -> str:
    """Return whether a watchdog of the hardware would reset a system that hangs: `active`, `inactive`, or `none`."""
    states = [_text(one / "state") for one in root.glob("sys/class/watchdog/watchdog*")]
    return "active" if "active" in states else "inactive" if states else "none"


def building(root: Path = Path("/")) -> str:
    """Return the TensorRT plans that the agent builds for this system, as it says; "" = none."""
    try:
        found = json.loads(files.read_if_there(root / "var/lib/edge-ota/status.json", _MOST_STATUS) or b"")
        return str(found["building"])[:_MOST_TEXT] if found["state"] == "building" else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def slot(root: Path = Path("/")) -> str:
    """Return the slot of the root that runs, `a` or `b`; "" = unknown."""
    for name in sorted(root.glob("sys/class/block/dm-*/dm/name")):
        if _text(name) == "root":
            numbers = [_text(one) for one in sorted(name.parents[1].glob("slaves/*/partition"))]
            return next((_SLOTS[one] for one in numbers if one in _SLOTS), "")
    return ""


def entries(root: Path = Path("/")) -> Iterator[dict[str, Any]]:
    """Yield the systems that the boot partition has: their version, state, and the starts that are left.

    The starts of a system that was found good are counted as well, so the record says which ones are good.
    """
    boot = SlotStore(root)
    record = boot.load()
    for entry in boot.entries():
        yield {"version": str(entry.version), "state": decide.state_of(entry, record), "left": entry.left}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
