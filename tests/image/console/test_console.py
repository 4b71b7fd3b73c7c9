"""The console: its text, its terminals, and what wakes it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from image.device import report
from image.device.console.changes import Changes
from image.device.console.screen import screen
from image.device.console.service import SCREENS, run
from image.device.console.terminals import Screens
from image.device.facts import entries
from image.device.slots import Slots

STATUS: dict[str, Any] = {
    "name": "edge-1",
    "addresses": ["10.0.0.2", "fd00::2"],
    "fingerprint": "ab" * 32,
    "version": "12",
    "slot": "a",
    "entries": [{"version": "12", "state": "good", "left": None}],
    "provisioned": True,
    "tls": False,
    "faults": [],
}


def test_the_screen_shows_name_addresses_page_key_and_system() -> None:
    assert [line.rstrip() for line in screen(STATUS)] == [
        "",
        "edge-serve",
        "",
        "  Name     edge-1 (edge-1.local)",
        "  Address  10.0.0.2, fd00::2",
        "  Page     http://10.0.0.2:8000/ui  http://edge-1.local:8000/ui",
        "  Key      " + "ab" * 32,
        "  System   version 12, slot a",
        "",
    ]


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("active", None),
        ("inactive", "  Watchdog not in use: a system that hangs stays so until its power is cut"),
        (None, "  Watchdog none: a system that hangs stays so until its power is cut"),
    ],
)
def test_hardware_without_a_watchdog_is_a_line_and_no_fault(
    tmp_path: Path, state: str | None, line: str | None
) -> None:
    if state is not None:
        (tmp_path / "sys/class/watchdog/watchdog0").mkdir(parents=True)
        (tmp_path / "sys/class/watchdog/watchdog0/state").write_text(f"{state}\n")
    found = report.update_status(tmp_path / "run", tmp_path, [])

    assert found["faults"] == []
    assert [one for one in screen(found) if "Watchdog" in one] == ([] if line is None else [line])


def test_the_screen_shows_the_plans_that_are_built_for_a_new_system(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/edge-ota/status.json"
    path.parent.mkdir(parents=True)
    text = "TensorRT plans of det 17 are built for system 2"
    for document, line in (
        ({"state": "building", "building": text}, [f"  Models   {text}"]),
        ({"state": "idle", "building": text}, []),
        ({"state": "building"}, []),
        (["building"], []),
    ):
        path.write_text(json.dumps(document))
        found = report.update_status(tmp_path / "run", tmp_path, [])
        assert [one for one in screen(found) if "Models" in one] == line


def test_the_screen_shows_faults_other_systems_and_what_is_missing() -> None:
    entries = [{"version": "12", "state": "trying", "left": 2}, {"version": "13", "state": "bad", "left": 0}]
    fault = {"code": "x", "text": "It is\x1b broken " * 12, "help": "Repair it.", "since": ""}
    missing = {"addresses": [], "fingerprint": "", "provisioned": False, "tls": True}
    text = "\n".join(screen(STATUS | missing | {"entries": entries, "faults": [fault]}))
    for part in (
        "none yet: is the network cable connected?",
        "Page     https://edge-1.local:8000/ui",
        "Key      none yet",
        "version 12, slot a; this one is trying, 2 starts left; version",
        "No settings yet: write edge-serve.toml",
        "What is wrong:\n  * It is  broken",
        "    Repair it.",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 78
    assert "\x1b" not in text


def test_the_console_draws_on_every_terminal_that_its_unit_may_write() -> None:
    unit = Path(report.__file__).parents[1] / "mkosi/mkosi.extra/usr/lib/systemd/system/edge-console.service"
    allowed = re.findall(r"^DeviceAllow=(\S+) rw$", unit.read_text(), re.MULTILINE)
    assert allowed == list(SCREENS)


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    main, other = pty.openpty()
    yield main, os.ttyname(other)
    os.close(main)
    os.close(other)


def test_the_terminal_is_drawn_and_typed_characters_are_not_shown(terminal: tuple[int, str]) -> None:
    main, path = terminal
    screens = Screens(["/dev/does-not-exist", path])
    os.write(main, b"rm -rf\x03\n")
    screens.draw(["one", "tw\u00f6"])
    assert os.read(main, 1000).replace(b"\r", b"") == b"\x1b[2J\x1b[3J\x1b[Hone\ntw?\n"
    screens.close()


def test_a_terminal_that_takes_nothing_does_not_block_the_console(terminal: tuple[int, str]) -> None:
    main, path = terminal
    screens = Screens([path], seconds=0.01)
    os.write(main, b"\x13")  # Control-S, which pauses other terminals
    screens.draw(["x" * 100_000])
    assert os.read(main, 100).endswith(b"xxx")
    screens.draw(["x" * 100_000])
    assert select.select([main], [], [], 0)[0]
    screens.close()


class Stopped(Exception):
    """Ends the loop of the console."""


def test_faults_and_entries_wake_the_console_and_equal_screens_are_not_drawn_again(
    tmp_path: Path, terminal: tuple[int, str]
) -> None:
    faults, entries = tmp_path / "run/edge-device", tmp_path / "boot/EFI/Linux"
    answered = tmp_path / "run/systemd/timesync"
    for folder in (faults / "faults", entries, answered):
        folder.mkdir(parents=True)
    changes, screens = Changes(tmp_path), Screens([terminal[1]])
    steps = iter(
        [
            lambda: report.report("broken", "It is broken.", run=faults),
            lambda: (entries / "edge_9+0-3.efi").write_text("kernel"),
            lambda: (answered / "synchronized").touch(),
            lambda: report.clear("broken", run=faults),
        ]
    )
    seen: list[str] = []

    def update() -> dict[str, Any]:
        found = report.update_status(faults, tmp_path, [])
        seen.append(", ".join([*(one["text"] for one in found["faults"]), *(e["version"] for e in found["entries"])]))
        step = next(steps, None)
        if step is None:
            raise Stopped
        threading.Timer(0.02, step).start()
        return found

    drawn: list[list[str]] = []
    screens.draw = lambda lines: drawn.append(list(lines))  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run(screens, changes, update)
    assert seen == ["", "It is broken.", "It is broken., 9", "It is broken., 9", "9"]
    assert len(drawn) == 3
    changes.close()
    screens.close()


def test_the_status_file_is_written_only_if_it_differs(tmp_path: Path) -> None:
    report.update_status(tmp_path, tmp_path, [])
    before = (tmp_path / "status.json").stat().st_ino
    report.update_status(tmp_path, tmp_path, [])
    assert (tmp_path / "status.json").stat().st_ino == before
    report.update_status(tmp_path, tmp_path, ["10.0.0.2"])
    assert (tmp_path / "status.json").stat().st_ino != before


def test_a_fault_keeps_its_time_and_a_damaged_one_is_shown(tmp_path: Path) -> None:
    report.report("a", "first", run=tmp_path, clock=lambda: 0.0)
    report.report("a", "second", run=tmp_path, clock=lambda: 1e9)
    (tmp_path / "faults/b.json").write_text("{")
    found = {one["code"]: one for one in report.faults(tmp_path)}
    assert found["a"] == {"code": "a", "text": "second", "help": "", "since": "1970-01-01T00:00:00Z"}
    assert found["b"]["text"] == f"{tmp_path}/faults/b.json cannot be read"


def test_a_system_that_was_found_good_is_good_although_its_starts_are_counted(tmp_path: Path) -> None:
    (tmp_path / "boot/EFI/Linux").mkdir(parents=True)
    (tmp_path / "var/lib/edge-system").mkdir(parents=True)
    for name in ("edge_5+4-1.efi", "edge_6+3.efi", "edge_7+2.efi"):
        (tmp_path / "boot/EFI/Linux" / name).write_text("kernel")
    (tmp_path / "var/lib/edge-system/slots.json").write_text(Slots((5,), {7: "panic"}).text())
    found = {one["version"]: one["state"] for one in entries(tmp_path)}
    assert found == {"5": "good", "6": "trying", "7": "bad"}
