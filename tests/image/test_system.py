"""The root side of system updates: requests, good and hostile, and their answers."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from image.device import cli, files, server, slot, system
from image.device.files import FileStep
from image.device.install import Installer, UpdateRefused
from image.device.slots import Failure, Slots
from image.device.system import Requests
from tests.image.machine import Machine, read_json


class Recorded(Installer):
    """Installs nothing, and records the versions."""

    def __init__(self, error: Exception | None = None) -> None:
        self.versions: list[int] = []
        self._error = error

    def install(self, version: int) -> None:
        self.versions.append(version)
        if self._error is not None:
            raise self._error


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, ["edge_1+5.efi", "edge_2+5.efi"], 2, Slots((1, 2), {4: "x"}, None, 1))


def ask(machine: Machine, request: Any, installer: Installer | None = None) -> tuple[dict[str, Any], bool]:
    """Return the answer, and whether the machine restarts."""
    answer, then = Requests(machine.boot, lambda: None, installer or Recorded()).carry_out(request)
    return answer, then is not None


def test_an_installed_version_is_restarted_into(machine: Machine) -> None:
    installer = Recorded()

    assert ask(machine, {"op": "install", "version": 3}, installer) == (
        {"ok": True, "version": 3, "restarting": True},
        True,
    )
    assert installer.versions == [3]


def test_a_version_that_waits_for_its_restart_is_not_written_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["edge_2+5.efi", "edge_3+3-0.efi"], 2, Slots((2,), pending=3))
    installer = Recorded()

    assert ask(machine, {"op": "install", "version": 3}, installer)[1]
    assert installer.versions == []
    ask(machine, {"op": "install", "version": 4}, installer)
    assert installer.versions == [4]


@pytest.mark.parametrize(
    ("entries", "slots", "names", "after"),
    [
        (["edge_2+5.efi", "edge_3+3-0.efi"], Slots((1, 2), {}, 3, 1), ["edge_2+5.efi"], Slots((2,))),
        (
            ["edge_1+5.efi", "edge_2+5.efi"],
            Slots((1, 2), {}, 3, 1),
            ["edge_1+5.efi", "edge_2+5.efi"],
            Slots((1, 2), {}, None, 1),
        ),
    ],
    ids=["installed", "cut off before a slot was touched"],
)
def test_a_version_that_waits_for_its_restart_is_taken_back(
    tmp_path: Path, entries: list[str], slots: Slots, names: list[str], after: Slots
) -> None:
    machine = Machine(tmp_path, entries, 2, slots)

    assert ask(machine, {"op": "cancel"}) == ({"ok": True, "version": 2}, False)

    assert (machine.names(), machine.boot.load(), machine.start()) == (names, after, 2)
    assert ask(machine, {"op": "cancel"}) == ({"ok": False, "error": "no version waits for its restart"}, False)


def test_a_version_that_is_tried_or_starts_next_is_not_taken_back(tmp_path: Path) -> None:
    tried = Machine(tmp_path / "tried", ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))
    assert ask(tried, {"op": "cancel"})[0]["error"] == "no version waits for its restart"
    left = Machine(tmp_path / "left", ["edge_2+5.efi", "edge_3+3-0.efi"], 2, Slots((2,), pending=3))
    left.boot.condemn(Failure(2, "disk", "damaged at byte 7"))
    assert "restarts into another system" in ask(left, {"op": "cancel"})[0]["error"]

    assert tried.names() == ["edge_1+5.efi", "edge_2+2-1.efi"]
    assert left.start() == 3


@pytest.mark.parametrize("error", [UpdateRefused("no space"), OSError(5, "Input/output error", "/boot")])
def test_a_refused_version_restarts_nothing(machine: Machine, error: Exception) -> None:
    answer, restarts = ask(machine, {"op": "install", "version": 3}, Recorded(error))

    assert not restarts
    assert not answer["ok"]
    assert "no space" in answer["error"] or "/boot: Input/output error; see 'journalctl" in answer["error"]


@pytest.mark.parametrize(
    "request_", [{}, {"op": "shell"}, {"op": ["install"]}, {"op": "install"}, {"op": "install", "version": "3"},
                 {"op": "install", "version": True}, {"op": "install", "version": -1},
                 {"op": "install", "version": 10**12}, {"op": "install", "version": "../../etc"}]
)  # fmt: skip
def test_a_hostile_request_is_refused(machine: Machine, request_: dict[str, Any]) -> None:
    installer = Recorded()
    answer, restarts = ask(machine, request_, installer)

    assert answer["ok"] is False
    assert answer["error"]
    assert (restarts, installer.versions) == (False, [])


def test_two_updates_do_not_run_at_once(machine: Machine) -> None:
    with machine.boot.lock():
        answer, _ = ask(machine, {"op": "install", "version": 3})

    assert "another system update is being installed" in answer["error"]


def test_a_factory_reset_waits_for_the_end_of_an_installation(machine: Machine) -> None:
    with machine.boot.lock():
        answer, restarts = ask(machine, {"op": "factory-reset", "name": system.device_name(machine.root)})

    assert "another system update is being installed" in answer["error"]
    assert not restarts
    assert not (machine.boot.esp / "factory-reset").exists()


def test_a_system_that_is_left_takes_nothing_but_a_rollback(machine: Machine) -> None:
    assert ask(machine, {"op": "rollback"})[1]
    installer = Recorded()
    for request in ({"op": "install", "version": 3}, {"op": "factory-reset", "name": system.device_name(machine.root)}):
        answer, restarts = ask(machine, request, installer)
        assert answer["error"] == "the device restarts into another system: try again after that"
        assert not restarts

    assert installer.versions == []
    assert not (machine.boot.esp / "factory-reset").exists()
    assert ask(machine, {"op": "rollback"})[1], "the restart may have failed"
    assert machine.start() == 1


def test_a_rollback_condemns_the_running_version(machine: Machine) -> None:
    assert ask(machine, {"op": "rollback"}) == ({"ok": True, "version": 1, "restarting": True}, True)

    assert machine.start() == 1
    assert machine.boot.read_failure() == Failure(2, "operator", "an operator went back to system 1")


def test_a_confirmation_after_a_rollback_changes_nothing(machine: Machine) -> None:
    assert ask(machine, {"op": "rollback"})[1]
    slot.confirm(machine.boot)

    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    assert machine.start() == 1
    slot.confirm(machine.boot)
    assert machine.names() == ["edge_1+5.efi"]


@pytest.mark.parametrize("other", ["edge_1+0-3.efi", "edge_1+2-1.efi", None])
def test_a_rollback_needs_another_good_system(tmp_path: Path, other: str | None) -> None:
    machine = Machine(tmp_path, ["edge_2+5.efi", *([other] if other else [])], 2, Slots((2,)))
    answer, restarts = ask(machine, {"op": "rollback"})

    assert "system 2 is the only good one" in answer["error"]
    assert not restarts
    assert machine.boot.read_failure() is None


def test_a_reason_that_cannot_be_stored_is_no_part_of_the_answer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(step: FileStep) -> None:
        if step.kind == "write" and step.path.startswith(str(machine.boot.state)):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "point", refuse)

    assert ask(machine, {"op": "rollback"})[1]
    found = capsys.readouterr()
    assert found.out == ""
    assert "the reason cannot be stored: No space left on device" in found.err


def test_the_machine_restarts_although_the_agent_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    there.sendall(b'{"op": "rollback"}\n')
    there.close()
    restarts: list[str] = []
    monkeypatch.setattr(system, "SlotStore", lambda: machine.boot)
    monkeypatch.setattr(system, "restart", lambda: restarts.append("now"))
    with here, here.makefile() as file:
        monkeypatch.setattr(sys, "stdin", file)
        monkeypatch.setattr(sys, "stdout", file)
        assert system.main() == 0

    assert restarts == ["now"]


def test_a_factory_reset_needs_the_name_of_the_device(machine: Machine) -> None:
    (machine.root / "run/edge-device").mkdir(parents=True)
    (machine.root / "run/edge-device/status.json").write_text('{"name": "cart-7"}')

    answer, restarts = ask(machine, {"op": "factory-reset", "name": "cart-8"})
    assert answer["error"] == "the name is 'cart-8', and this device is 'cart-7': nothing was erased"
    assert not restarts
    assert not (machine.boot.esp / "factory-reset").exists()

    assert ask(machine, {"op": "factory-reset", "name": "cart-7"}) == (
        {"ok": True, "name": "cart-7", "restarting": True},
        True,
    )
    assert (machine.boot.esp / "factory-reset").read_text() == "cart-7\n"


def test_a_full_boot_partition_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: FileStep) -> None:
        if step.kind == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    (machine.root / "run/edge-device").mkdir(parents=True)
    (machine.root / "run/edge-device/status.json").write_text('{"name": "cart-7"}')
    monkeypatch.setattr(files, "point", refuse)

    answer, restarts = ask(machine, {"op": "factory-reset", "name": "cart-7"})

    assert answer["error"].startswith(f"{machine.boot.esp}/.factory-reset.new: No space left on device")
    assert not restarts


def test_a_system_that_is_no_image_answers_with_the_reason(machine: Machine) -> None:
    (machine.root / "etc/os-release").write_text("ID=debian\n")

    assert "this is not the device image" in ask(machine, {"op": "rollback"})[0]["error"]


@pytest.mark.parametrize(
    ("sent", "found"),
    [(b'{"op": "rollback"}\n', {"op": "rollback"}), (b"", {}), (b"[1]\n", {}), (b"{" * 9999, {}), (b"\xff\n", {})],
)
def test_a_request_is_one_line_of_json(sent: bytes, found: dict[str, Any]) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)

    assert system.read_request(reading) == found
    os.close(reading)


def test_a_client_that_says_nothing_keeps_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "REQUEST_SECONDS", 0.01)
    reading, writing = os.pipe()

    assert system.read_request(reading) == {}
    os.close(reading)
    os.close(writing)


def test_a_server_that_does_not_answer_has_no_status(tmp_path: Path) -> None:
    assert server.ask(str(tmp_path / "missing.sock")) is None


def test_each_command_names_a_module_with_a_main() -> None:
    for name in ("health", "slot", "scrub", "system"):
        __import__(f"image.device.{cli.COMMANDS[name]}")
        assert callable(sys.modules[f"image.device.{cli.COMMANDS[name]}"].main)


def test_the_copy_of_the_record_is_readable_by_a_laptop(machine: Machine) -> None:
    assert read_json(machine.boot.esp / "edge-slots.json") == json.loads(machine.boot.record.read_text())
