"""The device's key on a software token (SoftHSM2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ota.agent.device.identity import open_identity, public_identity
from ota.documents.report import Report, encode_payload, read_report, seal
from ota.errors import StoreError, Untrusted, UsageError
from ota.publish.reports.collect import verify_report
from ota.settings import AgentSettings
from tests.ota.conftest import PIN


@pytest.fixture
def settings(tmp_path: Path, softhsm: str) -> AgentSettings:
    (tmp_path / "pin").write_text(f"{PIN}\n")
    return AgentSettings(pkcs11_module=softhsm, pkcs11_token="device", pkcs11_pin_file=tmp_path / "pin")


def test_the_key_is_made_once_on_the_token_and_signs_reports(settings: AgentSettings, tmp_path: Path) -> None:
    one = open_identity(settings, tmp_path / "identity")
    again = open_identity(settings, tmp_path / "identity")
    assert (one.fingerprint, one.public_pem) == (again.fingerprint, again.public_pem)
    assert public_identity(tmp_path / "identity")[0] == one.fingerprint
    assert [path.name for path in (tmp_path / "identity").iterdir()] == ["device.pub"], "no private key on the disk"
    payload = encode_payload(Report("dev-1", "plant", "prod", 1, 1, "nonce"))
    sent = seal(payload, again.signer.sign(payload), one.public_pem.decode())
    assert verify_report(read_report(sent), "").fingerprint == one.fingerprint
    with pytest.raises(Untrusted, match="the signature does not fit"):
        verify_report(read_report(sent.replace(b"plant", b"plans")), "")


def test_wrong_settings_of_a_token_are_named(settings: AgentSettings, tmp_path: Path) -> None:
    for wrong, error, match in (
        (replace(settings, pkcs11_module="/nowhere.so"), UsageError, r"PKCS11_MODULE: /nowhere\.so does not exist"),
        (replace(settings, pkcs11_token="other"), StoreError, "the token 'other' refuses: .*check PKCS11_TOKEN"),
        (replace(settings, pkcs11_pin_file=tmp_path / "none"), UsageError, "PKCS11_PIN_FILE: .*none does not exist"),
    ):
        with pytest.raises(error, match=match):
            open_identity(wrong, tmp_path / "identity")
    (tmp_path / "pin").write_text("9999")
    with pytest.raises(StoreError, match=r"the token 'device' refuses: .*and the PIN"):
        open_identity(settings, tmp_path / "identity")
