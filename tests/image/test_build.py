"""The decisions of a build, its files in dist/, and what it says where it cannot build."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deploy.version import Build
from image import artifacts, build, machine
from image.__main__ import main
from image.errors import ImageError
from tests.ota.system.images import uki

from .test_artifacts import COMMAND_LINE, KERNEL, RELEASE, superblock


def test_the_number_of_a_system_is_the_number_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGE_VERSION", raising=False)
    monkeypatch.setattr(build, "identify", lambda: Build("0.1.0+git484.1cac580.modified", 1700000000))

    assert build.wish("base", Path("dist"), fresh=False).system == "edge_484"
    monkeypatch.setenv("IMAGE_VERSION", "500")
    assert build.wish("base", Path("dist"), fresh=False).system == "edge_500"


def test_an_image_for_another_processor_has_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("IMAGE_VERSION", raising=False)
    monkeypatch.setattr(build, "identify", lambda: Build("0.1.0+git484.1cac580", 1700000000))
    asked = build.wish("base", Path("dist"), fresh=False, arch="arm64")

    assert asked.name == "edge-serve_0.1.0+git484.1cac580_base-arm64"
    assert "--architecture=arm64" in build.arguments(asked, tmp_path)


def test_programs_of_another_processor_need_an_emulator_that_other_roots_reach(tmp_path: Path) -> None:
    machine.check_processor(platform.machine(), tmp_path)
    with pytest.raises(ImageError, match=r"programs for s390x do not run .* apt-get install qemu-user-static"):
        machine.check_processor("s390x", tmp_path)
    emulator = tmp_path / "qemu-s390x"
    for registered in ("disabled\nflags: F\n", "enabled\nflags: \noffset 0\n"):
        emulator.write_text(registered)
        with pytest.raises(ImageError):
            machine.check_processor("s390x", tmp_path)
    emulator.write_text("enabled\ninterpreter /usr/bin/qemu-s390x-static\nflags: OCPF\n")
    machine.check_processor("s390x", tmp_path)


@pytest.mark.parametrize("number", ["0", "-1", "1.2", "next", "9999999999"])
def test_a_number_that_cannot_rise_is_refused(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv("IMAGE_VERSION", number)
    monkeypatch.setattr(build, "identify", lambda: Build("0.1.0+git484.1cac580", 1700000000))
    with pytest.raises(ImageError, match=f"IMAGE_VERSION is '{number}'"):
        build.wish("base", Path("dist"), fresh=False)


def test_sources_without_commits_need_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGE_VERSION", raising=False)
    monkeypatch.setattr(build, "identify", lambda: Build("0.1.0", 1700000000))
    with pytest.raises(ImageError, match="set IMAGE_VERSION"):
        build.wish("base", Path("dist"), fresh=False)


def test_mkosi_gets_the_version_and_the_date_of_the_commit(tmp_path: Path) -> None:
    asked = build.Wish(Build("0.1.0+git7.abc", 1700000000), 7, "nvidia", tmp_path, fresh=True)
    arguments = build.arguments(asked, tmp_path)

    assert {"--image-version=7", "--source-date-epoch=1700000000", "--profile=nvidia", "-ff"} <= set(arguments)
    assert arguments[-1] == "build"


def test_all_missing_requirements_of_a_build_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGE_IMAGE_CACHE", str(tmp_path / "file/folder"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "zstd" else f"/usr/bin/{name}")

    assert main(["check"]) == 1
    told = capsys.readouterr().err
    for words in ("sudo make image", "apt-get install zstd", "set EDGE_IMAGE_CACHE"):
        assert words in told


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 30))
    with pytest.raises(ImageError, match=r"1\.0 GiB free, an image needs 8"):
        machine.check(tmp_path)


def test_a_second_build_waits_for_nothing_and_says_so(tmp_path: Path) -> None:
    with machine.only_build(tmp_path), pytest.raises(ImageError, match="another build"), machine.only_build(tmp_path):
        pass


def test_a_list_is_accepted_after_a_build_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_IMAGE_CACHE", str(tmp_path))
    assert main(["lock"]) == 1


def test_a_version_can_be_built_again_with_another_content(tmp_path: Path) -> None:
    earlier = tmp_path / "out/edge_7.root-x86-64.00ff.raw"
    earlier.parent.mkdir()
    earlier.touch()
    (tmp_path / "out/initrd.manifest").touch()

    build.remove_earlier(tmp_path)

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["initrd.manifest"]


def test_dist_has_the_disk_the_update_and_their_documents(tmp_path: Path) -> None:
    asked, package = outputs(tmp_path)
    files = build._finish(asked, tmp_path / "out/edge_7.raw", package, [("libc6", "2.41", "amd64")])
    names = [path.name for path in files]
    facts = json.loads((tmp_path / "dist/edge_7.build.json").read_text())

    assert names[0] == "edge-serve_0.1.0+git7.abc_base.img.zst"
    assert {"edge_7.root", "edge_7.verity", "edge_7.efi", "SHA256SUMS"} <= set(names)
    assert [name for name in names if name.endswith(".efi")] == ["edge_7.efi"], "tests boot the kernel that is shipped"
    assert (tmp_path / "dist/edge_7.root").stat().st_size == 2 * 4096, "without the empty end of the slot"
    assert facts["root_hash"] == "ab" * 32
    assert facts["state_schema"] == 1
    assert facts["files"]["verity"]["length"] == 2 * 4096
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)


def test_builds_of_several_profiles_and_processors_share_dist(tmp_path: Path) -> None:
    asked, package = outputs(tmp_path)
    for profile, arch in (("base", "x86-64"), ("nvidia", "x86-64"), ("base", "arm64")):
        kernel = uki(RELEASE.replace("=base", f"={profile}"), COMMAND_LINE)
        (tmp_path / "out/edge_7.efi").write_bytes(kernel)
        for path in (tmp_path / "out").glob("edge_7.root-*"):
            path.rename(path.with_name(path.name.replace("x86-64", arch)))
        build._finish(replace(asked, profile=profile, arch=arch), tmp_path / "out/edge_7.raw", package, [])
    names = sorted(path.name for path in (tmp_path / "dist").iterdir())

    for stem, profile in (("edge_7", "base"), ("edge_7_nvidia", "nvidia"), ("edge_7_base-arm64", "base")):
        assert {f"{stem}.{ending}" for ending in ("root", "verity", "efi", "build.json")} <= set(names)
        assert json.loads((tmp_path / f"dist/{stem}.build.json").read_text())["profile"] == profile
    sums = (tmp_path / "dist/SHA256SUMS").read_text()
    assert [line.partition("  ")[2] for line in sums.splitlines()] == [name for name in names if name != "SHA256SUMS"]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)


def test_builds_with_work_folders_of_their_own_write_dist_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, package = outputs(tmp_path)
    finish = partial(build._finish, asked, tmp_path / "out/edge_7.raw", package, [])
    copy, order, second, second_copies = artifacts.copy_start, [], threading.Thread(target=finish), threading.Event()

    def copy_beside_a_second_build(source: Path, target: Path, size: int) -> None:
        order.append(threading.current_thread() is second)
        if order[-1]:
            second_copies.set()
        elif len(order) == 1:
            second.start()
            second_copies.wait(0.2)
        copy(source, target, size)

    monkeypatch.setattr(artifacts, "copy_start", copy_beside_a_second_build)
    finish()
    second.join()
    assert order == [False, False, True, True]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)
    assert not (tmp_path / "dist/.unfinished").exists()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"VARIANT_ID=base\n", b"VARIANT_ID=nvid\n", "VARIANT_ID 'nvid', expected 'base'"),
        (b"VARIANT_ID=base\n", b"NOTHING_ID=base\n"[:16], "VARIANT_ID '', expected 'base'"),
        (b'IMAGE_VERSION="7"', b'IMAGE_VERSION="8"', "IMAGE_VERSION '8', expected '7'"),
        (b"STATE_SCHEMA=1", b"STATE_SCHEMA=2", "EDGE_STATE_SCHEMA '2', expected '1'"),
    ],
    ids=["other-profile", "no-profile", "other-version", "other-state"],
)
def test_a_kernel_of_another_profile_or_version_is_not_published(
    tmp_path: Path, before: bytes, after: bytes, told: str
) -> None:
    asked, package = outputs(tmp_path)
    (tmp_path / "out/edge_7.efi").write_bytes(KERNEL.replace(before, after))

    with pytest.raises(ImageError, match=told):
        build._finish(asked, tmp_path / "out/edge_7.raw", package, [])
    assert not list((tmp_path / "dist").iterdir())


def test_a_build_that_is_cut_off_leaves_the_files_of_the_one_before_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, package = outputs(tmp_path)
    finish = partial(build._finish, asked, tmp_path / "out/edge_7.raw", package, [])
    names = sorted(path.name for path in finish())

    def cut_off(source: Path, target: Path, size: int) -> None:
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(artifacts, "copy_start", cut_off)
        with pytest.raises(KeyboardInterrupt):
            finish()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == names
    (tmp_path / "dist/.unfinished").mkdir()  # as a build leaves it that is killed
    (tmp_path / "dist/.unfinished/edge_6.root").touch()
    finish()
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == names


def test_a_disk_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(4096))
    with pytest.raises(ImageError, match="cannot be written"):
        build._compress(tmp_path / "raw", tmp_path / "nowhere/disk.img.zst")


def outputs(folder: Path) -> tuple[build.Wish, Path]:
    """Write the files that mkosi would leave, and a package with the documents that the build reads."""
    out = folder / "out"
    out.mkdir()
    (out / "edge_7.raw").write_bytes(bytes(1 << 20))
    (out / "edge_7.efi").write_bytes(KERNEL)
    (out / "edge_7.root-x86-64.aa.raw").write_bytes(bytes(10 * 4096))
    (out / "edge_7.root-x86-64-verity.bb.raw").write_bytes(superblock(2).ljust(8 * 4096, b"\0"))
    (out / "licences.txt").write_text("==== libc6 ====\nLicense: LGPL\n")
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share/doc/edge-serve").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: edge-serve\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: x\n"
    )
    (tree / "usr/share/doc/edge-serve/copyright").write_text("MIT\n")
    component = {"name": "edge-serve", "version": "1", "bom-ref": "edge-serve", "type": "application"}
    document = {"$schema": "s", "specVersion": "1.6", "metadata": {"timestamp": "t", "component": component}}
    (tree / "usr/share/doc/edge-serve/sbom.cdx.json").write_text(
        json.dumps({**document, "components": [], "dependencies": []})
    )
    package = folder / "edge-serve_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(package)], check=True, stdout=subprocess.DEVNULL)
    return build.Wish(Build("0.1.0+git7.abc", 1700000000), 7, "base", folder / "dist"), package
