"""The forged system of test_ota_update is good by its own keys: a device refuses it for its signature alone."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from ota.cli import main
from tests.ota.publish.publisher import PASSPHRASE, Publisher
from tests.ota.system.images import write_image
from tests.ota.system.root_side import ARCH, ImageDevice
from tests.system.image.forged import forge


@pytest.mark.slow
def test_a_forged_system_is_refused_for_its_signature_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    paths = write_image(tmp_path / "files", 2, arch=ARCH)
    forged = forge(tmp_path / "forger", paths, 2, ARCH)
    state = tmp_path / "state"
    for name, data in [*forged.files.items(), *((f"system/2/{one.name}", one.read_bytes()) for one in paths)]:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(data)
    owner = Publisher(tmp_path / "owner")
    owner.base.mkdir()
    owner.init("--family", "vision")

    def verify(root: bytes, device: str) -> tuple[int, str]:
        (tmp_path / "root.json").write_bytes(root)
        flags = {"state-dir": state, "root": tmp_path / "root.json", "system-root": ImageDevice(tmp_path / device).root}
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(["verify-system", "2", "--config=/dev/null", *(f"--{k}={v}" for k, v in flags.items())])
        return status, said.getvalue()

    assert verify(forged.root, "forger's device")[0] == 0
    status, said = verify((owner.dir / "root.json").read_bytes(), "device")
    assert status == 4
    assert "was signed by 0/" in said, said
