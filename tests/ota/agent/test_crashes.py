"""The agent ends at any place: killed, or by a failing disk. edge-serve goes on, and a later run succeeds."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ota import files
from ota.agent.boot import Boot
from ota.errors import NoSpace, StoreError
from ota.files import DiskOperation
from tests.ota.bundles import Files, files_of
from tests.ota.clock import NOW
from tests.ota.device import Device

PAIR = ("inner", "outer")


def models_of(release: int) -> dict[str, Files]:
    return {model: files_of(model, release) for model in PAIR}


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that serves release 16 of two models, and shall get 17."""
    found = Device(tmp_path)
    found.server.store = tmp_path / "serving"
    found.publish("pair", 16, models_of(16))
    found.run()
    return found


@contextlib.contextmanager
def before_each(act: Callable[[DiskOperation], None]) -> Iterator[None]:
    """Call `act` before each operation on disk."""
    before, files.point = files.point, act
    try:
        yield
    finally:
        files.point = before


def in_child(act: Callable[[], object]) -> int:
    """Run in a process of its own; its id."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    return child


def check(device: Device, release: int) -> None:
    """One release serves as a whole, or both while a switch was cut off; after a good run the wanted one."""
    device.server.remember()
    assert set(device.server.serving) == set(PAIR)
    assert set(device.server.serving.values()) <= {release - 1, release}
    assert device.run()["pair"].error is None
    assert device.server.serving == dict.fromkeys(PAIR, release)
    assert (device.journal("pair").active, device.journal("pair").next) == (release, None)


def operations_of(device: Device, release: int) -> int:
    """Return how many operations an update takes."""
    count = 0

    def counted(operation: DiskOperation) -> None:
        nonlocal count
        count += 1

    with before_each(counted):
        device.publish("pair", release, models_of(release))
        device.run()
    return count


@pytest.mark.fault("C1")
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_an_exit_before_any_operation_is_recovered(device: Device, step: int) -> None:
    """The exit before an operation is that after the one before it."""
    release = 17
    every = operations_of(device, release)
    for place in range(1, every + 1, step):
        release += 1
        device.publish("pair", release, models_of(release))
        count = 0

        def leave(operation: DiskOperation, place: int = place) -> None:
            nonlocal count
            count += 1
            if count == place:
                os._exit(7)

        def update() -> None:
            files.point = leave
            device.run()

        os.waitpid(in_child(update), 0)
        if place % 2:  # the device starts anew, too
            Boot(device.settings, NOW, lambda text: None).run()
            device.server.start()
            device.server.reload(())
        check(device, release)
        _forget(device, release - 1)
    assert every > 60


def _forget(device: Device, release: int) -> None:
    """Remove an old release, so that the store stays small."""
    for model in PAIR:
        if (release - 1) and device.layout.release(model, release - 1).exists():
            files.remove_tree(device.layout.release(model, release - 1))


def kill_within(device: Device, seconds: float) -> None:
    child = in_child(device.run)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.fault("C3")
@pytest.mark.fault("C4")
@pytest.mark.parametrize("times", [8, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_kill_at_a_random_moment_is_recovered(device: Device, times: int) -> None:
    """Every third time the run after it is killed, too."""
    seeded = random.Random(15)
    began = time.monotonic()
    operations_of(device, 17)
    length = time.monotonic() - began
    for release in range(18, 18 + times):
        device.publish("pair", release, models_of(release))
        for _ in range(2 if release % 3 == 0 else 1):
            kill_within(device, seeded.uniform(0, 1.5 * length))
        check(device, release)
        _forget(device, release - 1)


@pytest.mark.fault("D1")
@pytest.mark.fault("D2")
@pytest.mark.fault("D4")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_error_at_any_operation_is_reported_and_recovered(device: Device, code: int, lasting: bool) -> None:
    """Once, or from then on: what serves goes on, the error says what to do, and a later run succeeds."""
    release = 17
    every = operations_of(device, release)
    for place in range(1, every + 1, 23):
        release += 1
        device.publish("pair", release, models_of(release))
        count = 0

        def fail(operation: DiskOperation, place: int = place) -> None:
            nonlocal count
            count += 1
            if count == place or (lasting and count > place):
                raise OSError(code, os.strerror(code), operation.path)

        with before_each(fail):
            try:
                outcomes = device.outcomes()
                error = outcomes["pair"].error
            except StoreError as failure:
                error = failure
        if error is not None:
            assert isinstance(error, StoreError)
            assert os.strerror(code) in error.message
            assert isinstance(error, NoSpace) == (code in (errno.ENOSPC, errno.EDQUOT))
        check(device, release)
        _forget(device, release - 1)


@pytest.mark.fault("D3")
def test_a_disk_without_inodes_is_no_space(device: Device) -> None:
    device.publish("pair", 17, models_of(17))

    def full(operation: DiskOperation) -> None:
        if operation.kind in ("create", "mkdir", "symlink", "link") and "/status" not in operation.path:
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    with before_each(full), pytest.raises(NoSpace, match="free space on that disk, or lower what is kept"):
        device.run()
    check(device, 17)


@pytest.mark.fault("D8")
def test_no_temporary_directory_is_needed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    device.publish("pair", 17, models_of(17))
    assert device.run()["pair"].release == 17
