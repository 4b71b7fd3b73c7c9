"""The reports of a fleet, summed up: who runs what, what failed, and which devices are not who they say."""

from __future__ import annotations

import copy
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ota.documents.device import DeviceDocument
from tests.ota.faulty_server import FaultyServer
from tests.ota.publish.fleet import Fleet, Simulated, fingerprint
from tests.ota.publish.publisher import PASSPHRASE, UNKNOWN_KEYS, Publisher


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A publisher's directory with det 1, det 2, and six devices that have updated to it."""
    base = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
        patch.chdir(base)
        publisher = Publisher(base)
        publisher.init("--family", "det")
        publisher.release(1)
        publisher.release(2)
        Fleet(publisher).add(6)
        publisher.do("rollout start", "plant", "det", 2, "prod=100")
    return base


@pytest.fixture
def fleet(prepared: Path, publisher: Publisher) -> Fleet:
    """The fleet, with keys of its own."""
    shutil.copytree(prepared / "publisher", publisher.dir)
    found = Fleet(publisher)
    found.devices = [Simulated(document(number), Ed25519PrivateKey.generate(), 1) for number in range(6)]
    rows = [f"{one.name},plant,prod,{fingerprint(one.key)}" for one in found.devices]
    (publisher.base / "d.csv").write_text("\n".join(["device,fleet,ring,fingerprint", *rows]))
    publisher.do("device import", "d.csv", "--change")
    return found


def document(number: int) -> DeviceDocument:
    return DeviceDocument(f"dev-{number:04}", "plant", "prod")


def put(fleet: Fleet, name: str, data: bytes) -> None:
    (fleet.place / name).write_bytes(data)


def test_the_report_counts_releases_and_failures(fleet: Fleet) -> None:
    fleet.update(lambda name, release: name == "dev-0002")
    said = fleet.publisher.do("report", fleet.place)
    assert said.splitlines() == [
        "6 devices, 6 reported in the last 48 h",
        "det: 1 run 1, 5 run 2",
        "det 2 failed (trial) on 1: dev-0002",
    ]
    (fleet.place / next(one.name for one in fleet.place.iterdir())).unlink()
    found = fleet.report()
    assert found["failures"] == [{"bundle": "det", "release": 2, "reason": "trial", "devices": ["dev-0002"]}]
    assert len(json.dumps(found["silent"])) == len('["dev-0000"]')
    assert fleet.report("--silent", "0")["silent"] == [one.name for one in fleet.devices]


@pytest.mark.fault("R4")
def test_two_devices_with_one_name_show(fleet: Fleet) -> None:
    fleet.update()
    double = replace(fleet.devices[3], key=Ed25519PrivateKey.generate(), chain=())
    double.bad, double.release = (), 1
    put(fleet, f"{double.name}.{fingerprint(double.key)[:8]}.json", double.seal(double.report(time.time() + 60)))
    found = fleet.report()
    (doubt,) = found["doubts"]
    assert f"dev-0003: two keys for one device: {fingerprint(fleet.devices[3].key)[:8]} was added" in doubt
    assert fingerprint(double.key)[:8] in doubt
    assert found["releases"] == {"det": {"2": 6}}, "the other key counts for nothing"


@pytest.mark.fault("R4")
@pytest.mark.fault("T8")
def test_a_restored_disk_and_a_cloned_one_show(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.update()
    assert fleet.report()["doubts"] == []
    backup = copy.copy(fleet.devices[1])
    fleet.update()
    fleet.report()
    name = f"{backup.name}.{fingerprint(backup.key)[:8]}.json"
    put(fleet, name, backup.seal(backup.report(time.time() + 1, "another")))
    (doubt,) = fleet.report()["doubts"]
    assert "dev-0001: its reports went back to an earlier counter" in doubt
    put(fleet, name, fleet.devices[1].seal(fleet.devices[1].report(time.time() + 2)))
    (doubt,) = fleet.report()["doubts"]
    assert "dev-0001: two disks report with one key" in doubt
    assert "a disk was cloned" in doubt


@pytest.mark.fault("K1")
@pytest.mark.parametrize("name", ["a.json", "z.json"])
def test_the_newest_report_is_the_last_of_its_chain_whatever_the_clock_of_the_device_says(
    fleet: Fleet, name: str
) -> None:
    fleet.update(lambda name, release: True)
    put(fleet, name, next(fleet.place.glob("dev-0000.*")).read_bytes())
    one = fleet.devices[0]
    one.bad = ()
    one.update(fleet.rollout(), lambda name, release: False, time.time(), time.time())
    put(fleet, f"{one.name}.{fingerprint(one.key)[:8]}.json", one.seal(one.report(time.time() - 3600)))
    found = fleet.report()
    assert (found["releases"], found["doubts"]) == ({"det": {"1": 5, "2": 1}}, [])


def report_often(fleet: Fleet, count: int, *, ahead: int = 0) -> None:
    """Put reports under names of their own, as `{counter}` in REPORT_URL does; one with a clock that is ahead."""
    one, first = fleet.devices[0], int(time.time()) - 86400
    fleet.place.mkdir(exist_ok=True)
    for _ in range(count):
        report = one.report(0)
        report = replace(report, time=first + 60 * report.counter + 400 * 86400 * (report.counter == ahead))
        put(fleet, f"{one.name}-{report.counter:04}.json", one.seal(report))


def test_a_directory_with_every_report_is_read_again_and_again(fleet: Fleet) -> None:
    report_often(fleet, 50)
    assert [fleet.report()["doubts"] for _ in range(3)] == [[], [], []]
    report_often(fleet, 30)
    for number in (*range(60, 81), 5):  # a device without a network loses reports; and a file was removed
        (fleet.place / f"dev-0000-{number:04}.json").unlink(missing_ok=True)
    assert [fleet.report()["doubts"] for _ in range(2)] == [[], []]
    report_often(fleet, 60)
    for number in range(85, 120):
        (fleet.place / f"dev-0000-{number:04}.json").unlink()
    assert [fleet.report()["doubts"] for _ in range(3)] == [[], [], []]


@pytest.mark.fault("K1")
def test_a_report_from_a_clock_that_was_ahead_does_not_stay_the_newest(fleet: Fleet) -> None:
    one = fleet.devices[0]
    one.release = 2
    report_often(fleet, 5, ahead=5)
    one.release = 1
    report_often(fleet, 30)
    for _ in range(2):
        found = fleet.report()
        assert (found["releases"], found["doubts"]) == ({"det": {"1": 1}}, [])


def test_a_copy_of_an_old_report_changes_nothing(fleet: Fleet) -> None:
    fleet.update(lambda name, release: True)
    old = {one.name: one.read_bytes() for one in fleet.place.iterdir()}
    fleet.publisher.do("report", fleet.place)
    for one in fleet.devices:
        one.bad = ()
    fleet.update()
    fleet.publisher.do("report", fleet.place)
    for name, data in old.items():
        put(fleet, f"old-{name}", data)
    found = fleet.report()
    assert (found["doubts"], found["failures"], found["releases"]) == ([], [], {"det": {"2": 6}})


@pytest.mark.fault("T9")
def test_forged_and_foreign_reports_count_for_nothing(fleet: Fleet) -> None:
    fleet.update()
    one = fleet.devices[0]
    good = one.seal(one.report(time.time()))
    put(fleet, "changed.json", good.replace(b'"success"', b'"failure"'))
    put(fleet, "signed.json", one.seal(one.report(time.time()), Ed25519PrivateKey.generate()))
    put(fleet, "empty.json", b"")
    put(fleet, "long.json", b"x" * 600_000)
    put(fleet, "key.json", good.replace(b"BEGIN PUBLIC KEY-----\\nM", b"BEGIN PUBLIC KEY-----\\nX"))
    (fleet.place / "link.json").symlink_to("/etc/passwd")
    stranger = Simulated(document(77), Ed25519PrivateKey.generate(), 1)
    put(fleet, "stranger.json", stranger.seal(stranger.report(time.time())))
    found = fleet.report()
    assert found["releases"] == {"det": {"2": 6}}
    assert len(found["problems"]) == 5
    assert sum("the signature does not fit" in one for one in found["problems"]) == 2
    assert found["doubts"] == ["reports under names that are no devices here: dev-0077"]
    fleet.publisher.do("device add", "dev-0077", "--fleet", "other", "--ring", "lab")
    (doubt,) = fleet.report()["doubts"]
    assert doubt == "reports that do not count, because the device was added without --key: dev-0077"
    assert "warning: " in fleet.publisher.run("report", fleet.place, "--dir", fleet.publisher.dir) + fleet.publisher.err


@pytest.mark.fault("T9")
def test_a_report_that_no_program_can_read_hides_no_other_one(fleet: Fleet) -> None:
    fleet.update()
    one = fleet.devices[0]
    good = json.loads(one.seal(one.report(time.time())))
    put(fleet, "number.json", json.dumps(good).replace('"signed": {', '"signed": {"x-a": 1e999, ').encode())
    for name, key in UNKNOWN_KEYS.items():
        put(fleet, f"{name}.json", json.dumps({**good, "public_key": key}).encode())
    found = fleet.report()
    assert found["releases"] == {"det": {"2": 6}}
    algorithm, curve, number = sorted(found["problems"])
    assert "algorithm.json: the key is neither Ed25519 nor ECDSA" in algorithm
    assert "curve.json: the key is neither Ed25519 nor ECDSA" in curve
    assert "number.json contains 1e999" in number


@pytest.mark.fault("T9")
@pytest.mark.parametrize("member", ["time", "floors_lost", "since"])
def test_a_time_after_the_last_year_is_a_problem_of_its_report(fleet: Fleet, member: str) -> None:
    fleet.update()
    one = fleet.devices[0]
    report = one.report(time.time() + 1, "another")
    if member == "since":
        report = replace(report, bundles={name: replace(row, since=2**53) for name, row in report.bundles.items()})
    else:
        late: dict[str, Any] = {member: 2**53}
        report = replace(report, **late)
    put(fleet, "late.json", one.seal(report))
    found = fleet.report()
    assert found["releases"] == {"det": {"2": 6}}
    (problem,) = found["problems"]
    assert f"{member} is 9007199254740992, expected an integer from 0 to 253402300799" in problem


def test_a_late_time_that_was_stored_once_is_shown(fleet: Fleet) -> None:
    fleet.update()
    fleet.report()
    path = fleet.publisher.dir / "reports.json"
    stored = json.loads(path.read_bytes())
    stored["keys"][fingerprint(fleet.devices[0].key)] |= {"fork": "cloned", "since": 2**53}
    path.write_text(json.dumps(stored))
    (doubt,) = fleet.report()["doubts"]
    assert "two disks report with one key (9999-12-31T23:59:59Z)" in doubt


def test_reports_of_a_web_server(fleet: Fleet) -> None:
    fleet.update()
    held = {f"in/{one.name}": one.read_bytes() for one in fleet.place.iterdir()}
    with FaultyServer(held) as server:
        said = fleet.publisher.do("report", f"{server.url}in")
        assert "6 devices, 6 reported" in said
        said = fleet.publisher.do("report", f"{server.url}elsewhere")
        assert "6 devices, 0 reported" in said
        server.fault(status=500)
        assert "HTTP 500" in fleet.publisher.refused("report", f"{server.url}in", status=3)


def test_reports_that_cannot_be_read_are_errors(fleet: Fleet) -> None:
    assert "neither a directory of reports" in fleet.publisher.refused("report", "nowhere")
    assert "DIR|URL: found 'http://[bad'" in fleet.publisher.refused("report", "http://[bad")
    assert "no device" in fleet.publisher.refused("report", ".", "--fleet", "none")
    assert "--silent: found '2 days'" in fleet.publisher.refused("report", ".", "--silent", "2 days")
    (fleet.publisher.dir / "reports.json").write_bytes(b"{")
    assert "reports.json" in fleet.publisher.refused("report", ".", status=4)
