"""Hostile and malformed manifests: names, sizes, counts, kinds, and parts that do not fit each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ota.documents.manifest import MOST_BYTES, MOST_FILES, read_manifest
from ota.errors import OtaError, Unsuitable, Untrusted
from ota.strict_json import to_canonical_json
from tests.ota.bundles import manifest_bytes

DIGEST = "0" * 64


def entry(path: str, **members: object) -> dict[str, Any]:
    """Return a file of a manifest."""
    return {"path": path, "sha256": DIGEST, "bytes": 3, **members}


def variant(name: str, priority: int, **members: object) -> dict[str, Any]:
    """Return a variant."""
    return {"id": name, "kind": "onnx", "priority": priority, **members}


def of_files(*entries: dict[str, Any]) -> dict[str, Any]:
    """Return the member `models` with these files of det."""
    return {"models": {"det": {"files": list(entries)}}}


def refused(members: dict[str, Any], kind: type[OtaError] = Untrusted) -> str:
    """Return the sentence with which a manifest is refused."""
    base = {**_document(), **members}
    with pytest.raises(kind) as found:
        read_manifest(to_canonical_json(base), "det", 17)
    assert "\n" not in found.value.message
    return found.value.message


def _document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manifest_bytes())
    return found


@pytest.mark.fault("U1", "T13")
@pytest.mark.parametrize(
    "path",
    [
        "../model.onnx", "17/../../x", "/etc/passwd", "//x", "", ".", "..", "17//x", "17/", "a\\b", "a:b", "a b",
        "a\0b", "a\nb", "a\x1b[31mb", "ä", "\u202egnp", "a" * 129, "/".join("abcdefghi"), "-rf/x", "~/x",
    ],
)  # fmt: skip
def test_paths_that_leave_the_release_or_need_care_are_refused(path: str) -> None:
    """There is no archive, so there are no links, devices, or sparse files: a manifest has paths and digests only."""
    sentence = refused(of_files(entry(path)))
    assert re.search("expected a (relative path of at most 8 parts|string of at most 1024 printable)", sentence)


@pytest.mark.fault("U1")
def test_a_manifest_cannot_name_the_type_of_a_file() -> None:
    for member in ("type", "mode", "link", "target"):
        assert member in refused(of_files(entry("17/model.onnx", **{member: "symlink"})))


@pytest.mark.fault("U1")
@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (("17/a", "17/a"), "names a file twice"),
        (("17/Model.onnx", "17/model.onnx"), "differ in case only"),
        (("17/a", "17/a/b"), "is below a file"),
        (("18/model.onnx",), "is in version 18, expected version 17"),
    ],
)
def test_files_that_collide_are_refused(paths: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(of_files(*map(entry, paths)))


@pytest.mark.fault("U1")
def test_too_many_and_too_large_are_refused_before_they_cost_anything() -> None:
    assert str(MOST_BYTES) in refused({"provenance": {f"{n}": "x" * 1000 for n in range(400)}})
    many = [{"path": f"{n}", "sha256": "", "bytes": 0} for n in range(MOST_FILES + 1)]
    assert str(MOST_FILES) in refused(of_files(*many))
    with pytest.raises(Untrusted, match=r"nested deeper"):
        read_manifest(b'{"schema":' + b"[" * 1000 + b"]" * 1000 + b"}", "det", 17)


@pytest.mark.fault("U2")
@pytest.mark.parametrize(
    "members",
    [
        {"bytes": -1}, {"bytes": 2**60}, {"bytes": 1.5}, {"bytes": "3"}, {"bytes": True}, {"sha256": "0" * 63},
        {"sha256": "Z" * 64}, {"chunks": [DIGEST]}, {"chunk_bytes": 2}, {"chunks": [DIGEST], "chunk_bytes": 2},
        {"chunks": [DIGEST, "x"], "chunk_bytes": 2},
    ],
)  # fmt: skip
def test_sizes_and_digests_that_cannot_be_are_refused(members: dict[str, Any]) -> None:
    """A blob that is longer or shorter than its entry says: tests/ota/fetch/test_blobs.py. Nothing is compressed."""
    refused(of_files(entry("17/model.onnx", **members)))


@pytest.mark.fault("U3")
def test_a_newer_schema_asks_for_a_newer_agent() -> None:
    assert "update edge-ota first" in refused({"schema": 2}, Unsuitable)


@pytest.mark.fault("U3")
@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"variants": []}, "has no variants"),
        ({"models": {}}, "has no models"),
        ({"variants": [variant("a", 1, kind="script")]}, "expected one of onnx, onnx-build, trt-engine, code"),
        ({"variants": [variant("a", 1), variant("b", 1)]}, "two variants have the same priority"),
        ({"variants": [variant("a", 1), variant("a", 2)]}, "two variants have the same id"),
        ({"variants": [variant("a", 1, models={"seg": {"files": []}})]}, "the model 'seg', which the release lacks"),
        ({"variants": [variant("a", 1, script="rm -rf /")]}, "script"),
        ({"post_install": "reboot"}, "post_install"),
        ({"needs_agent": "new"}, "expected a version such as 1.4"),
    ],
)  # fmt: skip
def test_manifests_that_make_no_sense_are_refused(members: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(members)


@pytest.mark.fault("T10")
@pytest.mark.parametrize("members", [{"bundle": "seg"}, {"release": 18}])
def test_the_manifest_of_another_release_is_refused(members: dict[str, Any]) -> None:
    assert "the repository has it under a wrong name" in refused(members)


@pytest.mark.fault("U4")
@pytest.mark.parametrize("path", [".release.json", "17/.release.json", ".hidden/x"])
def test_no_path_collides_with_the_agents_own_files(path: str) -> None:
    assert "expected a relative path" in refused(of_files(entry(path)))


@pytest.mark.fault("U4")
def test_a_file_of_a_variant_replaces_one_of_the_release_and_collides_with_none() -> None:
    assert "is below a file" in refused(
        {"variants": [variant("a", 1, models={"det": {"files": [entry("config.pbtxt/x")]}})]}
    )
    variants = [variant("a", 1, models={"det": {"files": [entry("config.pbtxt")]}})]
    found = read_manifest(to_canonical_json({**_document(), "variants": variants}), "det", 17)
    (config,) = (one for one in found.files_of(found.variants[0], "det") if one.path == "config.pbtxt")
    assert config.sha256 == DIGEST


@pytest.mark.fault("T14")
@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"\xff", b'{"schema":1,"schema":1}', b'{"schema":NaN}', b"{"])
def test_only_strict_json_objects_are_read(data: bytes) -> None:
    with pytest.raises(Untrusted):
        read_manifest(data, "det", 17)
