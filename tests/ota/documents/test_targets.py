"""A document is read by its target path, and refused under the path of another one."""

from __future__ import annotations

import json

import pytest

from ota.documents.targets import files_of, has_document, read_document
from ota.errors import Untrusted

DEVICE = {"schema": 1, "device": "dev-1", "fleet": "a", "ring": "lab"}
FLOOR = {"schema": 1, "floors": {"det": 2}}
FILE = {"path": "config.pbtxt", "sha256": "ab" * 32, "bytes": 7}
VARIANT = {"id": "default", "kind": "onnx", "priority": 1}
MANIFEST = {
    "schema": 1, "bundle": "det", "family": "one", "release": 2, "release_counter": 2,
    "models": {"det": {"files": [FILE]}}, "variants": [VARIANT],
}  # fmt: skip


def read(target: str, value: object) -> object:
    return read_document(target, json.dumps(value).encode())


def test_the_path_tells_the_kind() -> None:
    assert getattr(read("devices/dev-1.json", DEVICE), "ring", "") == "lab"
    assert read("bundles/one/floor.json", FLOOR) == {"det": 2}
    manifest = read_document("bundles/one/det.2.json", json.dumps(MANIFEST).encode())
    assert [one.size for one in files_of(manifest)] == [7]
    assert list(files_of({"det": 2})) == []
    assert has_document("system/edge/base-x86_64.1.json")
    assert not has_document(f"engines/one/{'ab' * 32}")


@pytest.mark.parametrize(
    ("target", "value", "sentence"),
    [
        ("devices/dev-2.json", DEVICE, "is that of dev-1"),
        ("bundles/two/det.2.json", MANIFEST, "is a manifest of the family one: devices refuse it"),
        ("bundles/one/det.3.json", MANIFEST, "is that of det 2"),
        ("bundles/one/det.x.json", MANIFEST, "devices read no document"),
        (f"bundles/one/det.{'9' * 5000}.json", MANIFEST, "devices read no document"),
        ("bundles/one/floors.json", FLOOR, "devices read no document"),
        ("other/det.2.json", MANIFEST, "devices read no document"),
        ("devices", DEVICE, "is that of dev-1"),
    ],
)
def test_another_path_is_refused(target: str, value: object, sentence: str) -> None:
    with pytest.raises(Untrusted, match=sentence):
        read(target, value)
