"""What devices get that a rollout does not include: never a release that has not reached them by its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ota.decide.rollout import choose
from ota.documents.device import DeviceDocument
from ota.documents.names import SYSTEM
from ota.documents.rollout import MOST_STEPS, BundleRollout, Rollout, RolloutStep, read_rollout
from ota.publish.rollouts import deny, halt, pin, rollout_dict, start, step, with_wish
from ota.strict_json import to_canonical_json
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

    def release_after_denial(self, denied: int, device: DeviceDocument) -> int:
        """Return the release of a device that ran one which is denied."""
        wish = deny(self.document, self.bundle, denied, True).wishes()[self.bundle]
        return choose(wish, device, denied, NOW).release


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
    assert [plant.release(one, 0) for one in (LAB, PROD)] == [18, 16]
    assert plant.release_after_denial(18, LAB) == 17
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


@pytest.mark.parametrize("bundle", ["det", SYSTEM])
def test_a_first_release_for_one_ring_is_that_of_no_other(bundle: str) -> None:
    plant = Plant(bundle)
    plant.start(1, lab=100)
    plant.start(2, lab=100)
    plant.document = step(plant.document, bundle, {"prod": 0.01})
    assert (plant.release(PROD, 0), plant.release_after_denial(2, LAB)) == (0, 1)


def test_a_ring_outside_of_all_steps_costs_no_ring_its_way_back(plant: Plant) -> None:
    """One spare unit, or a storage ring."""
    spare = DeviceDocument("spare-1", "plant", "spare")
    plant = Plant(plant.bundle)
    plant.devices = (LAB, PROD, spare)
    plant.start(16, lab=100, prod=100)
    plant.start(17, lab=100)
    assert [plant.release(one, 0) for one in (LAB, PROD, spare)] == [17, 16, 0]
    assert [plant.release_after_denial(17, one) for one in (LAB, PROD)] == [16, 16]
    plant.document = step(plant.document, plant.bundle, {"prod": 50})
    assert plant.release_after_denial(17, PROD) == 16


def test_a_ring_that_is_added_later_costs_no_ring_its_way_back(plant: Plant) -> None:
    canary = DeviceDocument("canary-1", "plant", "canary")
    plant.start(17, lab=100, prod=100)
    plant.devices = (LAB, PROD, canary)
    plant.start(18, canary=100, lab=100)
    assert [plant.release_after_denial(18, one) for one in (canary, LAB, PROD)] == [16, 17, 17]
    assert plant.release(DeviceDocument("prod-2", "plant", "prod"), 0) == 17


def test_a_release_before_that_is_denied_gives_way_to_the_last_one_of_all_rings(plant: Plant) -> None:
    plant.start(17, lab=100)
    plant.start(18, lab=100)
    plant.document = deny(plant.document, plant.bundle, 17, True)
    assert plant.release_after_denial(18, LAB) == 16


def test_a_document_of_an_older_publisher_goes_on(plant: Plant) -> None:
    """Its steps name no releases, and 17 did not arrive."""
    old = replace(plant.wish, want=17, previous=16, steps=(RolloutStep("lab", 100),))
    plant.document = with_wish(plant.document, old)
    plant.start(18, lab=100)
    assert [plant.release(one, 0) for one in (LAB, PROD)] == [18, 16]
    plant.document = step(plant.document, plant.bundle, {"prod": 0.01})
    assert (plant.release(PROD, 15), plant.release_after_denial(18, LAB)) == (16, 17)


def test_the_document_carries_the_release_before_of_each_ring(plant: Plant) -> None:
    plant.start(17, lab=100)
    data = to_canonical_json(rollout_dict(replace(plant.document, serial=1)))
    assert read_rollout(data, "plant").wishes() == plant.document.wishes()
    assert (plant.wish.steps, plant.wish.reached) == ((RolloutStep("lab", 100),), {"lab": 16, "prod": 16})


def test_a_ring_without_devices_keeps_its_release_before_for_the_next_device(plant: Plant) -> None:
    """The only unit of a ring is replaced while the lab goes on."""
    plant.devices = (LAB,)
    plant.start(17, lab=100)
    plant.start(18, lab=100)
    assert plant.wish.previous == 17
    assert [plant.release(PROD, active) for active in (16, 0)] == [16, 16]


def test_a_fleet_may_have_more_rings_than_steps(plant: Plant) -> None:
    rings = [f"site-{number}" for number in range(MOST_STEPS + 8)]
    plant.devices = [DeviceDocument(f"{ring}-1", "plant", ring) for ring in rings]
    plant.start(17, **dict.fromkeys(rings[:MOST_STEPS], 100))
    plant.start(18, **{rings[-1]: 100})
    assert [plant.release(one, 0) for one in (plant.devices[0], plant.devices[-1])] == [17, 18]
    read_rollout(to_canonical_json(rollout_dict(replace(plant.document, serial=1))), "plant")


def test_a_pinned_device_does_not_keep_a_rollout_from_its_end(plant: Plant) -> None:
    museum = DeviceDocument("old-1", "plant", "museum")
    plant.devices = (LAB, PROD, museum)
    plant.document = pin(plant.document, plant.bundle, "old-1", 15)
    plant.start(17, lab=100)
    assert plant.wish.previous == 16
    plant.document = pin(plant.document, plant.bundle, "old-1", 0)
    plant.start(18, lab=100)
    assert plant.wish.previous == 16


def test_an_unpinned_device_gets_the_release_before_of_its_ring(plant: Plant) -> None:
    """Its ring was reached by 16, and while it is pinned, later releases reach all others."""
    museum = DeviceDocument("old-1", "plant", "museum")
    plant.devices = (LAB, PROD, museum)
    plant.document = step(plant.document, plant.bundle, {"museum": 100})
    plant.document = pin(plant.document, plant.bundle, "old-1", 16)
    for release in (17, 18, 19):
        plant.start(release, lab=100, prod=100)
    assert (plant.wish.previous, plant.release_after_denial(19, PROD)) == (18, 18)
    plant.document = pin(plant.document, plant.bundle, "old-1", 0)
    assert [plant.release(museum, active) for active in (16, 0)] == [16, 16]


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
