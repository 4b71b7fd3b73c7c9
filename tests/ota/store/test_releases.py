from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ota import files
from ota.errors import NoSpace, StoreError
from ota.layout import StateLayout
from ota.store import directories, releases
from ota.store.releases import RECORD, find_complete
from tests.ota.bundles import files_of, install, manifest, put_blobs, sha256


def test_an_installed_release_has_the_layout_of_a_model(layout: StateLayout) -> None:
    install(layout, release=17)
    directory = layout.release("det", 17)
    assert sorted(one.name for one in directory.iterdir()) == [RECORD, "17", "config.pbtxt"]
    weights = directory / "17" / "model.onnx"
    assert weights.samefile(layout.blob(sha256(weights.read_bytes())))
    record = find_complete(layout, "det", 17)
    assert record is not None
    assert (record.bundle, record.models, record.variant) == ("det", ("det",), "onnx")
    assert list(layout.stage.iterdir()) == []


def test_a_model_without_files_in_its_version_directory_has_the_directory(layout: StateLayout) -> None:
    install(layout, "pair", 3, {"pair": {"config.pbtxt": b'platform: "ensemble"'}})
    assert (layout.release("pair", 3) / "3").is_dir()


def test_an_installed_release_is_left_alone(layout: StateLayout) -> None:
    install(layout)
    before = layout.release("det", 17).stat().st_ino
    install(layout)
    assert layout.release("det", 17).stat().st_ino == before


def test_an_incomplete_release_is_replaced(layout: StateLayout) -> None:
    install(layout)
    (layout.release("det", 17) / "17" / "model.onnx").unlink()
    assert find_complete(layout, "det", 17) is None
    install(layout)
    assert find_complete(layout, "det", 17) is not None


@pytest.mark.fault("D6")
def test_a_damaged_blob_is_removed_and_never_installed(layout: StateLayout) -> None:
    directories.prepare(layout)
    models = {"det": files_of("det", 17)}
    put_blobs(layout.state_dir, models)
    blob = layout.blob(sha256(models["det"]["17/model.onnx"]))
    blob.write_bytes(b"x" * blob.stat().st_size)
    found = manifest(release=17)
    with pytest.raises(StoreError, match=r"was damaged on this disk and is removed: 'edge-ota apply' fetches it again"):
        releases.install(layout, found, found.variants[0], "0" * 64)
    assert not blob.exists()
    assert not layout.release("det", 17).exists()


def test_a_missing_blob_is_named_with_the_way_out(layout: StateLayout) -> None:
    directories.prepare(layout)
    found = manifest(release=17)
    with pytest.raises(StoreError, match=r"does not exist, which .* needs: 'edge-ota apply' fetches it"):
        releases.install(layout, found, found.variants[0], "0" * 64)


def test_a_damaged_file_is_put_in_place_again(layout: StateLayout) -> None:
    install(layout)
    record = find_complete(layout, "det", 17)
    assert record is not None
    weights = layout.release("det", 17) / "17" / "model.onnx"
    good = weights.read_bytes()
    weights.write_bytes(b"rot")
    layout.blob(sha256(good)).unlink()
    put_blobs(layout.state_dir, {"det": {"w": good}})
    releases.repair(layout, record, "17/model.onnx")
    assert weights.read_bytes() == good


def test_a_repair_from_a_blob_whose_directory_cannot_be_read_is_an_error_of_the_disk(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(layout)
    record = find_complete(layout, "det", 17)
    assert record is not None

    def exists(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(StoreError, match=f"{record.files['config.pbtxt'][0]}: Input/output error"):
        releases.repair(layout, record, "config.pbtxt")


def test_the_group_of_the_server_may_read_releases_and_nothing_else(layout: StateLayout) -> None:
    old = os.umask(0o027)
    try:
        install(layout)
    finally:
        os.umask(old)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(layout.state_dir) == mode(layout.releases) == 0o2750
    assert mode(layout.release("det", 17)) == 0o2750
    assert mode(layout.release("det", 17) / "17" / "model.onnx") == 0o640
    assert mode(layout.release("det", 17) / RECORD) == 0o640
    assert mode(layout.journal) & 0o777 == mode(layout.metadata) & 0o777 == mode(layout.manifests) & 0o777 == 0o700


@pytest.mark.fault("D1")
def test_a_full_disk_at_any_operation_leaves_no_half_release(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories.prepare(layout)
    models = {"det": files_of("det", 17)}
    put_blobs(layout.state_dir, models)
    found = manifest(release=17)
    count = 0

    def full(operation: files.DiskOperation) -> None:
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(28, "No space left on device", operation.path)

    for failing in range(1, 100):
        count = 0
        monkeypatch.setattr(files, "point", full)
        try:
            releases.install(layout, found, found.variants[0], "0" * 64)
        except NoSpace as error:
            assert "edge-ota gc" in error.message  # noqa: PT017
            assert find_complete(layout, "det", 17) is not None or not layout.release("det", 17).exists()
        monkeypatch.setattr(files, "point", lambda operation: None)
        if count < failing:
            break
        releases.install(layout, found, found.variants[0], "0" * 64)
        assert find_complete(layout, "det", 17) is not None
        files.remove_tree(layout.release("det", 17))
    assert failing > 10
