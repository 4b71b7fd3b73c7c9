"""A device and the key of the role rollout, real metadata throughout: an old document, and one by a thief."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.agent.rollout import FRESH_SECONDS
from ota.decide.probation import ProbationVerdict
from ota.documents.names import floor_target, manifest_target, rollout_target
from ota.errors import FetchError, NotInRepository, OtaError, RolledBack, TrialFailed, Unsuitable
from ota.store.journal import Journal
from ota.trust.clock_floor import FlooredClock
from ota.trust.expiry import ExpiryCheckedTrust
from ota.trust.floors import Floors
from tests.ota import simulator
from tests.ota.bundles import files_of, manifest_bytes, sha256
from tests.ota.clock import FakeClock
from tests.ota.device import Device


class Attacked(Device):
    """A device that verifies real metadata, and the repository with the keys that sign it.

    `want` signs with the key of rollout alone, as its thief can; `sign` with that of models.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.clock = FakeClock(simulator.NOW)
        self.online = simulator.Repository(("vision",))
        self.root_bytes = self.online.root()
        self.places = (root / "floors.json", root / "other" / "floors.json")

    def renew(self) -> None:
        """Begin another run: nothing is remembered but the disk."""
        floors = Floors(self.places)
        clock = FlooredClock(self.clock, floors, self.clock.now())
        self.trust = ExpiryCheckedTrust(  # type: ignore[assignment]  # the real one in place of the fake
            self.layout.metadata, self.root_bytes, self.online, floors, clock, certain=True
        )

    def sign(self, release: int, **members: object) -> None:
        """Sign a release with the key of its family."""
        self.fetcher.blobs.update((sha256(data), data) for data in files_of("det", release).values())
        self.online.add(manifest_target("vision", "det", release), manifest_bytes("det", release, None, **members))
        self.online.publish("models-vision")

    def roll(self, release: int, serial: int, **members: object) -> None:
        """Sign a rollout document with the key of rollout."""
        wish = {"family": "vision", "want": release, "steps": [{"ring": "prod", "percent": 100}], **members}
        document = {"schema": 1, "fleet": "plant", "serial": serial, "models": {"det": wish}}
        self.online.add_document(rollout_target("plant"), document)
        self.online.publish("rollout")

    def apply(self) -> int:
        """Run the line as a new process; the release that serves."""
        self.renew()
        return self.run()["det"].release


@pytest.fixture
def device(tmp_path: Path) -> Attacked:
    """A device that serves release 17, and has seen serial 5."""
    found = Attacked(tmp_path)
    found.sign(16)
    found.sign(17)
    found.roll(16, 4)
    assert found.apply() == 16
    found.roll(17, 5)
    assert found.apply() == 17
    return found


def refused(device: Attacked, error: type[OtaError], match: str, release: int = 17) -> None:
    with pytest.raises(error, match=match):
        device.apply()
    assert device.server.serving == {"det": release}


@pytest.mark.fault("R2")
def test_a_lower_serial_is_refused_until_a_newer_one_comes(device: Attacked) -> None:
    device.roll(16, 4)
    refused(device, RolledBack, "serial/plant is 4, and this device has seen 5")
    device.roll(16, 5)
    assert device.apply() == 16, "an older release by a serial that does not go back is a rollback of the operator"
    device.roll(17, 6)
    assert device.apply() == 17


@pytest.mark.fault("R2")
def test_a_lower_serial_is_refused_after_one_copy_of_the_floors_was_restored(device: Attacked) -> None:
    old = device.places[0].read_bytes()
    device.roll(17, 9)
    device.apply()
    for place in device.places:
        newer = place.read_bytes()
        place.write_bytes(old)
        device.roll(16, 8)
        refused(device, RolledBack, "serial/plant is 8, and this device has seen 9")
        place.write_bytes(newer)


@pytest.mark.fault("R2")
def test_a_serial_advanced_with_stolen_keys_ends_with_these_keys(device: Attacked) -> None:
    device.roll(17, 2**52)
    assert device.apply() == 17
    device.roll(16, 6)
    refused(device, RolledBack, "serial/plant is 6, and this device has seen")
    device.online.rotate("rollout", by="targets")
    device.roll(16, 6)
    device.online.publish("targets")
    assert device.apply() == 16


@pytest.mark.fault("T9")
def test_the_key_of_rollout_moves_devices_only_among_signed_releases(device: Attacked) -> None:
    device.roll(16, 6)
    assert device.apply() == 16
    device.roll(17, 7, pin={"dev-1": 16})
    assert device.apply() == 16
    device.roll(17, 8, paused=True)
    assert device.apply() == 16

    device.roll(99, 9)
    refused(device, NotInRepository, r"does not list bundles/vision/det\.99\.json", 16)
    device.online.add(manifest_target("vision", "det", 99), manifest_bytes("det", 99), role="rollout")
    device.roll(99, 10)
    refused(device, NotInRepository, r"does not list bundles/vision/det\.99\.json", 16)
    device.roll(17, 11, family="other")
    refused(device, NotInRepository, r"does not list bundles/other/det\.17\.json", 16)


@pytest.mark.fault("T9", "R1")
def test_the_key_of_rollout_gets_no_device_below_the_floor(device: Attacked) -> None:
    device.online.add_document(floor_target("vision"), {"schema": 1, "floors": {"det": 17}})
    device.online.publish("models-vision")
    device.roll(16, 6)
    refused(device, RolledBack, "det 16 has the counter 16, and the floor is 17")

    del device.online.signed["models-vision"].targets[floor_target("vision")]
    device.online.publish("models-vision")
    refused(device, RolledBack, "det 16 has the counter 16, and the floor is 17")  # as this device remembers
    device.roll(17, 7)
    assert device.apply() == 17


@pytest.mark.fault("T9", "R1")
def test_a_file_server_that_lacks_the_floor_does_not_remove_it(device: Attacked) -> None:
    device.online.add_document(floor_target("vision"), {"schema": 1, "floors": {"det": 17}})
    device.online.publish("models-vision")
    device.roll(16, 6)
    (path,) = (one for one in device.online.files if one.endswith(".floor.json"))
    content = device.online.files.pop(path)
    refused(device, FetchError, r"floor\.json is not in the repository, but signed metadata lists it")
    device.online.files[path] = content
    refused(device, RolledBack, "det 16 has the counter 16, and the floor is 17")
    device.roll(17, 7)
    assert device.apply() == 17


@pytest.mark.fault("T9", "R1")
def test_a_denial_leads_to_no_release_below_the_floor(device: Attacked) -> None:
    device.online.add_document(floor_target("vision"), {"schema": 1, "floors": {"det": 17}})
    device.online.publish("models-vision")
    device.roll(16, 6, deny=[17])
    with pytest.raises(RolledBack, match="det 16 has the counter 16, and the floor is 17"):
        device.apply()
    assert device.server.serving == {}
    device.roll(17, 7)
    assert device.apply() == 17


@pytest.mark.fault("T9")
def test_the_key_of_rollout_bypasses_neither_hardware_nor_trial(device: Attacked) -> None:
    variants = [{"id": "arm", "kind": "onnx", "priority": 1, "match": {"arch": "aarch64"}}]
    device.sign(18, variants=variants)
    device.roll(18, 6)
    refused(device, Unsuitable, "no variant of det 18 fits this device")
    device.sign(19)
    device.trial.bad.add(("det", 19))
    device.roll(19, 7)
    refused(device, TrialFailed, "the golden test of det 19 failed")
    device.roll(19, 8, pin={"dev-1": 19})
    assert device.apply() == 17


@pytest.mark.fault("R1")
def test_a_denial_is_fetched_and_followed_during_a_probation(device: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        if "denied" not in done:
            device.roll(18, 7, deny=[18], previous=17)
        done.append("denied")
        return ProbationVerdict.WAIT, "few requests"

    done: list[str] = []
    device.sign(18)
    device.roll(18, 6)
    monkeypatch.setattr(device.probation, "judge", judge)
    monkeypatch.setattr(device.probation, "interval", lambda: 30.0)
    assert device.apply() == 17
    assert len(done) <= FRESH_SECONDS / 30 + 1, "it is judged before each refresh"
