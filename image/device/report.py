"""Faults of the device, and the status file that joins them with its facts.

A fault is a file `/run/edge-device/faults/<code>.json`. Each part of the device reports its own, the initrd too. The
console, `/ui`, `edge-serve status`, and `edge-ota system status` read `/run/edge-device/status.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imports take long under emulation, and most programs report faults alone
    from image.device.slots import Slots, SlotStore

RUN = Path("/run/edge-device")
SCHEMA = 1
#: help of faults that end when the boot partition can be written
CHECK_BOOT_PARTITION = "Check it on another computer; no system update is possible without it."
_MOST_BYTES = 64 * 1024
_MOST_TEXT = 1000
_MOST_FAULTS = 32

Document = dict[str, Any]


def report(code: str, text: str, help: str = "", *, run: Path = RUN, clock: Callable[[], float] = time.time) -> None:
    """Report a fault until `clear(code)`. A fault that was reported before keeps its time.

    Args:
        code: its stable name, lower-case letters, digits, and `-`.
        help: what to do.
    """
    before = _read(run / "faults" / f"{code}.json") or {}
    since = before.get("since") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock()))
    fault = {"code": code, "text": text, "since": since, "help": help}
    if fault != before:
        _write(run / "faults" / f"{code}.json", fault)
        print(f"<4>{text}", flush=True)


def clear(code: str, *, run: Path = RUN) -> None:
    """Remove a fault that is over."""
    with contextlib.suppress(FileNotFoundError):
        (run / "faults" / f"{code}.json").unlink()


@contextlib.contextmanager
def boot_partition() -> Iterator[None]:
    """Report an error of the boot partition instead of raising it. A device whose slots cannot change still serves."""
    try:
        yield
    except OSError as error:
        report(
            "boot-partition",
            f"The boot partition cannot be written: {error.strerror or error}.",
            CHECK_BOOT_PARTITION,
        )


@contextlib.contextmanager
def data_partition() -> Iterator[None]:
    """Report an error of the data partition instead of raising it. A verdict takes effect without its record, too."""
    try:
        yield
    except OSError as error:
        report(
            "data-record",
            f"The data partition cannot be written: {error.strerror or error}."
            " It lacks the last verdict about a system.",
            "Remove models, or files in /var, and restart the device.",
        )


def record(boot: SlotStore, slots: Slots) -> None:
    """Write the record of systems and its copy. Report the partition that cannot be written; the other one is."""
    with data_partition():
        boot.save_record(slots)
    with boot_partition():
        boot.save_copy(slots)


def faults(run: Path = RUN) -> list[Document]:
    """Return the faults, the oldest first. A file that is no fault counts as one."""
    found = []
    for path in sorted((run / "faults").glob("*.json"))[:_MOST_FAULTS]:
        one = _read(path) or {"text": f"{path} cannot be read"}
        texts = {name: str(one.get(name) or "")[:_MOST_TEXT] for name in ("text", "since", "help")}
        found.append({"code": path.stem, **texts})
    return sorted(found, key=lambda one: (one["since"], one["code"]))


def update_status(run: Path = RUN, root: Path = Path("/"), addresses: list[str] | None = None) -> Document:
    """Write the status file if it differs. Return its content.

    Args:
        addresses: of the device; None = asks for them.
    """
    from image.device import facts  # only the console needs them

    document = {"schema": SCHEMA, **facts.read_facts(root, addresses), "faults": faults(run)}
    if _read(run / "status.json") != document:
        _write(run / "status.json", document)
    return document


def _read(path: Path) -> Document | None:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, document: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(document) + "\n")
    fresh.chmod(0o644)
    fresh.rename(path)
