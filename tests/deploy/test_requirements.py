"""The lock files: complete, with hashes, and without an index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.debian.releases import GPU_RELEASE, GPU_WHEELS, RELEASES
from deploy.requirements import BUILD, FOLDER, Locked, joined, lock_file, read, write

ROOT = Path(__file__).parents[2]
ENTRIES = [Locked("b", "1.0", ("a" * 64, "b" * 64)), Locked("a", "2.0rc1", ("c" * 64,))]


def item(name: str, version: str, digest: str, url: str = "") -> dict[str, Any]:
    """Return a distribution in the form of pip's report."""
    hashes = {"hashes": {"sha256": digest}} if digest else {}
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": url, "archive_info": hashes}}


@pytest.mark.parametrize("name", RELEASES)
def test_every_release_has_locked_wheels_for_both_processors(name: str) -> None:
    entries = {entry.name: entry for entry in read(lock_file(RELEASES[name].python).read_text())}

    assert {"numpy", "onnxruntime", "protobuf", "orjson", "hpack"} <= entries.keys()
    for compiled in ("numpy", "onnxruntime", "protobuf", "orjson"):
        assert len(entries[compiled].hashes) == 2, compiled
    assert "edge-serve" not in entries


def test_the_package_for_gpus_has_one_onnxruntime_and_libraries_of_cuda_12() -> None:
    names = {entry.name for entry in read(lock_file(RELEASES[GPU_RELEASE].python, gpu=True).read_text())}

    assert {
        "onnxruntime-gpu",
        "nvidia-cudnn-cu12",
        "nvidia-cublas-cu12",
        "cuda-bindings",
        "nvidia-ml-py",
        "tuf",
    } <= names
    assert "onnxruntime" not in names
    assert not {name for name in names if name.endswith("-cu13")}


@pytest.mark.parametrize("name", ["jammy", "noble"])
def test_packages_for_jetpack_call_cuda_with_bindings_that_its_drivers_serve(name: str) -> None:
    (bindings,) = [one for one in read(lock_file(RELEASES[name].python).read_text()) if one.name == "cuda-bindings"]

    assert bindings.version.startswith("12.")
    assert len(bindings.hashes) == 2


def test_bindings_of_cuda_release_the_gil_while_a_thread_waits() -> None:
    """They do so from 12.9.1 (release notes); before, a thread that waits for the device stops its worker."""
    extras = re.findall(r'"(cuda-bindings[^"]*)"', (ROOT / "pyproject.toml").read_text())
    wheels = [one for one in (*RELEASES["jammy"].wheels, *GPU_WHEELS) if one.startswith("cuda-bindings")]

    assert len(extras) == 3
    assert [one.partition(",")[0] for one in (*extras, *wheels)] == ["cuda-bindings>=12.9.1"] * 5


def test_lock_files_name_no_index_and_every_line_is_an_entry() -> None:
    for path in [*FOLDER.glob("requirements-*.txt")]:
        text = path.read_text()
        assert "://" not in text
        assert "--index" not in text
        entries = read(text)
        assert text == write(text.splitlines()[0].removeprefix("# "), entries), path
        assert re.fullmatch(r"# .*`make lock`.*", text.splitlines()[0])
    assert [entry.name for entry in read(BUILD.read_text())] == ["setuptools"]


def test_lock_file_round_trip() -> None:
    text = write("About", ENTRIES)

    assert text.startswith("# About\na==2.0rc1 \\\n    --hash=sha256:ccc")
    assert read(text) == sorted(ENTRIES, key=lambda entry: entry.name)


def test_reports_of_two_processors_become_one_list(tmp_path: Path) -> None:
    wheel = tmp_path / "c d.whl"
    wheel.write_bytes(b"")
    pc = [
        item("Edge_Serve", "0", "0" * 64),
        item("b", "1", "b" * 64),
        item("C.d", "1", "", f"file://{tmp_path}/c%20d.whl"),
    ]
    arm = [item("b", "1", "a" * 64), item("C.d", "1", "d" * 64)]

    found = joined([{"install": pc}, {"install": arm}])

    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert found == [Locked("b", "1", ("b" * 64, "a" * 64)), Locked("c-d", "1", (empty, "d" * 64))]
    assert joined([{"install": pc}, {"install": arm}], without={"b"}) == found[1:]


def test_different_versions_for_processors_are_refused() -> None:
    older = {"install": [item("b", "1", "a" * 64)]}
    newer = {"install": [item("b", "2", "a" * 64)]}

    with pytest.raises(ValueError, match="b: 1, 2 for 2 of 2 processors, expected one version for all"):
        joined([older, newer])
    with pytest.raises(ValueError, match="b: 1 for 1 of 2 processors"):
        joined([older, {"install": []}])
