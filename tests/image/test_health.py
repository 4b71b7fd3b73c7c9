"""The health gate: its verdict, and that no sequence of boots ends in a loop or on a system that is worse."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from image.device import decide, files, health, report, restart, scrub, slot
from image.device.decide import ANSWER_SECONDS, LOAD_SECONDS, Verdict
from image.device.files import FileStep
from image.device.slots import Failure, Slots, SlotStore, read_slots
from tests.image.machine import Machine, status


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The faults that are reported."""
    found: dict[str, str] = {}

    def note(code: str, text: str, help: str = "") -> None:
        found[code] = f"{text} {help}"

    monkeypatch.setattr(report, "report", note)
    monkeypatch.setattr(report, "clear", lambda code: found.pop(code, None))
    return found


def baseline(*models: str, live: bool = True) -> dict[str, Any]:
    return {"schema": 1, "from": 1, "version": 2, "live": live, "models": list(models)}


@pytest.mark.parametrize(
    ("before", "now", "seconds", "word"),
    [
        (baseline("a"), None, 0, "wait"),
        (baseline("a"), None, ANSWER_SECONDS, "bad"),
        (baseline(live=False), None, 0, "good"),
        (None, None, ANSWER_SECONDS, "bad"),
        (None, {"a": "failed"}, 0, "good"),
        (baseline("a"), {"a": "ready"}, 0, "good"),
        (baseline("a"), {"a": "busy"}, 0, "good"),
        (baseline("a"), {"a": "ready", "b": "failed"}, 0, "good"),
        (baseline("a"), {"a": "loading"}, ANSWER_SECONDS, "wait"),
        (baseline("a"), {"a": "loading"}, LOAD_SECONDS, "bad"),
        (baseline("a"), {"a": "failed"}, 0, "wait"),
        (baseline("a"), {"a": "failed"}, ANSWER_SECONDS, "bad"),
        (baseline("a"), {}, 0, "wait"),
        (baseline("a"), {}, ANSWER_SECONDS, "bad"),
    ],
)
def test_a_fault_counts_only_if_the_old_system_did_not_have_it(
    before: dict[str, Any] | None, now: Mapping[str, str] | None, seconds: float, word: str
) -> None:
    assert decide.judge(before, None if now is None else status(now), seconds).word == word


def test_a_server_that_is_stopping_is_not_judged() -> None:
    assert decide.judge(None, status({}, "stopping"), 0).word == "wait"


def test_the_baseline_has_the_models_that_were_ready() -> None:
    made = decide.baseline_of(1, 2, status({"good": "ready", "busy": "busy", "broken": "failed"}, "not ready"))

    assert made == baseline("busy", "good")
    assert decide.baseline_of(1, 2, None) == baseline(live=False)


def test_a_model_that_stays_failed_is_judged_before_the_limit() -> None:
    seconds = iter(range(0, 10000, 2))
    answers = itertools.chain([None, status({"a": "loading"}, "starting")], itertools.repeat(status({"a": "failed"})))

    verdict = health.wait_for_verdict(baseline("a"), lambda: next(answers), lambda: next(seconds), lambda _: None)

    assert verdict.word == "bad"
    assert "a (failed)" in verdict.reason
    assert next(seconds) < 2 * decide.FAILED_SECONDS


def test_a_model_that_recovers_is_good() -> None:
    answers = iter([status({"a": "failed"}), status({"a": "restarting"}), status({"a": "ready"})])

    assert health.wait_for_verdict(baseline("a"), lambda: next(answers), float, lambda _: None).word == "good"


@pytest.mark.parametrize("silence", [1, decide.ANSWER_SECONDS - 1])
def test_a_server_that_restarts_while_its_models_load_is_not_bad(silence: float) -> None:
    times = iter([0, 2 * decide.ANSWER_SECONDS, 2 * decide.ANSWER_SECONDS + silence, 3 * decide.ANSWER_SECONDS])
    answers = iter([status({"a": "loading"}), None, status({"a": "ready"})])

    verdict = health.wait_for_verdict(baseline("a"), lambda: next(answers), lambda: next(times), lambda _: None)
    assert verdict.word == "good"


@pytest.mark.parametrize("first", [status({"a": "loading"}), None])
def test_a_server_that_stays_silent_is_bad(first: dict[str, Any] | None) -> None:
    answers = itertools.chain([first], itertools.repeat(None))
    times = itertools.count(step=decide.POLL_SECONDS)

    verdict = health.wait_for_verdict(baseline("a"), lambda: next(answers), lambda: next(times), lambda _: None)
    assert verdict == Verdict("bad", "the server did not answer within 180 s")
    assert next(times) <= decide.ANSWER_SECONDS + 3 * decide.POLL_SECONDS


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "live": true, "models": ["a"]}', '{"version": 2}'])
def test_a_baseline_of_another_update_does_not_count(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, [], 2)
    machine.boot.baseline.write_text(text)

    assert machine.boot.read_baseline(2) is None


@pytest.mark.parametrize(
    ("entries", "slots", "word"),
    [
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2), "bad"),
        (["edge_1+5.efi", "edge_2+0-3.efi"], Slots((1,), pending=2), "bad"),
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2, data_lasted=False), "good"),
        (["edge_1+0-5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2), "good"),
        (["edge_1+2-1.efi", "edge_2+2-1.efi"], Slots((), pending=2), "good"),
        (["edge_2+2-1.efi"], Slots((), pending=2), "good"),
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1,)), "good"),
    ],
)
def test_a_new_system_that_cannot_read_the_data_is_bad_if_a_good_one_could(
    tmp_path: Path, faults: dict[str, str], entries: list[str], slots: Slots, word: str
) -> None:
    machine = Machine(tmp_path, entries, 2, slots)
    shutil.rmtree(machine.boot.state)
    machine.place_data(False, "data-foreign")
    health.note(machine.boot)

    verdict = health.judge(machine.boot, 2, lambda: status({"simple": "ready"}))
    assert verdict.word == word
    assert word == "good" or "data-foreign" in verdict.reason


def test_a_new_system_whose_data_were_erased_by_a_reset_is_good(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))
    machine.boot.write_baseline(baseline("a"))
    shutil.rmtree(machine.boot.state)
    machine.place_data(True)
    health.note(machine.boot)

    assert health.judge(machine.boot, 2, lambda: status({"simple": "ready"})).word == "good"


def test_a_baseline_of_thousands_of_models_is_compared(tmp_path: Path, faults: dict[str, str]) -> None:
    models = [f"line-{number:04}-of-the-plant-x" for number in range(5000)]
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))
    machine.boot.write_baseline(baseline(*models))
    machine.place_data(True)

    assert health.judge(machine.boot, 2, lambda: status(dict.fromkeys(models, "ready"))).word == "good"
    assert machine.boot.read_baseline(2) == baseline(*models)


def test_a_version_that_failed_is_recorded_with_its_reason(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+1-2.efi"], 2, Slots((1,), pending=2))
    restarts: list[int] = []

    assert health.fall_back(machine.boot, 2, "health", "no answer", lambda: restarts.append(1))
    assert (restarts, machine.start()) == ([1], 1)
    health.note(machine.boot)

    assert machine.boot.load() == Slots((1,), {2: "no answer"})
    assert (
        "System 2 is not used: no answer. System 1 runs. Publish a system with a higher version" in faults.popitem()[1]
    )


@pytest.mark.parametrize(
    ("entries", "slots", "pending"),
    [
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2), 2),
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((), pending=2), 2),
        (["edge_1+0-5.efi", "edge_2+2-1.efi"], Slots((1,), pending=2), None),
        (["edge_2+2-1.efi"], Slots((1,), pending=2), None),
        (["edge_1+5.efi", "edge_2+2-1.efi"], Slots((1, 2), pending=2), None),
        (["edge_2+5.efi", "edge_3+3-0.efi"], Slots((2,), pending=3), 3),
        (["edge_2+5.efi"], Slots((2,), pending=3), None),
    ],
)
def test_a_version_is_tried_until_its_verdict_while_another_one_can_start(
    tmp_path: Path, faults: dict[str, str], entries: list[str], slots: Slots, pending: int | None
) -> None:
    machine = Machine(tmp_path, entries, 2, slots)

    health.note(machine.boot)

    assert machine.boot.load().pending == pending


@pytest.mark.parametrize("pending", [None, 2, 5])
def test_a_try_survives_an_older_record_on_the_data_partition(
    tmp_path: Path, faults: dict[str, str], pending: int | None
) -> None:
    """System 1 ran with /var in memory, and installed 3, which uses the data partition again."""
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_3+2-1.efi"], 3)
    machine.boot.save_record(Slots((1, 2), pending=pending))
    machine.boot.save_copy(Slots((1,), pending=3, data_lasted=False))

    health.note(machine.boot)

    assert read_slots(machine.boot.record.read_bytes()) == Slots((1, 2), pending=3, data_lasted=False)
    slot.confirm(machine.boot)
    assert machine.boot.load().pending is None


def test_a_copy_with_a_version_that_ended_tries_nothing(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+0-5.efi", "edge_2+5.efi"], 2, Slots((2,)))
    for version in (2, 3):
        machine.boot.save_copy(Slots((1,), pending=version))

        health.note(machine.boot)

        assert machine.boot.load().pending is None


def test_a_version_that_never_reported_is_recorded_too(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+4-1.efi", "edge_2+0-3.efi"], 1, Slots((1,), pending=2))

    health.note(machine.boot)

    assert "a kernel panic, a hang, or power cuts" in machine.boot.load().bad[2]


def test_a_good_version_with_a_damaged_disk_may_be_installed_again(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+4-1.efi"], 2, Slots((1, 2)))
    machine.boot.condemn(Failure(2, "disk", "damaged at byte 7"))
    machine.run(1)

    health.note(machine.boot)

    slots = machine.boot.load()
    assert slots.bad == {}
    assert decide.refuse_install(machine.boot.entries(), slots, 1, 2) == ""
    assert "'edge-ota system apply' installs it again" in faults["system-fallback"]


def test_a_version_that_an_operator_left_is_not_installed_again(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+4-1.efi"], 2, Slots((1, 2)))
    machine.boot.condemn(Failure(2, "operator", "an operator went back to system 1"))
    machine.run(1)

    health.note(machine.boot)

    assert "publish a higher version" in decide.refuse_install(machine.boot.entries(), machine.boot.load(), 1, 2)


def test_the_only_system_stays_and_says_so(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+0-5.efi", "edge_2+2-1.efi"], 2)

    assert not health.fall_back(machine.boot, 2, "health", "no answer", lambda: pytest.fail("restarted"))

    assert machine.names() == ["edge_1+0-5.efi", "edge_2+5.efi"]
    assert "there is no other system to start: no answer" in faults["system-unhealthy"]


@pytest.mark.parametrize("program", ["exit 1", "sleep 9", None])
def test_a_restart_that_fails_leaves_a_condemned_system_that_says_so(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(restart, "SECONDS", 0.2)
    if program:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\nexec {program}\n")
        (tmp_path / "systemctl").chmod(0o755)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))

    assert health.fall_back(machine.boot, 2, "health", "no answer", restart.restart)

    assert [*faults] == ["system-unhealthy"]
    assert "(no answer), and the machine could not be restarted: " in faults["system-unhealthy"]
    assert "Restart it by its power switch; system 1 starts then." in faults["system-unhealthy"]
    assert machine.boot.read_failure() == Failure(2, "health", "no answer")
    assert machine.start() == 1


@pytest.mark.parametrize("running", [1, 2])
def test_a_boot_partition_that_cannot_be_written_causes_no_restart(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch, running: int
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], running, Slots((1,), pending=2))

    def refuse(step: FileStep) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "point", refuse)
    monkeypatch.setattr(health, "SlotStore", lambda: machine.boot)
    monkeypatch.setattr(slot, "SlotStore", lambda: machine.boot)
    monkeypatch.setattr(health, "wait_for_verdict", lambda *arguments: Verdict("bad", "no answer"))
    monkeypatch.setattr(health, "restart", lambda: pytest.fail("restarted"))

    assert health.main() == (0 if running == 1 else 1)
    assert slot.main() == 0
    assert "The boot partition cannot be written: Read-only file system." in faults["boot-partition"]


def test_a_system_that_cannot_be_left_is_tried_until_the_next_start(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))

    def refuse(step: FileStep) -> None:
        if str(machine.boot.esp) in step.path:
            raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", refuse)
        assert not health.fall_back(machine.boot, 2, "health", "no answer", lambda: pytest.fail("restarted"))
    assert machine.boot.load().pending == 2  # the boot step and the agent leave the models of a tried system alone
    assert "Check it on another computer" in faults["system-unhealthy"]

    machine.run(2)  # the boot partition was repaired
    health.note(machine.boot)
    assert health.fall_back(machine.boot, 2, "health", "no answer", lambda: None)
    assert machine.start() == 1


@contextlib.contextmanager
def full(*folders: Path) -> Iterator[None]:
    """Let folders have no room for new files. Names can be changed and removed there."""

    def refuse(step: FileStep) -> None:
        if step.kind in ("create", "write", "mkdir") and any(str(one) in step.path for one in folders):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "point", refuse)
        yield


FULL = {
    "boot": ("boot-partition", "The boot partition cannot be written: No space left on device."),
    "var": ("data-record", "The data partition cannot be written: No space left on device."),
}


def test_an_old_reason_that_cannot_be_removed_is_a_fault_of_the_partition_that_holds_it(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+1-2.efi"], 2, Slots((1,), pending=2))
    machine.boot.write_failure(Failure(1, "health", "slow"))
    monkeypatch.setattr(slot, "SlotStore", lambda: machine.boot)

    def refuse(step: FileStep) -> None:
        if step.kind == "unlink" and step.path == str(machine.boot.failure_copy):
            raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "point", refuse)
    assert slot.main() == 0
    assert list(faults) == ["data-record"]
    assert not machine.boot.failure.exists()


@pytest.mark.parametrize("place", ["boot", "var"])
def test_a_good_system_is_confirmed_without_room_for_its_record(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+1-2.efi"], 2, Slots((1,), pending=2))
    monkeypatch.setattr(slot, "SlotStore", lambda: machine.boot)

    with full(tmp_path / place):
        assert slot.main() == 0
    code, text = FULL[place]

    assert machine.names() == ["edge_1+5.efi", "edge_2+5.efi"]
    assert [*faults] == [code]
    assert faults[code].startswith(text)
    assert machine.start() == 2
    assert 2 in machine.boot.load().confirmed
    slot.confirm(machine.boot)
    assert machine.boot.load() == Slots((1, 2), previous=1)


@pytest.mark.parametrize("places", [("boot",), ("var",), ("boot", "var")])
def test_a_bad_system_is_left_without_room_for_its_reason(
    tmp_path: Path, faults: dict[str, str], places: tuple[str, ...]
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+2-1.efi"], 2, Slots((1,), pending=2))
    machine.boot.write_failure(Failure(1, "health", "of an earlier update"))
    restarts: list[int] = []

    with full(*(tmp_path / one for one in places)):
        assert health.fall_back(machine.boot, 2, "health", "no answer", lambda: restarts.append(1))
        assert (restarts, machine.start()) == ([1], 1)
        health.note(machine.boot)

    reason = "no answer" if len(places) == 1 else "a kernel panic, a hang, or power cuts"
    assert reason in faults.pop("system-fallback")
    assert sorted(faults) == sorted(FULL[one][0] for one in places)
    assert sorted(machine.boot.load().bad) == ([2] if len(places) == 1 else [])


def test_a_confirmed_system_gets_all_tries_back(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+1-2.efi"], 2, Slots((1,), {3: "x"}, pending=2))
    machine.boot.write_baseline(baseline("a"))

    slot.confirm(machine.boot)

    assert machine.names() == ["edge_1+5.efi", "edge_2+5.efi"]
    assert machine.boot.load() == Slots((1, 2), {3: "x"}, None, 1)
    assert not machine.boot.baseline.exists()


def test_a_baseline_stays_until_the_confirmation_is_stored(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+1-2.efi"], 2, Slots((1,), pending=2))
    machine.boot.write_baseline(baseline("a"))

    with full(tmp_path / "boot", tmp_path / "var"):
        slot.confirm(machine.boot)
    machine.start()
    health.note(machine.boot)
    assert health.judge(machine.boot, 2, lambda: status({"a": "ready"})).word == "good"


def test_the_end_of_an_old_failure_ends_its_fault(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_3+2-1.efi"], 3, Slots((1,), {2: "no answer"}, pending=3))
    machine.boot.write_failure(Failure(2, "health", "no answer"))

    health.note(machine.boot)
    assert "system-fallback" in faults
    slot.confirm(machine.boot)
    assert faults == {}


def test_a_system_that_waits_for_its_restart_still_waits_after_a_confirmation(
    tmp_path: Path, faults: dict[str, str]
) -> None:
    machine = Machine(tmp_path, ["edge_1+2-1.efi", "edge_2+3-0.efi"], 1, Slots((), pending=2))
    machine.boot.write_baseline(baseline("a"))

    slot.confirm(machine.boot)

    assert machine.boot.load() == Slots((1,), pending=2)
    assert machine.boot.read_baseline(2) == baseline("a")


def test_a_good_boot_of_a_good_system_writes_nothing_but_its_entry(tmp_path: Path, faults: dict[str, str]) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+5.efi"], 2, Slots((1, 2), previous=1))
    before = {path: path.stat().st_ino for path in (machine.boot.record, machine.boot.record_copy)}
    machine.start()

    health.note(machine.boot)
    slot.confirm(machine.boot)

    assert machine.names() == ["edge_1+5.efi", "edge_2+5.efi"]
    assert before == {path: path.stat().st_ino for path in before}


def test_a_read_error_condemns_the_slot(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, ["edge_1+5.efi", "edge_2+5.efi"], 2, Slots((1, 2)))
    device = tmp_path / "root.img"
    device.write_bytes(bytes(3 * 1024 * 1024))
    restarts: list[int] = []

    assert scrub.scrub(machine.boot, device, lambda: restarts.append(1)) == 0
    assert restarts == []

    reads = iter([b"x" * 1024 * 1024, b"x" * 1024 * 1024])

    def read(descriptor: int, size: int) -> bytes:
        for block in reads:
            return block
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        assert scrub.scrub(machine.boot, device, lambda: restarts.append(1)) == 0

    assert restarts == [1]
    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    failure = machine.boot.read_failure()
    assert failure is not None
    assert "damaged at byte 2097152" in failure.reason


def test_a_read_error_of_the_only_system_is_one_fault_that_a_whole_root_clears(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, ["edge_2+5.efi"], 2, Slots((2,)))
    offsets = iter([4096, None])
    monkeypatch.setattr(scrub, "first_error", lambda device: next(offsets))

    assert scrub.scrub(machine.boot, tmp_path, lambda: pytest.fail("restarted")) == 0
    assert [*faults] == ["system-damaged"]
    assert "there is no other system to start: its root is damaged at byte 4096" in faults["system-damaged"]
    assert scrub.scrub(machine.boot, tmp_path, lambda: pytest.fail("restarted")) == 0
    assert faults == {}


# ---- every state ----

COUNTERS = ["+3-0", "+1-2", "+0-3"]
WORLDS = ["good", "worse", "dies"]


@pytest.mark.parametrize(
    "confirmed", [(1,), *(pytest.param(one, marks=pytest.mark.slow) for one in ((), (2,), (1, 2)))]
)
def test_every_state_ends_on_the_best_system_without_a_loop(
    tmp_path: Path, confirmed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    states = itertools.product(COUNTERS, COUNTERS, WORLDS, WORLDS)
    for number, (first, second, of_first, of_second) in enumerate(states):
        machine = Machine(tmp_path / str(number), [f"edge_1{first}.efi", f"edge_2{second}.efi"], slots=Slots(confirmed))
        worlds = {1: of_first, 2: of_second}
        trace = [boot(machine, worlds) for _ in range(7)]
        told = f"{first=} {second=} {worlds=} {confirmed=}: {trace}"

        assert sum("falls back" in one for one in trace) <= 1, told
        alive = [version for version, world in worlds.items() if world != "dies"]
        if alive and not (of_second == "dies" and first == "+0-3"):
            assert trace[-3:] == [f"{trace[-1][0]} stays"] * 3, told


def boot(machine: Machine, worlds: Mapping[int, str]) -> str:
    """Boot once, as the units do, and return a line about it. A system that stays is booted anew by a power cut."""
    running = machine.start()
    if worlds[running] == "dies":
        return f"{running} dies"
    health.note(machine.boot)
    if running not in machine.boot.load().confirmed and worlds[running] == "worse":
        left = health.fall_back(machine.boot, running, "health", "worse", lambda: None)
        return f"{running} falls back" if left else f"{running} stays"
    slot.confirm(SlotStore(machine.root))
    return f"{running} stays"


# ---- power cuts ----


class PowerCut(Exception):
    """The power is cut before a step on the disk."""


def cut_at(patch: pytest.MonkeyPatch, number: int) -> list[FileStep]:
    """Cut the power before a step. Return the steps that were done, as they happen."""
    steps: list[FileStep] = []

    def point(step: FileStep) -> None:
        if len(steps) == number:
            raise PowerCut
        steps.append(step)

    patch.setattr(files, "point", point)
    patch.setattr(os, "fsync", lambda descriptor: None)
    return steps


@pytest.mark.parametrize("world", ["good", "worse"])
def test_a_power_cut_between_any_two_steps_of_a_verdict_changes_nothing_in_the_end(
    tmp_path: Path, faults: dict[str, str], world: str
) -> None:
    for number in range(100):
        slots = Slots((1,), pending=2)
        machine = Machine(tmp_path / str(number), ["edge_1+5.efi", "edge_2+3-0.efi"], slots=slots)
        worlds = {1: "good", 2: world}
        with pytest.MonkeyPatch.context() as patch:
            steps = cut_at(patch, number)
            with contextlib.suppress(PowerCut):
                boot(machine, worlds)
        for _ in range(3):
            boot(machine, worlds)
        good = 2 if world == "good" else 1

        assert machine.boot.running() == good, f"after {number} steps: {machine.names()}"
        assert machine.boot.load().bad == ({} if world == "good" else {2: "worse"}), f"after {number} steps"
        assert f"edge_{good}+5.efi" in machine.names()
        if len(steps) < number:
            break
    assert number > 5
