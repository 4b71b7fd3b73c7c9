"""What devices get that a rollout does not include: never a release that has not reached them by its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ota.decide.rollout import choose
from ota.documents.device import DeviceDocument
from ota.documents.names import SYSTEM
from ota.documents.rollout import BundleRollout, Rollout
from ota.publish.rollouts import deny, halt, pin, start, step, with_wish
from tests.ota.publish.publisher import Publisher

NOW = 1_796_000_000.0
LAB, PROD = DeviceDocument("lab-1", "plant", "lab"), DeviceDocument("prod-1", "plant", "prod")


class Plant:
    """The rollouts of a fleet with two devices."""

    def __init__(self, bundle: str = "det") -> None:
        self.bundle, self.document = bundle, Rollout("plant", 0)
        self.devices: Sequence[DeviceDocument] = (LAB, PROD)

    def start(self, release: int, **steps: float) -> None:
        self.document = start(self.document, "det", self.bundle, release, steps, self.devices, NOW)

    @property
    def wish(self) -> BundleRollout:
        return self.document.wishes()[self.bundle]

    def release(self, device: DeviceDocument, active: int) -> int:
        """Return the release of a device, as its edge-ota decides."""
        return choose(self.wish, device, active, NOW).release


@pytest.fixture(params=["det", SYSTEM])
def plant(request: pytest.FixtureRequest) -> Plant:
    """A fleet whose devices got 16 by its own steps."""
    found = Plant(request.param)
    found.start(16, lab=100, prod=100)
    return found


def test_a_halted_release_reaches_no_further_device_by_the_next_start(plant: Plant) -> None:
    plant.start(17, lab=100)
    plant.document = halt(plant.document, plant.bundle, True)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16
    assert [plant.release(PROD, active) for active in (16, 15, 0)] == [16, 16, 16]
    assert plant.release(LAB, 17) == 18
    plant.document = step(plant.document, plant.bundle, {"prod": 100})
    plant.start(19, lab=100)
    assert plant.wish.previous == 18


def test_a_ring_that_no_step_names_keeps_its_release(plant: Plant) -> None:
    plant.start(17, lab=100)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16
    plant.start(16, lab=100)  # back, while 17 and 18 are in the lab only
    assert plant.wish.previous == 16
    assert (plant.release(LAB, 18), plant.release(PROD, 15)) == (16, 16)


def test_a_rollout_that_is_halted_at_all_devices_is_not_given_to_new_ones(plant: Plant) -> None:
    plant.start(17, lab=100, prod=100)
    plant.document = halt(plant.document, plant.bundle, True)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16
    assert (plant.release(PROD, 17), plant.release(PROD, 0)) == (17, 16)


def test_a_rollout_of_next_week_has_reached_nothing(plant: Plant) -> None:
    plant.start(17, lab=100, prod=100)
    plant.document = with_wish(plant.document, replace(plant.wish, not_before=NOW + 60))
    plant.start(18, lab=100)
    assert (plant.wish.previous, plant.release(PROD, 16)) == (16, 16)


@pytest.mark.parametrize("bundle", ["det", SYSTEM])
def test_the_first_release_reaches_no_other_device_by_the_second_start(bundle: str) -> None:
    plant = Plant(bundle)
    plant.start(1, lab=100, prod=0.01)
    plant.document = halt(plant.document, bundle, True)
    plant.start(2, lab=100)
    assert (plant.wish.previous, plant.release(PROD, 0), plant.release(LAB, 1)) == (0, 0, 2)


def test_a_pinned_device_does_not_keep_a_rollout_from_its_end(plant: Plant) -> None:
    museum = DeviceDocument("old-1", "plant", "museum")
    plant.devices = (LAB, PROD, museum)
    plant.document = pin(plant.document, plant.bundle, "old-1", 15)
    plant.start(17, lab=100)
    assert plant.wish.previous == 16
    plant.document = pin(plant.document, plant.bundle, "old-1", 0)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16


def test_a_denied_release_is_left_by_all(plant: Plant) -> None:
    plant.start(17, lab=100, prod=100)
    plant.document = deny(plant.document, plant.bundle, 17, True)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16
    assert [plant.release(one, 17) for one in (LAB, PROD)] == [18, 16]


def test_a_rollback_of_a_release_that_arrived_goes_ring_by_ring(plant: Plant) -> None:
    plant.start(17, lab=100, prod=100)
    plant.start(16, lab=100)
    assert plant.wish.previous == 17
    assert (plant.release(LAB, 17), plant.release(PROD, 17)) == (16, 17)


def test_simulate_shows_what_the_other_devices_get(published: Publisher) -> None:
    for device, ring in (("lab-1", "lab"), ("prod-1", "prod")):
        published.do("device add", device, "--fleet", "plant", "--ring", ring)
    simulate = ("rollout simulate", "plant", "det")
    published.do("rollout start", "plant", "det", 1, "lab=100")
    assert published.do(*simulate).endswith("the others keep their release; one without any gets none\n")
    assert "the others" not in published.do(*simulate, "prod=100")
    published.do("rollout step", "plant", "det", "prod=100")
    published.release(2)
    published.do("rollout start", "plant", "det", 2, "lab=100")
    assert published.do(*simulate).endswith("the others keep their release; one with an older one or none gets 1\n")
    published.do("rollout halt", "plant", "det")
    assert published.do(*simulate).endswith("halted: no further device gets 2; one without any release gets 1\n")
