"""The boot step: links, journal, and bad list after starts of the service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ota.agent import status_file
from ota.agent.boot import Boot
from ota.cli import main
from ota.decide.probation import ProbationVerdict
from ota.errors import ServerError, TrialFailed
from ota.store import bad, journal, links
from ota.store.journal import UpdateStage
from ota.store.lock import acquire_lock
from tests.ota.clock import NOW
from tests.ota.device import Device, device_with


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device with release 15 and 16, and 17 in probation."""
    found = device_with(tmp_path, 15, 16)
    found.publish(release=17)
    found.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    found.run()
    found.probation.verdicts = []
    return found


@pytest.mark.fault("L5")
def test_a_release_in_probation_has_three_starts(device: Device) -> None:
    for left in (2, 1):
        assert device.boot() == [f"det: {left} of the starts of release 17 are left"]
        assert device.server.serving == {"det": 17}
    assert "back from release 17 to 16" in device.boot()[0]
    assert device.server.serving == {"det": 16}
    assert (device.journal().active, device.journal().next) == (16, None)
    assert bad.load(device.layout).find("det", 17, "onnx", "any", NOW + 1) is not None
    counters = status_file.read(device.layout)["counters"]
    assert (counters["rollbacks"], counters["bad_releases"]) == (1, 1)
    assert counters["failures"]["probation/crash_loop"] == 1
    assert device.boot() == []
    waiting = device.run()["det"].waiting_for
    assert "it failed on this device: crash_loop: edge-serve started again and again while it was new" in waiting


@pytest.mark.fault("L5")
def test_the_agent_judges_a_release_that_survived_a_start(device: Device) -> None:
    device.boot()
    assert device.run()["det"].release == 17
    assert device.journal().active == 17
    for _ in range(5):
        assert device.boot() == []
    assert device.server.serving == {"det": 17}


def test_a_switch_that_a_power_cut_ended_is_undone_until_the_agent_runs(device: Device) -> None:
    device.run()
    device.publish(release=18)
    device.server.failures = [ServerError("the power was cut")]
    with pytest.raises(ServerError):
        device.run()
    assert device.journal().next.stage is UpdateStage.SWITCHING  # type: ignore[union-attr]  # it is on its way
    assert links.read_links(device.layout, device.repository) == {"det": 18}
    assert "was cut off: undone until the agent runs" in device.boot()[1]
    assert device.server.serving == {"det": 17}
    assert device.run()["det"].release == 18


def test_a_rollback_interrupted_by_a_power_cut_is_completed(device: Device) -> None:
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    device.server.failures = [ServerError("the power was cut")]
    with pytest.raises(ServerError):
        device.run()
    assert device.boot() == []
    assert device.server.serving == {"det": 16}
    assert device.journal().next is None


@pytest.mark.fault("L6")
def test_the_second_last_release_serves_if_the_last_one_is_missing(device: Device) -> None:
    shutil.rmtree(device.layout.release("det", 16))
    device_lines = [device.boot() for _ in range(3)]
    assert device.server.serving == {"det": 15}
    assert "det 16 is damaged or missing on this disk: back to 15" in device_lines[0]


@pytest.mark.fault("L6")
def test_when_no_release_is_left_safe_mode_is_named(device: Device) -> None:
    device.run()
    for release in (15, 16, 17):
        shutil.rmtree(device.layout.release("det", release), ignore_errors=True)
    lines: list[str] = []
    Boot(device.settings, NOW, lines.append).run()
    assert lines == ["det 17 is damaged or missing, with no other release here: 'edge-ota apply' fetches it"]


@pytest.mark.fault("C7")
@pytest.mark.parametrize("wrong", ["dangling", "older", "absent", "elsewhere"])
def test_wrong_links_are_healed(device: Device, wrong: str) -> None:
    device.run()
    link = device.repository / "det"
    link.unlink()
    if wrong != "absent":
        places = {"dangling": Path("/nowhere"), "older": device.layout.release("det", 15), "elsewhere": device.root}
        link.symlink_to(places[wrong])
    (found,) = device.boot()
    assert found == "the links of det named another release: turned back to 17"
    assert device.server.serving == {"det": 17}


@pytest.mark.fault("C6")
@pytest.mark.parametrize("damage", ["missing", "torn", "newer"])
def test_a_lost_journal_is_rebuilt(device: Device, damage: str) -> None:
    device.run()
    path = journal.path_of(device.layout, "det")
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[:50])
    else:
        journal.write(device.layout, journal.Journal("det", {40: ("det",)}, 40))
    assert "rebuilt" in device.boot()[0]
    assert device.server.serving == {"det": 17}
    assert device.journal().active == 17
    device.publish(release=18)
    assert device.run()["det"].release == 18


@pytest.mark.fault("D4")
def test_a_disk_that_takes_nothing_does_not_fail_the_boot(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(operation: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("ota.files.point", read_only)
    lines = device.boot()
    assert "det is left as it is: edge-serve's safe mode decides" in lines[-1]
    assert "Read-only file system" in lines[-1]
    assert device.server.serving == {"det": 17}


def test_another_agent_at_work_does_not_hold_up_the_boot(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ota.agent.boot._PATIENCE", 0.1)
    with acquire_lock(device.layout, "apply"):
        started = time.monotonic()
        assert "nothing was checked: 'edge-ota apply'" in device.boot()[0]
        assert time.monotonic() - started < 5


def test_a_model_in_the_place_of_the_link_is_left_alone_and_named(device: Device) -> None:
    device.run()
    (device.repository / "det").unlink()
    (device.repository / "det").mkdir()
    lines: list[str] = []
    Boot(device.settings, NOW, lines.append).run()
    assert "Move it out of the model repository" in lines[0]
    assert (device.repository / "det").is_dir()


def test_the_command_is_quick_and_needs_no_tuf(device: Device) -> None:
    """The command imports modules of the standard library and of ota only."""
    arguments = ["boot", "--state-dir", str(device.layout.state_dir), "--model-repository", str(device.repository)]
    code = (
        "import sys; from ota.cli import main; assert main(sys.argv[1:]) == 0\n"
        "assert not {'tuf', 'securesystemslib', 'urllib3', 'cryptography', 'asyncio', 'numpy'} & set(sys.modules)"
    )
    environment = {**os.environ, "EDGE_OTA_CONFIG": "/nowhere"}
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert (found.returncode, found.stderr) == (0, "edge-ota: det: 2 of the starts of release 17 are left\n")


@pytest.mark.fault("L5")
def test_wrong_lines_of_the_settings_do_not_stop_the_boot_step(
    device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = device.root / "edge-ota.conf"
    lines = ["RATE_LIMT=5", "no setting", f"STATE_DIR={device.layout.state_dir}", "TRIES=three"]
    config.write_text("\n".join([*lines, f"MODEL_REPOSITORY={device.repository}"]))
    monkeypatch.setenv("EDGE_OTA_CONFIG", str(config))
    assert main(["boot"]) == 0
    complaints = capsys.readouterr().err.splitlines()
    assert complaints.pop() == "edge-ota: det: 2 of the starts of release 17 are left"
    for number, text in (1, "RATE_LIMT; did you mean RATE_LIMIT?"), (2, "'no setting' is not"), (4, "found 'three'"):
        (one,) = (one for one in complaints if f"edge-ota.conf, line {number}: " in one)
        assert text in one
        assert one.endswith("; this is ignored")
    assert main(["status"]) == 2, "other commands refuse them"


def test_settings_that_cannot_be_read_do_not_stop_the_boot_step(
    device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_OTA_CONFIG", str(device.root))
    monkeypatch.setenv("EDGE_OTA_STATE_DIR", str(device.layout.state_dir))
    monkeypatch.setenv("EDGE_OTA_MODEL_REPOSITORY", str(device.repository))
    for left, flags in (2, []), (1, ["--config", "/nowhere"]):
        assert main(["boot", *flags]) == 0
        assert f"{left} of the starts of release 17 are left" in capsys.readouterr().err


def test_nothing_happens_where_nothing_was_ever_installed(tmp_path: Path) -> None:
    device = Device(tmp_path)
    assert device.boot() == []
    assert not device.layout.state_dir.exists()


@pytest.mark.fault("L5")
def test_a_first_release_that_loops_leaves_no_link(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.publish(release=1)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    for _ in range(3):
        device.boot()
    assert device.server.serving == {}
    device.publish(release=2)
    device.probation.verdicts = []
    assert device.run()["det"].release == 2


def test_a_trial_failure_is_not_touched(device: Device) -> None:
    device.run()
    device.publish(release=18)
    device.trial.bad.add(("det", 18))
    with pytest.raises(TrialFailed):
        device.run()
    assert device.boot() == []


@pytest.mark.fault("L5")
@pytest.mark.fault("D6")
def test_a_probation_goes_on_without_the_release_before(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.publish(release=16)
    device.run()
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    shutil.rmtree(device.layout.release("det", 16))
    assert device.boot() == [
        "det 16 is damaged or missing on this disk: 17 has none before it",
        "det: 2 of the starts of release 17 are left",
    ]
    assert device.server.serving == {"det": 17}
    device.boot()
    device.boot()
    assert device.server.serving == {}
    assert bad.load(device.layout).releases("det") == {17}


@pytest.mark.fault("L5")
def test_a_release_whose_load_ends_the_server_has_three_starts(device: Device) -> None:
    device.run()
    device.publish(release=18)
    for _ in range(3):
        device.server.failures = [ServerError("the connection was closed")]
        assert isinstance(device.outcomes(by_hand=False)["det"].error, ServerError)
        lines = device.boot()
        assert device.server.serving == {"det": 17}
    assert "back from release 18 to 17: edge-serve started again and again" in lines[0]
    assert device.trial.tried.count(("det", 18)) == 1
    assert "it failed on this device: crash_loop" in device.run(by_hand=False)["det"].waiting_for


@pytest.mark.fault("L9")
@pytest.mark.fault("V3")
def test_builds_use_up_no_start_of_the_service(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        failures = 2

        def build(self, *arguments: object) -> float:
            Builder.failures -= 1
            if Builder.failures >= 0:
                raise ServerError("the build ended with -9")
            return 1.0

    monkeypatch.setattr("tests.ota.device.FakeBuilder", Builder)
    device.run()
    device.facts.room = False  # no trial, which would give the tries back
    build = [{"model": "det", "onnx": "18/model.onnx", "plan": "18/model.plan"}]
    device.publish(release=18, variants=[{"id": "trt", "kind": "onnx-build", "priority": 1, "build": build}])
    for _ in range(2):
        assert isinstance(device.outcomes()["det"].error, ServerError)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    assert device.boot() == ["det: 2 of the starts of release 18 are left"]
    assert device.server.serving == {"det": 18}
