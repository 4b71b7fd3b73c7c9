"""The installation of an update: what is proven, and what a power cut between any two steps leaves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from image.device import decide, files, health, install, report
from image.device.install import Installer, UpdateRefused
from image.device.slots import Slots
from tests.image.machine import Machine, read_json, status

ROOT_HASH = "d158b042dee202111af9e6a03a13d4ab344417509eaa4f5529ec7453e2348630"


class PowerCut(Exception):
    """The power is cut before a step."""


class Disk(Machine):
    """A device with two slots: `slots` has what their partitions contain. It stands in for the two programs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ["edge_1+5.efi", "edge_2+4-1.efi"], 2, Slots((1, 2), previous=1))
        self.slots = {"a": "1", "b": "2"}
        self.calls: list[str] = []
        self.point: Callable[[], None] = lambda: None
        self.document: dict[str, Any] = {}

    def offer(self, version: int) -> Path:
        """Write the files of an update as the agent does, and their document."""
        folder = self.root / f"var/lib/edge-ota/system/{version}"
        folder.mkdir(parents=True)
        found = {}
        for kind, ending in install.ENDINGS.items():
            data = f"{kind} of {version}".encode()
            path = folder / f"edge_{version}.{ending}"
            path.write_bytes(data)
            found[kind] = {"path": path.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        self.document = {"version": version, "root_hash": ROOT_HASH, "files": found}
        return folder

    def run_program(self, command: Sequence[str], seconds: float) -> str:
        """Do the work of `edge-ota verify-system` and of systemd-sysupdate."""
        if command[0] == install.VERIFY:
            self.calls.append("verify")
            return json.dumps(self.document)
        stage = Path(command[1].partition("=")[2])
        free = next(name for name, content in self.slots.items() if content != str(self.boot.running()))
        self.calls.append(command[-1] if command[-1] == "vacuum" else f"update {command[-1]}")
        self.point()
        if command[-1] == "vacuum":
            self.slots[free] = "empty"
            return ""
        assert sorted(path.name for path in stage.iterdir()) == sorted(
            [f"edge_{command[-1]}_{half}.{kind}" for half, kind in zip(UUIDS, ("root", "verity"), strict=True)]
            + [f"edge_{command[-1]}.efi"]
        )
        self.slots[free] = "half of the root"
        self.point()
        self.slots[free] = command[-1]
        self.point()
        (self.boot.entries_directory / f"edge_{command[-1]}+3-0.efi").write_bytes(
            (stage / f"edge_{command[-1]}.efi").read_bytes()
        )
        self.point()
        return ""

    def bootable(self) -> bool:
        """Return whether systemd-boot would start a version that a slot has whole."""
        entries = [one for one in self.boot.entries() if one.usable]
        return bool(entries) and str(max(one.version for one in entries)) in self.slots.values()


UUIDS = ("d158b042-dee2-0211-1af9-e6a03a13d4ab", "34441750-9eaa-4f55-29ec-7453e2348630")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def installer(disk: Disk) -> Installer:
    return Installer(disk.boot, lambda: status({"simple": "ready", "old": "failed"}), disk.run_program)


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given to root")
class TestInstall:
    def test_an_update_is_written_and_the_next_boot_tries_it(self, disk: Disk) -> None:
        disk.offer(3)

        installer(disk).install(3)

        assert disk.calls == ["verify", "vacuum", "update 3"]
        assert disk.names() == ["edge_2+4-1.efi", "edge_3+3-0.efi"]
        assert disk.boot.load() == Slots((1, 2), {}, 3, 1)
        assert read_json(disk.boot.state / "baseline.json")["models"] == ["simple"]
        assert not (disk.boot.state / "stage").exists()
        assert disk.start() == 3

    @pytest.mark.parametrize(
        ("answers", "live", "models", "asked"),
        [
            ([None, None, status({"a": "ready"})], True, ["a"], 3),
            ([status({"a": "loading"}), status({"a": "restarting"}), status({"a": "ready"})], True, ["a"], 3),
            ([status({}, "starting"), status({"a": "ready"})], True, ["a"], 2),
            ([status({"a": "loading", "b": "ready"})] * 99, True, ["b"], 91),
            ([None] * 99, False, [], 91),
        ],
    )
    def test_the_baseline_waits_for_a_server_that_is_about_to_be_ready(
        self, disk: Disk, answers: list[dict[str, Any] | None], live: bool, models: list[str], asked: int
    ) -> None:
        disk.offer(3)
        slept: list[float] = []
        given = iter(answers)

        Installer(disk.boot, lambda: next(given), disk.run_program, lambda: sum(slept), slept.append).install(3)

        baseline = read_json(disk.boot.state / "baseline.json")
        assert (baseline["live"], baseline["models"], len(slept) + 1) == (live, models, asked)

    @pytest.mark.parametrize("lasting", [True, False])
    def test_the_record_says_whether_the_old_system_had_lasting_data(self, disk: Disk, lasting: bool) -> None:
        disk.place_data(lasting, "" if lasting else "data-damaged")
        disk.offer(3)

        installer(disk).install(3)

        assert disk.boot.load() == Slots((1, 2), {}, 3, 1, data_lasted=lasting)

    def test_a_version_that_is_written_again_is_tried_again(self, tmp_path: Path) -> None:
        disk = Disk(tmp_path / "device")
        disk.boot.set_tries(2, 0)
        disk.slots["b"] = "2"
        disk.run(1)
        disk.offer(2)

        Installer(disk.boot, lambda: status({}), disk.run_program).install(2)

        assert disk.boot.load().confirmed == (1,)

    def test_a_file_that_the_agent_changed_is_refused_before_a_slot_is_touched(self, disk: Disk) -> None:
        (disk.offer(3) / "edge_3.verity").write_bytes(b"verity of 4")

        with pytest.raises(UpdateRefused, match=r"edge_3_.*verity is not the signed file: 11 bytes with"):
            installer(disk).install(3)
        assert disk.slots == {"a": "1", "b": "2"}
        assert disk.names() == ["edge_1+5.efi", "edge_2+4-1.efi"]

    @pytest.mark.parametrize("change", ["shorter", "longer"])
    def test_a_truncated_or_longer_file_is_refused(self, disk: Disk, change: str) -> None:
        path = disk.offer(3) / "edge_3.root"
        path.write_bytes(path.read_bytes()[:-1] if change == "shorter" else path.read_bytes() + b"x" * 10**7)

        with pytest.raises(UpdateRefused, match="is not the signed file"):
            installer(disk).install(3)
        assert "vacuum" not in disk.calls

    def test_a_file_that_can_still_be_written_is_refused(self, disk: Disk) -> None:
        with (disk.offer(3) / "edge_3.efi").open("r+b"), pytest.raises(UpdateRefused, match="still open for writing"):
            installer(disk).install(3)
        assert "vacuum" not in disk.calls

    @pytest.mark.parametrize("kind", ["link", "directory", "missing"])
    def test_another_thing_than_a_file_is_refused(self, disk: Disk, kind: str, tmp_path: Path) -> None:
        path = disk.offer(3) / "edge_3.efi"
        data = path.read_bytes()
        path.unlink()
        if kind == "link":
            (tmp_path / "elsewhere").write_bytes(data)
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "directory":
            path.mkdir()

        with pytest.raises(UpdateRefused, match=r"edge_3\.efi cannot be read"):
            installer(disk).install(3)
        assert "vacuum" not in disk.calls

    @pytest.mark.parametrize("document", ["", "[]", "{}", '{"version": 4}', '{"version": 3, "files": {}}'])
    def test_a_verification_without_a_document_is_refused(self, disk: Disk, document: str) -> None:
        disk.offer(3)
        one = Installer(disk.boot, lambda: None, lambda command, seconds: document)

        with pytest.raises(UpdateRefused, match="edge-ota"):
            one.install(3)

    def test_an_update_that_was_not_signed_is_refused_with_the_reason(self, disk: Disk) -> None:
        def refuse(command: Sequence[str], seconds: float) -> str:
            return install.run(["/bin/sh", "-c", "echo the signature is wrong >&2; exit 7"], 10)

        with pytest.raises(UpdateRefused, match="the signature is wrong"):
            Installer(disk.boot, lambda: None, refuse).install(3)
        assert disk.names() == ["edge_1+5.efi", "edge_2+4-1.efi"]

    def test_a_full_boot_partition_is_named_before_a_slot_is_touched(self, disk: Disk) -> None:
        disk.offer(3)
        disk.document["files"]["uki"]["bytes"] = 10**18

        with pytest.raises(UpdateRefused, match="is not the signed file"):  # a wrong size never reaches the check
            installer(disk).install(3)
        with pytest.raises(
            UpdateRefused, match=r"the boot partition has .* MB free and the update needs 1000000000004"
        ):
            installer(disk)._check_space(disk.document, 2)

    def test_a_failed_write_leaves_the_running_system(self, disk: Disk) -> None:
        disk.offer(3)

        def fail(command: Sequence[str], seconds: float) -> str:
            if command[-2] == "update":
                raise UpdateRefused("systemd-sysupdate: Input/output error")
            return disk.run_program(command, seconds)

        with pytest.raises(UpdateRefused, match=r"could not be written: .* system 2 runs, and has no other system"):
            Installer(disk.boot, lambda: status({}), fail).install(3)
        assert disk.names() == ["edge_2+4-1.efi"]
        assert disk.boot.load() == Slots((2,))
        assert disk.bootable()

    @pytest.mark.parametrize(
        ("kind", "path", "names", "said"),
        [
            ("write", "boot/.edge-slots.json.new", ["edge_1+5.efi", "edge_2+4-1.efi"], "no slot was touched"),
            ("unlink", "boot/EFI/Linux/edge_1+5.efi", ["edge_1+5.efi", "edge_2+4-1.efi"], "no slot was touched"),
            ("fsync", "boot/EFI/Linux", ["edge_2+4-1.efi"], "has no other system"),
        ],
    )
    def test_an_error_of_the_boot_partition_leaves_nothing_pending(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch, kind: str, path: str, names: list[str], said: str
    ) -> None:
        """The agent waits for a pending version: with no restart to come, it would update nothing any more."""
        disk.offer(3)

        def refuse(step: files.FileStep) -> None:
            if (step.kind, step.path) == (kind, str(disk.root / path)):
                raise OSError(errno.EIO, "Input/output error", step.path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "point", refuse)
            with pytest.raises(UpdateRefused, match=rf"system 3 could not be written: .*Input/output error.*{said}"):
                installer(disk).install(3)
        assert disk.names() == names
        assert disk.slots == {"a": "1", "b": "2"}
        assert disk.boot.load() == (Slots((1, 2), previous=1) if "edge_1+5.efi" in names else Slots((2,)))
        installer(disk).install(3)
        assert disk.start() == 3

    def test_what_waits_for_its_restart_still_waits_if_another_version_cannot_be_written(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk.offer(3)
        installer(disk).install(3)
        disk.offer(4)

        def refuse(step: files.FileStep) -> None:
            if step.kind == "unlink":
                raise OSError(errno.EROFS, "Read-only file system", step.path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "point", refuse)
            with pytest.raises(UpdateRefused, match=r"edge_3\+3-0\.efi: Read-only file system; .* no slot was touched"):
                installer(disk).install(4)
        assert disk.boot.load().pending == 3
        assert disk.start() == 3

    @pytest.mark.fault("X2")
    def test_a_power_cut_between_any_two_steps_leaves_a_system_that_boots(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = list(self._cuts(tmp_path / "count", monkeypatch, None))
        assert len(steps) > 15
        for number in range(len(steps)):
            disk = Disk(tmp_path / str(number))
            for _ in self._cuts(disk, monkeypatch, number):
                pass
            assert disk.bootable(), f"after {number} steps: {disk.names()} {disk.slots}"
            running = disk.start()
            health.note(disk.boot)
            if "edge_1+5.efi" in disk.names():
                assert decide.target_of_rollback(disk.boot.entries(), disk.boot.load(), running) == 1
            if running == 2:
                installer(disk).install(3)
                assert disk.start() == 3

    def _cuts(self, disk: Path | Disk, monkeypatch: pytest.MonkeyPatch, at: int | None) -> Iterator[int]:
        """Install version 3, and cut the power before step `at`. Yield the steps."""
        disk = disk if isinstance(disk, Disk) else Disk(disk)
        disk.offer(3)
        steps: list[int] = []

        def point(step: object = None) -> None:
            if len(steps) == at:
                raise PowerCut
            steps.append(len(steps))

        disk.point = point
        with monkeypatch.context() as patch:
            patch.setattr(files, "point", point)
            patch.setattr(report, "report", lambda *words: None)
            patch.setattr(os, "fsync", lambda descriptor: None)
            with contextlib.suppress(PowerCut):
                installer(disk).install(3)
        disk.point = lambda: None
        yield from steps


@pytest.mark.parametrize(
    ("entries", "slots", "version", "text"),
    [
        (["edge_1+5.efi", "edge_2+5.efi"], Slots((1, 2)), 3, ""),
        (["edge_2+5.efi"], Slots((2,)), 3, ""),
        (["edge_2+3.efi"], Slots(), 3, ""),
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2), 3, "system 2 is not yet confirmed"),
        (["edge_2+5.efi"], Slots((2,)), 2, "system 2 is not newer: 2 runs"),
        (["edge_2+5.efi"], Slots((2,)), 1, "system 1 is not newer: 2 runs"),
        (["edge_2+5.efi"], Slots((2,), {4: "it was slow"}), 4, r"system 4 failed on this device \(it was slow\)"),
        (["edge_2+5.efi"], Slots((2,), {4: "it was slow"}), 3, "system 3 is not newer: 4 failed"),
        (["edge_2+5.efi"], Slots((2,), {4: "it was slow"}), 5, ""),
        (["edge_2+5.efi", "edge_3+3-0.efi"], Slots((2,), pending=3), 4, ""),
    ],
)
def test_which_version_may_be_installed(
    tmp_path: Path, entries: list[str], slots: Slots, version: int, text: str
) -> None:
    machine = Machine(tmp_path, entries, 2, slots)

    found = decide.refuse_install(machine.boot.entries(), slots, 2, version)

    assert re.search(text, found) if text else not found


def test_a_program_that_hangs_is_killed() -> None:
    with pytest.raises(UpdateRefused, match=r"sleep did not end within 0 s"):
        install.run(["/bin/sleep", "60"], 0.05)


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(UpdateRefused, match="missing cannot be started: No such file or directory"):
        install.run(["/missing", "x"], 1)
