"""A rollout in steps that reports allow: 5, 25, 100 % of a thousand devices, with real signatures throughout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ota.publish.reports.collect import CollectedReports, collect
from tests.ota.publish.fleet import Fleet, share, unlucky
from tests.ota.publish.publisher import Publisher

GATE = ("--success", "95%", "--errors", "5%", "--soak", "24h")


@pytest.mark.slow  # a thousand keys, and three thousand signatures
@pytest.mark.fault("R3")
def test_a_thousand_devices_through_5_25_and_100_percent(thousand: Fleet) -> None:
    before: set[str] = set()
    for percent, following in ((5, 25), (25, 100), (100, 0)):
        names = thousand.update(unlucky)
        assert abs(share(names) - percent) <= 1
        assert before <= names
        before = names
        if following:
            step = ("rollout step", "plant", "det", f"prod={following}", "--reports", thousand.place)
            assert "allowed: " in thousand.publisher.do(*step, *GATE)
    found = thousand.report()
    assert found["releases"] == {"det": {"1": 20, "2": 980}}
    assert len(found["failures"][0]["devices"]) == 20
    watch = ("rollout watch", "plant", "det", "--reports", thousand.place)
    said = thousand.publisher.refused(*watch, "--errors", "1%", status=11)
    assert "20 of 1000 devices that tried it failed (2 %), at most 1 % may" in said
    assert thousand.wish().paused


@pytest.fixture
def remote(fleet: Fleet) -> Fleet:
    """A fleet whose rollouts are signed at another machine."""
    fleet.publisher.run("key", "alice")
    fleet.publisher.do("rotate", "rollout", "--remove", "rollout-1", "--add", "alice.pub.json")
    _sign(fleet.publisher)
    return fleet


def _sign(publisher: Publisher) -> None:
    publisher.do("request", "--out", "request.json")
    publisher.run("sign", "request.json", "--key", "alice.pem", "--yes", "--out", "sig.json")
    publisher.do("collect", "sig.json")


@pytest.mark.parametrize(("action", "halts"), [("watch", True), ("step", True), ("step", False)])
def test_reports_are_collected_without_the_lock(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, action: str, halts: bool
) -> None:
    """An operator halts or pins while the web server delivers the reports."""

    def collect_slowly(*arguments: Any) -> CollectedReports:
        fleet.publisher.do("rollout pin", "plant", "det", "dev-0000", 1)
        return collect(*arguments)

    fleet.update(lambda name, release: halts)
    monkeypatch.setattr("ota.publish.workspace.PATIENCE", 0.0)
    steps = ("prod=25",) if action == "step" else ()
    command = (f"rollout {action}", "plant", "det", *steps, "--reports", fleet.place)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("ota.publish.reports.gate.collect", collect_slowly)
        said = fleet.publisher.refused(*command, status=10)
    assert "det: another command changed the rollout while the evidence was collected: repeat this one" in said
    assert not fleet.wish().paused
    fleet.publisher.do(*command, status=11 if halts else 0)
    assert fleet.wish().paused is halts


def test_a_halt_that_waits_for_a_signature_says_so(remote: Fleet) -> None:
    publisher = remote.publisher
    remote.update(lambda name, release: True)
    for action in ("step", "watch", "watch"):
        steps = ("prod=25",) if action == "step" else ()
        said = publisher.refused(f"rollout {action}", "plant", "det", *steps, "--reports", remote.place, status=11)
        assert "the rollout is halted when its signatures are collected: " in said
        assert "devices that tried it failed (100 %)" in said
    assert not remote.wish().paused
    _sign(publisher)
    assert remote.wish().paused


def test_a_halt_is_not_lost_while_a_step_waits_for_a_signature(remote: Fleet) -> None:
    publisher = remote.publisher
    publisher.do("rollout step", "plant", "det", "prod=100")
    remote.update(lambda name, release: True)
    watch = ("rollout watch", "plant", "det", "--reports", remote.place)
    for _ in range(2):
        said = publisher.refused(*watch, status=11)
        assert "the rollout is not halted yet, because another change of plant waits for signatures" in said
        assert "do not collect it: 'request --discard' drops it, then 'rollout halt plant det' halts" in said
        assert "devices that tried it failed (100 %)" in said
    publisher.do("request", "--discard")
    publisher.do("rollout halt", "plant", "det")
    _sign(publisher)
    assert (remote.wish().paused, [one.percent for one in remote.wish().steps]) == (True, [5])


def test_a_halt_that_cannot_be_published_says_why(remote: Fleet) -> None:
    publisher = remote.publisher
    publisher.do("rotate", "targets", "--add", "alice.pub.json", "--threshold", 2)
    remote.update(lambda name, release: True)
    said = publisher.refused("rollout watch", "plant", "det", "--reports", remote.place, status=11)
    assert (
        "the rollout is not halted yet (a change of root and targets waits for signatures already: finish it " in said
    )
    assert "; then 'rollout halt plant det'): " in said
    publisher.do("request", "--discard")
    publisher.do("rollout halt", "plant", "det")
    _sign(publisher)
    assert remote.wish().paused


def test_a_halt_by_a_doubtful_clock_says_so(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.update(lambda name, release: True)
    now = time.time() + 2.8 * 86400
    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("ota.trust.clock_floor.is_synchronized", lambda: False)
    for action in ("step", "watch"):
        steps = ("prod=25",) if action == "step" else ()
        watch = (f"rollout {action}", "plant", "det", *steps, "--reports", fleet.place, "--silent", "3d")
        said = fleet.publisher.refused(*watch, status=11)
        assert "the rollout is not halted yet (the clock of this machine says " in said
        assert "; then 'rollout halt plant det'): " in said
    fleet.publisher.refused(*watch, "--clock-is-right", status=11)
    assert fleet.wish().paused


def test_a_rollout_with_too_many_failures_halts_by_itself(fleet: Fleet) -> None:
    status, following = 0, 5
    while not status:
        percent, following = following, 25 if following == 5 else 100
        fleet.update(unlucky)
        step = ("rollout step", "plant", "det", f"prod={following}", "--reports", fleet.place, "--errors", "1%")
        status = fleet.publisher.status(*step)
    assert status == 11
    assert "the rollout is halted: " in fleet.publisher.err
    assert "at most 1 % may" in fleet.publisher.err
    assert fleet.wish().paused
    assert [one.percent for one in fleet.wish().steps] == [percent]
    runs = {one.name: one.release for one in fleet.devices}
    fleet.update(unlucky)
    assert runs == {one.name: one.release for one in fleet.devices}
    assert "is halted: 'edge-ota publish rollout resume' comes first" in fleet.publisher.refused(*step)
    assert "the rollout is halted" in fleet.publisher.do("rollout watch", "plant", "det", "--reports", ".")


def test_a_step_that_comes_too_early_says_why(fleet: Fleet) -> None:
    step = ("rollout step", "plant", "det", "prod=25", "--reports", fleet.place)
    fleet.update(age=60)
    said = fleet.publisher.refused(*step, status=10)
    assert "det: the next step is not allowed yet: 0 of " in said
    assert "(0 %) have been good for 24 h, expected 95 %" in said
    for one in fleet.place.iterdir():
        one.unlink()
    said = fleet.publisher.refused(*step, "--soak", "0", status=10)
    assert " silent" in said
    assert not fleet.wish().paused
    fleet.publisher.refused("rollout watch", "plant", "det", "--reports", fleet.place, status=10)
    fleet.update()
    fleet.publisher.do("rollout watch", "plant", "det", "--reports", fleet.place, "--soak", "1m")
    fleet.publisher.do("rollout step", "plant", "det", "prod=25", "--reports", fleet.place, "--soak", "1m")
    assert [one.percent for one in fleet.wish().steps] == [25]


def test_simulate_names_the_devices_that_a_step_adds(fleet: Fleet) -> None:
    before = fleet.update()
    said = fleet.publisher.do("rollout simulate", "plant", "det", "prod=20")
    assert said.startswith(f"prod: {len(before)} of 100 devices, then ")
    added = said.split("new: ")[1].split()[0].rstrip(",\n")
    fleet.publisher.do("rollout step", "plant", "det", "prod=20")
    assert added in fleet.update() - before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--success", "95%"), "--success needs --reports DIR|URL or --prometheus URL"),
        (("--errors", "x", "--reports", "."), "--errors: found 'x', expected a percentage such as 95%"),
        (("--errors", "101", "--reports", "."), "--errors: found '101'"),
        (("--soak", "1 day", "--reports", "."), "--soak: found '1 day', expected a time such as 30m, 24h, or 2d"),
        (("--reports", "nowhere"), "nowhere is neither a directory of reports"),
        (("--prometheus", "ftp://x"), "found 'ftp://x"),
    ],
)
def test_wrong_flags_of_the_gate(fleet: Fleet, flags: tuple[str, ...], message: str) -> None:
    assert message in fleet.publisher.refused("rollout step", "plant", "det", "prod=25", *flags)
    assert not fleet.wish().paused


def test_without_a_gate_a_step_is_taken_as_before(fleet: Fleet) -> None:
    fleet.publisher.do("rollout step", "plant", "det", "prod=25")
    assert "needs --reports" in fleet.publisher.refused("rollout watch", "plant", "det")


def test_the_files_beside_the_keys_are_small(fleet: Fleet) -> None:
    fleet.update()
    fleet.report()
    path: Path = fleet.publisher.dir / "reports.json"
    assert path.stat().st_mode & 0o77 == 0
    assert path.stat().st_size < 100 * 2000
