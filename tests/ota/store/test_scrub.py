from __future__ import annotations

import pytest

from ota.documents.manifest import FileEntry
from ota.documents.system import SystemDocument
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.store import scrub, system_stage
from ota.store.releases import RECORD
from tests.ota.bundles import install, sha256


@pytest.mark.fault("D6")
def test_bits_that_changed_on_disk_are_found(layout: StateLayout) -> None:
    install(layout)
    assert list(scrub.scrub(layout, [("det", 17)])) == []
    directory = layout.release("det", 17)
    weights = directory / "17" / "model.onnx"
    data = weights.read_bytes()
    good = sha256(data)
    data = data[:3] + bytes([data[3] ^ 1]) + data[4:]
    weights.write_bytes(data)
    (directory / "config.pbtxt").unlink()
    (directory / "17" / "planted.so").write_bytes(b"")
    found = [str(one) for one in scrub.scrub(layout, [("det", 17)])]
    assert found[1].endswith("config.pbtxt: No such file or directory")
    assert found[0] == f"det 17: 17/model.onnx: has the SHA-256 {sha256(data)[:12]}..., expected {good[:12]}..."
    assert found[2] == "det 17: 17/planted.so: is not a file of the release"
    assert good in scrub.discard(layout, scrub.scrub(layout, [("det", 17)]))
    assert not layout.blob(good).exists()
    (directory / RECORD).write_bytes(b"{}")
    assert [str(one) for one in scrub.scrub(layout, [("det", 17)])] == ["det 17: its record is missing or damaged"]


def test_a_file_that_an_interrupted_write_left_is_removed(layout: StateLayout) -> None:
    install(layout)
    directory = layout.release("det", 17)
    for path in ("..release.json.new", "17/.model.onnx.new", "17/planted.so"):
        (directory / path).write_bytes(b"half")
    found = list(scrub.scrub(layout, [("det", 17)]))
    assert [scrub.remove_part(layout, one) for one in found] == [True, True, False]
    assert [one.path for one in scrub.scrub(layout, [("det", 17)])] == ["17/planted.so"]


def test_a_file_that_the_disk_cannot_look_up_is_an_error_of_the_disk(layout: StateLayout) -> None:
    name = "f" * 300  # a name that no disk takes, in place of a directory that it cannot read
    document = SystemDocument("edge", "base", "x86_64", 2, "", {"root": FileEntry(name, name, 1)})
    layout.blob(name).parent.mkdir(parents=True)
    layout.staged_system(2).mkdir(parents=True)
    with pytest.raises(StoreError, match="File name too long"):
        scrub.discard_blob(layout, name, 1)
    with pytest.raises(StoreError, match="File name too long"):
        system_stage.discard_damaged(layout, document)


def test_a_blob_that_is_missing_needs_no_removal(layout: StateLayout) -> None:
    scrub.discard_blob(layout, sha256(b"nowhere"), 7)
