"""The identity of a device, its document, and its facts."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ota.agent.components import TrustedMetadata
from ota.agent.device.facts import ThisDevice
from ota.agent.device.identity import default_name, load_identity, public_identity
from ota.errors import NotInRepository, ServerError, StoreError, Untrusted, UsageError
from ota.settings import AgentSettings
from ota.strict_json import to_canonical_json
from tests.ota.server.units import accepting

PROGRAM = str(Path(sys.executable).with_name("edge-serve"))


class FakeTrust:
    """Verified documents; all else of `parts.Trust` is not asked for here."""

    def __init__(self, documents: dict[str, bytes]) -> None:
        self.documents = documents

    def document(self, path: str, most_bytes: int) -> bytes:
        if path not in self.documents:
            raise NotInRepository(path)
        return self.documents[path]


def trust(documents: dict[str, bytes]) -> TrustedMetadata:
    return cast(TrustedMetadata, FakeTrust(documents))


def settings(folder: Path, **members: Any) -> AgentSettings:
    return replace(
        AgentSettings(state_dir=folder, device_file=folder / "device.json", edge_serve=PROGRAM, build_socket=""),
        **members,
    )


def document(device: str, **members: Any) -> bytes:
    return to_canonical_json({"schema": 1, "device": device, "fleet": "plant", "ring": "prod", **members})


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    one = load_identity(tmp_path / "identity")
    assert stat.S_IMODE(os.stat(tmp_path / "identity" / "key.pem").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "identity").st_mode) == 0o700
    again = load_identity(tmp_path / "identity")
    assert (again.fingerprint, again.public_pem) == (one.fingerprint, one.public_pem)
    assert (tmp_path / "identity" / "device.pub").read_bytes() == one.public_pem
    assert public_identity(tmp_path / "identity") == (one.fingerprint, tmp_path / "identity" / "device.pub")
    assert public_identity(tmp_path)[0] == ""
    assert one.signer.sign(b"x") == again.signer.sign(b"x") != one.signer.sign(b"y")
    assert default_name(one.fingerprint) == f"dev-{one.fingerprint[:16]}"


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_broken_key_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(StoreError, match=r"is not an Ed25519 key .* restore the right file"):
        load_identity(tmp_path)
    assert (tmp_path / "key.pem").read_bytes() == content


def test_the_name_comes_from_the_settings_the_file_or_the_key(tmp_path: Path) -> None:
    identity = load_identity(tmp_path / "identity")
    assert ThisDevice(settings(tmp_path), identity).name == default_name(identity.fingerprint)
    (tmp_path / "device.json").write_bytes(document("dev-0042"))
    assert ThisDevice(settings(tmp_path), identity).name == "dev-0042"
    assert ThisDevice(settings(tmp_path, device="cart-7"), identity).name == "cart-7"
    (tmp_path / "device.json").write_text("[]")
    with pytest.raises(UsageError, match="is not a device document"):
        _ = ThisDevice(settings(tmp_path), identity).name


@pytest.mark.fault("R4")
def test_a_document_of_another_key_or_none_is_one_clear_error(tmp_path: Path) -> None:
    identity = load_identity(tmp_path / "identity")
    subject = ThisDevice(settings(tmp_path, device="dev-1"), identity)
    good = trust({"devices/dev-1.json": document("dev-1", fingerprint=identity.fingerprint, labels={"site": "a"})})
    assert (subject.document(good).fleet, subject.document(good).labels) == ("plant", {"site": "a"})
    with pytest.raises(Untrusted, match="two devices have this name"):
        subject.document(trust({"devices/dev-1.json": document("dev-1", fingerprint="0" * 64)}))
    with pytest.raises(Untrusted, match="is that of dev-2"):
        subject.document(trust({"devices/dev-1.json": document("dev-2")}))
    with pytest.raises(
        NotInRepository, match=rf"does not know this device: dev-1, key {identity.fingerprint}.*device add dev-1"
    ):
        subject.document(trust({}))


def test_facts_are_those_of_the_real_doctor_and_the_labels_of_the_device(tmp_path: Path) -> None:
    identity = load_identity(tmp_path / "identity")
    subject = ThisDevice(settings(tmp_path, device="dev-1"), identity)
    subject.document(trust({"devices/dev-1.json": document("dev-1", labels={"site": "a"})}))
    facts = subject.facts()
    assert (facts["arch"], facts["label.site"]) == (os.uname().machine, "a")
    assert facts.keys() >= {"edge_ota", "edge_serve", "onnxruntime", "memory_bytes"}
    assert len(subject.fingerprint()) == 16


@pytest.mark.fault("R6")
def test_the_fingerprint_is_the_same_before_and_after_the_document_is_read(tmp_path: Path) -> None:
    """An operator's rollback reads no document, and the next run does."""
    subject = ThisDevice(settings(tmp_path, device="dev-1"), load_identity(tmp_path / "identity"))
    before = subject.fingerprint()
    subject.document(trust({"devices/dev-1.json": document("dev-1", labels={"site": "a"})}))
    assert subject.facts()["label.site"] == "a"
    assert subject.fingerprint() == before != ""


def test_a_doctor_without_facts_is_one_clear_error(tmp_path: Path) -> None:
    identity = load_identity(tmp_path / "identity")
    subject = ThisDevice(settings(tmp_path, edge_serve="/bin/echo"), identity)
    with pytest.raises(ServerError, match="no facts in what it printed; is edge-serve too old"):
        subject.facts()
    assert subject.fingerprint() == ""


def test_a_doctor_that_hangs_leaves_the_fingerprint_unknown(tmp_path: Path) -> None:
    program = tmp_path / "slow"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    subject = ThisDevice(settings(tmp_path, edge_serve=str(program)), load_identity(tmp_path / "identity"))
    assert subject.fingerprint(0.2) == ""


def test_the_unit_for_builds_finds_the_facts(tmp_path: Path) -> None:
    """It sees the GPUs, and the agent does not. Facts need no state directory, and builds do."""
    path = tmp_path / "build.sock"
    unit = [sys.executable, "-m", "ota", "run-build", "--edge-serve", PROGRAM, "--state-dir", str(tmp_path)]
    subject = ThisDevice(settings(tmp_path, edge_serve="/bin/false", build_socket=str(path)), load_identity(tmp_path))
    with accepting(path, ["env", "-u", "STATE_DIRECTORY", *unit]):
        facts = subject.facts()
    assert facts["arch"] == os.uname().machine
    assert facts.keys() >= {"edge_ota", "edge_serve", "memory_bytes"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('{"ok": false, "error": "doctor did not end"}', "the facts of this device are unknown: doctor did not end"),
        ('{"ok": true, "facts": ["sm"]}', "has no facts in its answer: see the journal of edge-ota-build@.service"),
    ],
)
def test_a_unit_without_facts_is_one_clear_error(tmp_path: Path, answer: str, text: str) -> None:
    path = tmp_path / "build.sock"
    subject = ThisDevice(settings(tmp_path, build_socket=str(path)), load_identity(tmp_path))
    with (
        accepting(path, ["sh", "-c", 'cat > /dev/null; printf %s "$1"', "-", answer]),
        pytest.raises(ServerError, match=text),
    ):
        subject.facts()


def test_memory_beside_what_runs(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
    subject = ThisDevice(settings(tmp_path), load_identity(tmp_path), tmp_path)
    assert [subject.fits_beside(size) for size in (0, 1 << 20, (1 << 20) + 1)] == [True, True, False]
