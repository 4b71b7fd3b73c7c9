"""The real parts, out of the settings: an import from a stick may do more than a run over the network (X1), and a
rollback needs neither.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ota.agent.compose import open_components
from ota.cli import main
from ota.errors import Expired, RolledBack
from ota.server.admin_client import AdminClient
from ota.settings import AgentSettings
from ota.strict_json import to_canonical_json
from ota.trust.floors import SCHEMA, Floors, checksum
from tests.ota.device import Device
from tests.ota.faulty_server import FaultyServer
from tests.ota.simulator import DAY, Repository


@pytest.mark.fault("X1", "T5")
def test_a_recently_expired_stick_is_accepted_if_an_operator_allows_it(tmp_path: Path) -> None:
    repository = Repository(now=time.time() - 5 * DAY)  # its timestamp expired two days ago
    repository.dump(tmp_path / "stick")
    (tmp_path / "root.json").write_bytes(repository.root())

    def refresh(days: float, url: str = "http://127.0.0.1:9/", *, stick: bool = True) -> None:
        settings = AgentSettings(
            url=(url,),
            root=tmp_path / "root.json",
            state_dir=tmp_path / "state",
            floor_copy=tmp_path / "copy.json",
            allow_expired_days=days,
        )
        open_components(settings, by_hand=True, directory=tmp_path / "stick" if stick else None).trust.refresh()

    for days in (0, 1.9):
        with pytest.raises(Expired, match=r"timestamp\.json is expired"):
            refresh(days)
    refresh(2.1)
    with FaultyServer(repository.files) as server, pytest.raises(Expired):
        refresh(2.1, server.url, stick=False)

    old = (tmp_path / "stick" / "metadata" / "timestamp.json").read_bytes()
    repository.publish()
    repository.dump(tmp_path / "stick")
    refresh(2.1)
    (tmp_path / "stick" / "metadata" / "timestamp.json").write_bytes(old)
    with pytest.raises(RolledBack):
        refresh(100)


@pytest.mark.fault("T4")
def test_a_time_that_a_stolen_timestamp_key_signed_ends_with_that_key(tmp_path: Path) -> None:
    repository = Repository(now=time.time())
    (tmp_path / "root.json").write_bytes(repository.root())
    settings = AgentSettings(
        root=tmp_path / "root.json", state_dir=tmp_path / "state", floor_copy=tmp_path / "copy.json"
    )

    def refresh() -> None:
        repository.dump(tmp_path / "stick")
        open_components(settings, by_hand=True, directory=tmp_path / "stick").trust.refresh()

    refresh()
    floors = Floors([tmp_path / "state/floors.json"])
    floors.issued += 13 * DAY
    floors.save()
    repository.publish_timestamp()
    with pytest.raises(Expired):
        refresh()
    repository.rotate("timestamp")
    repository.publish_root()
    repository.publish_timestamp()
    refresh()


@pytest.mark.fault("C1")
def test_a_rollback_needs_this_disk_and_edge_serve_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_OTA_CONFIG", "/nowhere")
    device = Device(tmp_path)
    for release in (15, 16):
        device.publish(release=release)
        device.run()
    body = {"schema": SCHEMA + 1}
    (tmp_path / "newer.json").write_bytes(to_canonical_json({"floors": body, "sha256": checksum(body)}))
    monkeypatch.setattr(AdminClient, "reload", lambda _, models, **more: device.server.reload(models, **more))
    flags = {
        "state_dir": device.layout.state_dir, "model_repository": device.repository,
        "url": "", "root": "/nowhere/root.json", "floor_copy": tmp_path / "newer.json",
        "ca_cert": "/nowhere/ca.pem", "pkcs11_module": "/nowhere/token.so", "rate_limit": 1,
    }  # fmt: skip
    texts = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    assert main(["rollback", "det", "--why", "it misses red parts", *texts]) == 0
    assert "det: release 15 serves\n" in capsys.readouterr().out
    assert (device.server.serving, device.journal().active) == ({"det": 15}, 15)
    assert device.run()["det"].release == 15
