"""The text of the console: a status document in, lines out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = 78
#: state of the hardware's watchdog -> what it means for the owner
_WATCHDOG = {
    "none": "none: a system that hangs stays so until its power is cut",
    "inactive": "not in use: a system that hangs stays so until its power is cut",
}


def screen(status: Mapping[str, Any]) -> list[str]:
    """Return the lines for a status document."""
    name, addresses = status["name"], status["addresses"]
    system = f"version {status['version'] or '?'}, slot {status['slot'] or '?'}"
    rows = [
        ("Name", f"{name} ({name}.local)"),
        ("Address", ", ".join(addresses) or "none yet: is the network cable connected?"),
        ("Page", "  ".join(pages(status))),
        ("Key", status["fingerprint"] or "none yet"),
        ("System", "; ".join([system, *_others(status)])),
    ]
    if (watchdog := _WATCHDOG.get(status.get("watchdog", ""))) is not None:
        rows.append(("Watchdog", watchdog))
    if status.get("building"):
        rows.append(("Models", status["building"]))
    lines = ["", "edge-serve", ""]
    for title, text in rows:
        lines += _wrapped(f"  {title:<9}", text)
    if not status["provisioned"]:
        lines += ["", *_wrapped("  ", "No settings yet: write edge-serve.toml to the boot partition, and restart.")]
    if status["faults"]:
        lines += ["", "  What is wrong:"]
    for fault in status["faults"]:
        lines += _wrapped("  * ", fault["text"])
        lines += _wrapped("    ", fault["help"]) if fault["help"] else []
    return [*lines, ""]


def pages(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of `/ui`."""
    scheme = "https" if status.get("tls") else "http"
    for host in [*status["addresses"][:1], f"{status['name']}.local"]:
        yield f"{scheme}://{f'[{host}]' if ':' in host else host}:8000/ui"


def _others(status: Mapping[str, Any]) -> Iterator[str]:
    for one in status["entries"]:
        if one["version"] != status["version"]:
            yield f"version {one['version']} is {one['state']}"
        elif one["state"] != "good":
            left = f", {one['left']} starts left" if one["state"] == "trying" else ""
            yield f"this one is {one['state']}{left}"


def _wrapped(first: str, text: str) -> list[str]:
    text = "".join(one if one.isprintable() else " " for one in text)
    return textwrap.wrap(text, _COLUMNS, initial_indent=first, subsequent_indent=" " * len(first)) or [first.rstrip()]
