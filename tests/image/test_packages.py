"""The committed list of Debian's packages: a build with others stops and names each difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image import packages
from image.errors import ImageError

BUILT = [("libc6", "2.41-12", "amd64"), ("systemd", "257.13-1", "amd64")]


def manifest(path: Path, *entries: tuple[str, str, str]) -> Path:
    keys = ("name", "version", "architecture")
    path.write_text(json.dumps({"packages": [dict(zip(keys, one, strict=True), type="deb") for one in entries]}))
    return path


def test_packages_of_root_and_initrd_are_listed_once_and_ours_is_not(tmp_path: Path) -> None:
    root = manifest(tmp_path / "root", *BUILT, ("edge-serve", "0.1.0+git9.abc-1+deb13", "amd64"))
    initrd = manifest(tmp_path / "initrd", BUILT[0], ("dmsetup", "2:1.02", "amd64"))

    assert packages.read_manifests([root, initrd]) == [("dmsetup", "2:1.02", "amd64"), *BUILT]


@pytest.mark.parametrize("text", ["", "{}", '{"packages": [{"name": "x"}]}', "[]"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m").write_text(text)
    with pytest.raises(ImageError, match="run 'make image' first"):
        packages.read_manifests([tmp_path / "m"])


def test_a_list_that_was_written_has_no_differences() -> None:
    assert packages.differences(packages.write(BUILT), BUILT) == []


def test_each_difference_is_named_with_the_command_that_accepts_it(tmp_path: Path) -> None:
    lock = tmp_path / "packages.txt"
    lock.write_text(packages.write([*BUILT, ("perl", "5.40", "amd64")]))
    now = [("libc6", "2.41-13", "amd64"), BUILT[1], ("zstd", "1.5", "all")]

    with pytest.raises(ImageError) as refused:
        packages.check(now, lock)

    assert str(refused.value).splitlines()[1:4] == [
        "  libc6 (amd64): 2.41-12 -> 2.41-13",
        "  perl (amd64): 5.40 -> absent",
        "  zstd (all): absent -> 1.5",
    ]
    assert "python -m image lock" in str(refused.value)


def test_the_committed_list_is_in_the_form_that_is_written() -> None:
    text = packages.LOCK.read_text()
    listed = [tuple(line.split()) for line in text.splitlines() if not line.startswith("#")]

    assert packages.write(sorted(listed)) == text  # type: ignore[arg-type]  # lines of three words
    assert {"systemd", "linux-image-amd64", "python3.13"} <= {one[0] for one in listed}
