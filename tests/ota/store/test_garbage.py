from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from ota import files
from ota.files import DiskOperation
from ota.layout import StateLayout
from ota.store import bad, garbage, journal, releases
from ota.store.bad import BadRelease
from ota.store.journal import Journal, NextRelease, UpdateStage
from tests.ota.bundles import files_of, install, serve, sha256

HOUR = 3600.0


def age(root: Path, when: float) -> None:
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.utime(path, (when, when))


def bytes_on_disk(root: Path) -> int:
    found = {one.stat().st_ino: one.stat().st_size for one in root.rglob("*") if one.is_file()}
    return sum(found.values())


def kept(layout: StateLayout) -> list[int]:
    return sorted(int(one.name) for one in (layout.releases / "det").iterdir())


def test_active_previous_wanted_pinned_and_linked_releases_stay(layout: StateLayout, repository: Path) -> None:
    for release in (13, 14, 15, 16, 17):
        serve(layout, repository, release=release)
    for release in (18, 19):
        install(layout, release=release)
    journal.write(
        layout,
        Journal("det", {16: ("det",), 17: ("det",)}, 17, 16, NextRelease(18, "onnx", UpdateStage.TESTED, 3, 0.0)),
    )
    now = time.time()
    age(layout.state_dir, now - 2 * HOUR)
    before = bytes_on_disk(layout.state_dir)
    found = garbage.collect(layout, repository, now, wanted=[("det", 14)])
    assert kept(layout) == [14, 16, 17, 18]
    assert found.freed == before - bytes_on_disk(layout.state_dir)
    assert not layout.blob(sha256(files_of("det", 13)["13/model.onnx"])).exists()
    assert layout.blob(sha256(files_of("det", 13)["config.pbtxt"])).exists()  # release 17 has the same one
    assert not layout.manifest("det", 13).exists()
    assert garbage.collect(layout, repository, now, wanted=[("det", 14)]).paths == ()


@pytest.mark.fault("D5")
def test_files_of_a_running_install_stay(layout: StateLayout, repository: Path) -> None:
    """Young blobs of a manifest that nothing names yet, and old ones of the release in the journal."""
    serve(layout, repository, release=16)
    install(layout, release=17)
    journal.write(layout, Journal("det", {16: ("det",)}, 16, 0, NextRelease(17, "onnx", UpdateStage.PLANNED, 3, 0.0)))
    shutil.rmtree(layout.releases / "det" / "17")
    (layout.partial / sha256(files_of("det", 17)["17/model.onnx"])).write_bytes(b"half")
    (layout.partial / ("0" * 64)).write_bytes(b"old")
    age(layout.state_dir, time.time() - 2 * HOUR)
    fresh = layout.blob("1" * 64)
    fresh.parent.mkdir()
    fresh.write_bytes(b"just fetched")
    found = garbage.collect(layout, repository, time.time())
    assert found.paths == (str(layout.partial / ("0" * 64)),)


@pytest.mark.fault("D4")
def test_a_path_that_cannot_be_removed_keeps_no_other_one(
    layout: StateLayout, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(layout, repository, release=17)
    for release in (15, 16):
        install(layout, release=release)
    age(layout.state_dir, time.time() - 2 * HOUR)
    damaged = layout.release("det", 15) / "15" / "model.onnx"

    def refuse(operation: DiskOperation) -> None:
        if (operation.kind, operation.path) == ("unlink", str(damaged)):
            raise OSError(errno.EIO, "Input/output error", operation.path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", refuse)
        found = garbage.collect(layout, repository, time.time())
    assert kept(layout) == [15, 17]
    assert found.failures == (f"{damaged}: Input/output error",)
    assert str(layout.release("det", 15)) not in found.paths
    assert not layout.blob(sha256(files_of("det", 16)["16/model.onnx"])).exists()
    age(layout.state_dir, time.time() - 2 * HOUR)
    assert garbage.collect(layout, repository, time.time()).failures == ()
    assert kept(layout) == [17]


@pytest.mark.fault("D7")
def test_times_of_a_wrong_clock_do_not_remove_what_serves(layout: StateLayout, repository: Path) -> None:
    serve(layout, repository, release=16)
    install(layout, release=17)
    for when in (0.0, time.time() - 2 * HOUR):
        age(layout.state_dir, when)
        for now in (0.0, time.time() - 2 * HOUR - 60, time.time() + 10**9):
            garbage.collect(layout, repository, now, wanted=[("det", 17)])
            assert kept(layout) == [16, 17]
    age(layout.releases / "det" / "17", time.time() + 10**9)
    garbage.collect(layout, repository, time.time())
    assert kept(layout) == [16]  # from 2058: nothing needs it


def test_a_bundle_without_a_journal_keeps_its_links(layout: StateLayout, repository: Path) -> None:
    serve(layout, repository, release=16)
    journal.path_of(layout, "det").write_bytes(b"torn")
    age(layout.state_dir, time.time() - 2 * HOUR)
    garbage.collect(layout, repository, time.time())
    assert kept(layout) == [16]


def test_a_good_release_of_which_another_variant_failed_stays_without_a_journal(
    layout: StateLayout, repository: Path
) -> None:
    for release in (15, 16, 17):
        serve(layout, repository, release=release)
    journal.path_of(layout, "det").write_bytes(b"torn")
    failed = BadRelease("det", 16, "trt", "", "trial", "it failed", 0.0, permanent=True)
    bad.save(layout, bad.BadList([failed]))
    age(layout.state_dir, time.time() - 2 * HOUR)
    garbage.collect(layout, repository, time.time())
    assert kept(layout) == [16, 17]


def test_a_plan_whose_copy_was_cut_off_is_removed(layout: StateLayout, repository: Path) -> None:
    serve(layout, repository, release=16)
    layout.plans.mkdir()
    part, young = layout.plans / ".a.plan.new", layout.plans / ".b.plan.new"
    part.write_bytes(b"native")
    age(layout.state_dir, time.time() - 2 * HOUR)
    young.write_bytes(b"native")
    assert garbage.collect(layout, repository, time.time()).paths == (str(part),)


def test_a_plan_that_no_release_uses_stays_for_a_month(layout: StateLayout, repository: Path) -> None:
    serve(layout, repository, release=16)
    layout.plans.mkdir()
    for name in ("used", "unused"):
        (layout.plans / f"{name}.plan").write_bytes(b"native code")
        (layout.plans / f"{name}.seal").write_bytes(b"{}")
    releases.add_built(layout, "det", 16, "16/model.plan", layout.plans / "used.plan")
    age(layout.state_dir, time.time() - 29 * 24 * HOUR)
    garbage.collect(layout, repository, time.time())
    assert len(list(layout.plans.iterdir())) == 4
    age(layout.state_dir, time.time() - 31 * 24 * HOUR)
    garbage.collect(layout, repository, time.time())
    assert sorted(one.name for one in layout.plans.iterdir()) == ["used.plan", "used.seal"]
