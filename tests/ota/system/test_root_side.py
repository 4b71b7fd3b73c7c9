"""The agent and the real root side of the image, `image/device`: systemd-sysupdate and the restart are imitated."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from image.device import health, report, slot
from image.device.install import VERIFY, Installer, UpdateRefused
from image.device.slots import Failure, Slots, SlotStore
from image.device.system import Requests
from ota.cli import main
from tests.image.machine import status
from tests.ota.publish.publisher import Publisher, one_sentence
from tests.ota.system.root_side import root_side
from tests.ota.system.test_commands import Fleet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the root side gives files to root")


class Device:
    """A device that runs version 1, whose root side writes into a dictionary."""

    def __init__(self, publisher: Publisher) -> None:
        self.fleet = Fleet(publisher)
        self.root = self.fleet.image.root
        self.fleet.settings["state-dir"] = self.root / "var/lib/edge-ota"
        self.boot = SlotStore(self.root)
        self.boot.entries_directory.mkdir(parents=True)
        (self.boot.entries_directory / "edge_1+5.efi").write_text("kernel")
        self.written: dict[str, bytes] = {}
        self.restarts = 0

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Serve a request as edge-system@.service does."""
        requests = Requests(self.boot, self.restart, Installer(self.boot, lambda: status({}), self.run_program))
        answer, then = requests.carry_out(request)
        if then is not None:
            then()
        return answer

    def restart(self) -> None:
        self.restarts += 1

    def run_program(self, command: Sequence[str], seconds: float) -> str:
        """Run `edge-ota verify-system`; do the work of systemd-sysupdate."""
        if command[0] == VERIFY:
            flags = [f"--{name}={value}" for name, value in self.fleet.settings.items()]
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main([command[1], *flags, *command[2:]])
            if status:
                raise UpdateRefused(f"edge-ota verify-system: {err.getvalue().strip()}")
            return out.getvalue()
        if command[-2] == "update":
            stage = Path(command[1].partition("=")[2])
            self.written = {one.suffix: one.read_bytes() for one in stage.iterdir()}
            (self.boot.entries_directory / f"edge_{command[-1]}+3.efi").write_bytes(self.written[".efi"])
        return ""

    def boots(self, version: int) -> None:
        """Run a version."""
        self.fleet.image.write("etc/os-release", f'IMAGE_ID="edge"\nIMAGE_VERSION="{version}"\n')

    def apply(self, status: int = 0) -> str:
        with root_side(self.root, self.answer):
            return self.fleet.run("system", "apply", status=status)


@pytest.fixture
def device(publisher: Publisher) -> Device:
    """A device whose fleet wants version 2."""
    found = Device(publisher)
    found.fleet.publish(2)
    return found


def test_an_update_is_written_tried_and_confirmed(device: Device) -> None:
    assert "2 is installed, and the device restarts into it" in device.apply()
    assert device.written[".root"] == (device.fleet.base / "dist/edge_2.root").read_bytes()
    assert device.restarts == 1
    assert "next: 2 is READY: waits for its restart" in device.fleet.run("system", "status")
    device.boots(2)
    assert "system 2 is being tried" in device.apply()
    assert "being tried" in device.fleet.run("system", "status")
    slot.confirm(device.boot)
    assert device.apply() == "system: release 2 serves\n"
    assert "good        system 2" in device.fleet.run("history")
    assert device.restarts == 1


def test_a_halted_version_that_waits_for_its_restart_is_taken_back_until_the_rollout_goes_on(device: Device) -> None:
    device.apply()
    device.fleet.publisher.do("rollout halt", "plant", "system")
    assert device.apply() == "system: release 1 serves\n"
    assert [one.name for one in device.boot.entries()] == ["edge_1+5.efi"]
    assert "withdrawn   system 2" in device.fleet.run("history")
    device.fleet.publisher.do("rollout resume", "plant", "system")
    assert "2 is installed, and the device restarts into it" in device.apply()
    assert device.restarts == 2


def test_a_version_that_failed_is_not_installed_again(device: Device) -> None:
    device.apply()
    reason = "the server did not answer within 300 s"
    device.boot.save(device.boot.load().with_bad(2, reason))
    assert f"system 2 failed on this device ({reason})" in device.apply()
    device.fleet.publish(3)
    assert "3 is installed" in device.apply()
    assert device.restarts == 2


def test_rollback_by_the_operator_selects_the_other_system(device: Device) -> None:
    device.apply()
    device.boots(2)
    slot.confirm(device.boot)
    with root_side(device.root, device.answer):
        assert "restarts into 1" in device.fleet.run("system", "rollback")
    assert device.boot.read_failure() == Failure(2, "operator", "an operator went back to system 1")
    device.boots(1)
    with root_side(device.root, device.answer):
        device.fleet.run("system", "rollback", status=8)
    assert "this device has none to go back to" in one_sentence(device.fleet.err)


def test_a_bad_system_without_another_one_is_updated(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The good one died after the new one was installed; no boot makes the new one good."""
    for name in ("report", "clear"):
        monkeypatch.setattr(report, name, lambda *arguments, **options: None)
    device.boot.remove_entries(device.boot.entries())
    for name in ("edge_1+0-5.efi", "edge_2+2-1.efi"):
        (device.boot.entries_directory / name).write_text("kernel")
    device.boot.save(Slots((1,), pending=2))
    device.boots(2)
    device.fleet.publish(3)
    for _ in range(2):
        health.note(device.boot)
        assert not health.fall_back(device.boot, 2, "health", "no answer", device.restart)
        assert "not confirmed yet" in device.fleet.run("system", "status")
    assert "3 is installed, and the device restarts into it" in device.apply()
    assert device.restarts == 1


@pytest.mark.parametrize("change", ["root", "document", "metadata"])
def test_files_changed_by_a_compromised_agent_are_refused_before_a_slot_is_written(device: Device, change: str) -> None:
    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        state = device.root / "var/lib/edge-ota"
        path = {
            "root": state / "system/2/edge_2.root",
            "document": state / "system/2/edge_2.json",
            "metadata": state / "metadata/system.json",
        }[change]
        data = path.read_bytes()
        path.write_bytes(data.replace(data[100:110], b"0000000000"))
        return device.answer(request)

    with root_side(device.root, answer):
        device.fleet.run("system", "apply", status=4 if change == "root" else 8)
    assert device.fleet.err.splitlines()[-1].startswith("edge-ota: system: ")
    assert (device.written, device.restarts) == ({}, 0)
    assert "2 is installed" in device.apply()
