"""Systems of devices at the publisher: what is published, rolled out, and copied; and the files that are refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ota.decide.rollout import choose
from ota.documents.device import DeviceDocument
from ota.documents.names import rollout_target
from ota.documents.rollout import read_rollout
from ota.documents.system import read_system
from ota.errors import Untrusted
from ota.publish.bundles import build
from tests.ota.publish.publisher import Publisher, device
from tests.ota.system.images import write_image

TARGET = "system/edge/base-x86_64.2.json"


@pytest.fixture
def with_role(publisher: Publisher) -> Publisher:
    """A publisher of systems with one key for each role."""
    publisher.init("--system", "--no-passphrase")
    return publisher


def test_a_device_trusts_a_published_system_and_its_rollout(with_role: Publisher) -> None:
    said = with_role.do("system", *write_image(with_role.base / "dist", 2), "--needs-version", 1)
    assert "edge 2 (base, x86_64)" in said
    with_role.do("rollout start", "plant", "system", 2, "prod=100", "--window", "02:00-05:00")
    trust = device(with_role, "dev", time.time())
    document = read_system(trust.document(TARGET, 10**6), TARGET)
    assert [one.path for one in document.files.values()] == ["edge_2.root", "edge_2.verity", "edge_2.efi"]
    assert (document.version, document.needs_version, document.profile) == (2, 1, "base")
    wish = read_rollout(trust.document(rollout_target("plant"), 10**6), "plant").system
    assert wish is not None
    assert (wish.want, wish.family, wish.window) == (2, "edge", "02:00-05:00")
    assert "edge 2 (base, x86_64)" in with_role.do("verify")


def test_a_large_root_is_stored_in_chunks(with_role: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHUNKED_BYTES", 1024 * 1024)
    monkeypatch.setattr(build, "CHUNK", 256 * 1024)
    with_role.do("system", *write_image(with_role.base / "dist", 2, blocks=8 * 64 + 1))
    trust = device(with_role, "dev", time.time())
    root = read_system(trust.document(TARGET, 10**6), TARGET).files["root"]
    assert (len(root.chunks), root.chunk_size) == (9, 256 * 1024)
    assert "every signature, document, and blob" in with_role.do("verify")


def test_an_old_repository_gets_the_role_with_two_of_three_keys(publisher: Publisher) -> None:
    publisher.init()
    files = write_image(publisher.base / "dist", 2)
    assert "publish role system" in publisher.refused("system", *files)
    publisher.do("role", "system")
    assert sorted(one.stem for one in (publisher.dir / "keys").glob("system*")) == ["system-1", "system-2", "system-3"]
    publisher.do("system", *files)
    metadata = json.loads((publisher.repository / "metadata" / "2.system.json").read_text())
    assert len(metadata["signatures"]) == 2
    assert "already exists" in publisher.refused("role", "system")


def test_the_second_signature_comes_from_another_machine(publisher: Publisher) -> None:
    publisher.init()
    for name in ("alice", "bob", "carol"):
        publisher.run("key", name, "--out", publisher.base)
    keys = [
        flag for name in ("alice", "bob", "carol") for flag in ("--public-key", publisher.base / f"{name}.pub.json")
    ]
    assert "system: 2 more of" in publisher.do("role", "system", *keys)


def test_versions_rise(with_role: Publisher) -> None:
    with_role.do("system", *write_image(with_role.base / "dist", 2))
    assert "versions rise" in with_role.refused("system", *write_image(with_role.base / "old", 1))
    assert "versions rise" in with_role.refused("system", *write_image(with_role.base / "dist", 2))
    with_role.do("system", *write_image(with_role.base / "gpu", 1, profile="nvidia"))
    with_role.do("system", *write_image(with_role.base / "arm", 1, arch="aarch64"))


def test_an_image_that_names_no_profile_or_no_form_of_data_is_for_no_device(with_role: Publisher) -> None:
    old = write_image(with_role.base / "old", 2, profile="")
    assert "names the profile '' (VARIANT_ID)" in with_role.refused("system", *old)
    older = write_image(with_role.base / "older", 2, schema=0)
    assert "the form '' of the data partition (EDGE_STATE_SCHEMA)" in with_role.refused("system", *older)


def test_the_form_of_the_data_comes_from_the_image(with_role: Publisher) -> None:
    files = write_image(with_role.base / "dist", 2, schema=3)
    said = with_role.refused("system", *files, "--state-schema", 2)
    assert "--state-schema is 2, and edge 2 writes data of the form 3" in said
    with_role.do("system", *files, "--state-schema", 3)
    document = next((with_role.repository / "targets/system/edge").glob("*base-x86_64.2.json"))
    assert json.loads(document.read_text())["state_schema"] == 3


def test_files_of_different_builds_are_refused(with_role: Publisher) -> None:
    root, verity, uki = write_image(with_role.base / "dist", 2)
    other_root, other_verity, other_uki = write_image(with_role.base / "other", 3)
    for files in ((other_root, verity, uki), (root, other_verity, uki), (root, verity, other_uki)):
        assert "root hash" in with_role.refused("system", *files)
    assert "there is no uki" in with_role.refused("system", root, verity)
    assert "are both a root" in with_role.refused("system", root, other_root, verity, uki)
    assert not list((with_role.repository / "blobs").rglob("*"))


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (0, lambda data: data[:-1] + b"!", "root hash"),
        (0, lambda data: data[:-4096], "is cut off"),
        (0, lambda data: b"", "is empty"),
        (1, lambda data: data[:50], "is cut off"),
        (1, lambda data: data.replace(b"sha256", b"sha512", 1), "another format"),
        (1, lambda data: data[:8192], "is cut off"),
        (1, lambda data: data[:8192] + bytes(len(data) - 8192), "is not the hash tree of"),
        (2, lambda data: data[:70], "is cut off"),
        (2, lambda data: data[:-1], "is cut off: its section .initrd"),
        (2, lambda data: data[:-701], "is cut off: its section .linux"),
        (2, lambda data: data.replace(b".initrd", b".others"), "has no section .initrd"),
        (2, lambda data: data.replace(b".linux", b".other"), "has no section .linux"),
        (2, lambda data: data.replace(b"\x64\x86", b"\x64\x50", 1), "no kernel for x86_64 or aarch64"),
        (2, lambda data: data.replace(b"roothash=", b"rootless="), "no roothash="),
        (2, lambda data: data.replace(b'IMAGE_VERSION="2"', b'IMAGE_VERSION="b"'), "IMAGE_VERSION 'b'"),
    ],
)
def test_a_damaged_image_is_refused(with_role: Publisher, number: int, change: object, said: str) -> None:
    files = write_image(with_role.base / "dist", 2)
    files[number].write_bytes(change(files[number].read_bytes()))  # type: ignore[operator]  # of the table above
    assert said in with_role.refused("system", *files)


@pytest.mark.parametrize(
    "words",
    ["", "=on", "=1", "=nothing", "=no systemd.import_credentials", "=no systemd.import-credentials=1"],
)
def test_a_kernel_that_takes_credentials_from_firmware_is_refused(with_role: Publisher, words: str) -> None:
    """So does one without the word, by systemd's default; of several words the last one counts."""
    files = write_image(with_role.base / "dist", 2, words=words and f"systemd.import_credentials{words} quiet")
    assert "takes credentials from firmware" in with_role.refused("system", *files)


def test_a_rollout_needs_a_published_version(with_role: Publisher) -> None:
    assert "no system is published" in with_role.refused("rollout start", "plant", "system", 2, "prod=100")
    with_role.do("system", *write_image(with_role.base / "dist", 2))
    assert "edge 3 is not published (published: 2)" in with_role.refused(
        "rollout start", "plant", "system", 3, "prod=100"
    )
    with_role.do("rollout start", "plant", "system", 2, "prod=5")
    with_role.do("rollout step", "plant", "system", "prod=50")
    with_role.do("rollout pin", "plant", "system", "dev-1", 2)
    with_role.do("rollout halt", "plant", "system")
    with_role.do("rollout deny", "plant", "system", 2)
    assert "system 2: prod=50; HALTED; denied 2; dev-1 pinned to 2" in with_role.do("rollout show", "plant")


def test_a_stick_has_the_system_that_the_fleet_wants(with_role: Publisher) -> None:
    with_role.do("system", *write_image(with_role.base / "dist", 2))
    with_role.do("system", *write_image(with_role.base / "dist", 3))
    with_role.do("rollout start", "plant", "system", 3, "prod=100")
    stick = with_role.base / "stick"
    assert "edge 3 (base, x86_64); 3 blobs" in with_role.do("export", stick, "--fleet", "plant")
    said = with_role.run(
        "verify",
        "--dir",
        with_role.dir,
        "--repository",
        stick,
        "--root",
        with_role.dir / "root.json",
        "--fleet",
        "plant",
    )
    assert "releases: edge 3 (base, x86_64)" in said


def test_a_stick_has_the_system_before_for_rings_that_the_rollout_has_not_reached(with_role: Publisher) -> None:
    for version in (2, 3, 4):
        with_role.do("system", *write_image(with_role.base / "dist", version))
        with_role.do("rollout start", "plant", "system", version, "lab=100", f"prod={0 if version == 4 else 100}")
    wish = read_rollout(device(with_role, "dev", time.time()).document(rollout_target("plant"), 10**6), "plant").system
    assert wish is not None
    assert choose(wish, DeviceDocument("dev", "plant", "prod"), 2, time.time()).release == 3
    said = with_role.do("export", with_role.base / "stick", "--fleet", "plant")
    assert "edge 3 (base, x86_64), edge 4 (base, x86_64); 6 blobs" in said


def test_no_bundle_has_the_name_of_the_system(with_role: Publisher) -> None:
    model = with_role.model("system")
    with_role.run("bundle", "system", "--release", 1, "--model", model, status=2)
    assert "the name of the devices' system" in with_role.err
    document = {"schema": 1, "fleet": "plant", "serial": 1, "models": {"system": {"family": "det", "want": 1}}}
    with pytest.raises(Untrusted, match="the name of the devices' system"):
        read_rollout(json.dumps(document).encode(), "plant")


def test_the_image_files_of_the_tests_are_read_by_content(with_role: Publisher, tmp_path: Path) -> None:
    files = write_image(tmp_path / "dist", 2)
    renamed = [one.rename(one.with_name(f"{number}.raw")) for number, one in enumerate(files)]
    with_role.do("system", *reversed(renamed))
