"""The committed list of Debian's packages: a build with others stops and names each difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image import build, packages
from image.errors import ImageError

BUILT = [("libc6", "2.41-12", "amd64"), ("systemd", "257.13-1", "amd64")]


def manifest(path: Path, *entries: tuple[str, str, str]) -> Path:
    keys = ("name", "version", "architecture")
    path.write_text(json.dumps({"packages": [dict(zip(keys, one, strict=True), type="deb") for one in entries]}))
    return path


def test_packages_of_root_and_initrd_are_listed_once_without_edge_serve(tmp_path: Path) -> None:
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


def tools(tree: Path, **versions: str) -> Path:
    """Write the list of packages of a tree of tools, in the form of dpkg. Return the tree."""
    stanza = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}\nDescription: x\n y\n"
    (tree / "var/lib/dpkg").mkdir(parents=True)
    text = "\n".join(stanza.format(name.replace("_", "-"), version) for name, version in versions.items())
    removed = "\nPackage: zstd\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    (tree / "var/lib/dpkg/status").write_text(text + removed)
    return tree


def test_tools_that_write_the_image_are_read_from_their_tree(tmp_path: Path) -> None:
    tree = tools(tmp_path, erofs_utils="1.8.6-1", qemu_system="10", apt="3.0.4")
    assert packages.read_tools(tree) == [("apt", "3.0.4", "amd64"), ("erofs-utils", "1.8.6-1", "amd64")]
    with pytest.raises(ImageError, match="run 'make image' first"):
        packages.read_tools(tmp_path / "nowhere")


def test_other_tools_stop_the_build_with_both_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "tools.txt"
    monkeypatch.setattr(packages, "LOCK_OF_TOOLS", lock)
    tools(tmp_path / "out/tools", erofs_utils="1.8.7-1")
    lock.write_text(packages.write(packages.read_tools(build.tools(tmp_path)), lock))
    build.check_tools(tmp_path)
    lock.write_text(lock.read_text().replace("1.8.7", "1.8.6"))

    with pytest.raises(ImageError) as refused:
        build.check_tools(tmp_path)

    assert "differ from image/tools.txt:\n  erofs-utils (amd64): 1.8.6-1 -> 1.8.7-1" in str(refused.value)
    assert "python -m image lock" in str(refused.value)
    assert f"remove {tmp_path}/cache/tools.cache instead" in str(refused.value)


def test_each_tool_that_writes_the_image_is_in_the_committed_list() -> None:
    text = packages.LOCK_OF_TOOLS.read_text()
    listed = [tuple(line.split()) for line in text.splitlines() if not line.startswith("#")]

    assert packages.write(sorted(listed), packages.LOCK_OF_TOOLS) == text  # type: ignore[arg-type]  # lines of three words
    assert {one[0] for one in listed} == packages.TOOLS


def test_the_committed_list_is_in_the_form_that_is_written() -> None:
    text = packages.LOCK.read_text()
    listed = [tuple(line.split()) for line in text.splitlines() if not line.startswith("#")]

    assert packages.write(sorted(listed)) == text  # type: ignore[arg-type]  # lines of three words
    assert {"systemd", "linux-image-amd64", "python3.13"} <= {one[0] for one in listed}
