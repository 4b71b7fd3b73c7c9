"""How the device stopped the last time: what is said after a shutdown, a power cut, a hang, and a panic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image.device import files
from image.device.data import last_stop
from image.device.files import FileStep

UNIT = Path(__file__).parents[2] / "image/mkosi/mkosi.extra/usr/lib/systemd/system/edge-last-stop.service"
CUT = "was not shut down: the power was cut"


class Device:
    """A device that is started and stopped."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "run/edge-device"
        self.write("usr/lib/os-release", 'IMAGE_VERSION="7"\n')
        (root / "var/lib/edge-device").mkdir(parents=True)

    def write(self, name: str | Path, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def start(self) -> str:
        """Start as a new boot. Return the fault; "" = none."""
        for path in self.run.glob("faults/*"):
            path.unlink()
        last_stop.look(self.root, self.run)
        path = self.run / "faults/unclean-restart.json"
        return str(json.loads(path.read_text())["text"]) if path.exists() else ""

    def shut_down(self) -> None:
        """Do what the unit does when it is stopped."""
        command = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStop="))
        assert command == f"ExecStop=/usr/bin/touch /{last_stop.STOPPED}"
        (self.root / last_stop.STOPPED).touch()


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that was started once."""
    made = Device(tmp_path)
    assert made.start() == "", "the first start has none before it"
    return made


def test_a_shutdown_is_no_fault(device: Device) -> None:
    device.shut_down()
    assert device.start() == ""
    device.shut_down()
    assert device.start() == ""


def test_a_power_cut_is_said_until_the_next_shutdown(device: Device) -> None:
    assert CUT in device.start()
    assert CUT in device.start()
    device.shut_down()
    assert device.start() == ""


def test_a_hang_is_distinguished_from_a_power_cut_if_the_hardware_reports_it(device: Device) -> None:
    device.write(last_stop.BOOT_STATUS, "32\n")
    assert device.start() == "System 7 hung, and the watchdog of the hardware restarted the device."
    device.shut_down()
    assert device.start() == "", "hardware may keep its mark"


def test_a_panic_is_named_once_with_the_system_and_its_messages(device: Device) -> None:
    device.write(last_stop.PANICS / "17638/001/dmesg.txt", "Kernel panic")
    device.write("usr/lib/os-release", 'IMAGE_VERSION="6"\n')

    assert device.start() == "System 7 ended with a kernel panic, and the device restarted."
    fault = json.loads((device.run / "faults/unclean-restart.json").read_text())
    assert "/var/lib/systemd/pstore/17638" in fault["help"]
    assert CUT in device.start(), "the panic on record is of the start before"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": "7"}', "\0" * 99])
def test_a_damaged_record_is_no_first_start(device: Device, text: str) -> None:
    device.write(last_stop.STARTED, text)
    assert CUT in device.start()


def test_a_usual_start_writes_nothing_but_the_mark(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[FileStep] = []
    device.shut_down()
    monkeypatch.setattr(files, "point", steps.append)

    assert device.start() == ""
    assert [step.kind for step in steps] == ["unlink", "fsync"]


def test_a_partition_that_cannot_be_written_stops_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: FileStep) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files, "point", refuse)
    device.shut_down()
    device.write("usr/lib/os-release", 'IMAGE_VERSION="8"\n')
    assert device.start() == ""
