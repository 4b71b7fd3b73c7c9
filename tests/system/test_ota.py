"""edge-ota as installed by the package: the timer, trials in their unit, the boot step, rights, and its status.

The tests are steps of one scenario, in the order of this file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ota.publish.publisher import PASSPHRASE
from tests.system.agent import KEPT
from tests.system.fleet import STATE, Fleet
from tests.system.machine import wait_until
from tests.system.service import MODELS, Service

UNITS = (
    "edge-ota.service edge-ota.timer edge-ota-boot.service edge-ota-trial.socket edge-ota-trial@x.service"
    " edge-ota-build.socket edge-ota-build@x.service"
)
ENABLED = "edge-ota.timer edge-ota-boot.service edge-ota-trial.socket edge-ota-build.socket"


@pytest.fixture(scope="module")
def site(installed: Service) -> Iterator[Service]:
    """Yield the device without models and without a root of trust, and restore that at the end."""
    installed.clean()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
        yield installed
    installed.machine.run(
        f"systemctl stop {ENABLED} edge-ota.service test-nginx;"
        " rm -rf /etc/edge-ota/*.json /etc/edge-ota/edge-ota.conf /etc/edge-ota/floors/*"
        f" /etc/systemd/system/edge-ota* {STATE}/*; systemctl daemon-reload; true",
        120,
    )
    installed.clean()


@pytest.fixture(scope="module")
def fleet(site: Service, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(site.machine, tmp_path_factory.mktemp("publisher"))


def test_units_are_clean_and_locked_down(site: Service) -> None:
    assert site.machine.run(f"systemd-analyze verify {UNITS}") == ""
    for unit in UNITS.split():
        if unit.endswith(".service"):
            report = site.machine.run(f"systemd-analyze security --no-pager {unit}")
            exposure = float(report.rstrip().rpartition("exposure level for ")[2].split(": ")[1].split()[0])
            print(f"exposure of {unit}: {exposure}")
            assert exposure <= 2.0, report


def test_agent_does_not_run_without_a_root_of_trust(site: Service) -> None:
    assert site.machine.run(f"systemctl is-enabled {ENABLED}").split() == ["enabled"] * 4
    site.machine.run(f"systemctl start {ENABLED} edge-ota.service")
    for unit in (*ENABLED.split(), "edge-ota.service"):
        shown = site.machine.run(f"systemctl show -p ActiveState,ConditionResult --value {unit}").split()
        assert sorted(shown) == ["inactive", "no"], unit
    site.start()
    assert "edge_ota_" not in site.metrics()
    assert site.machine.try_run("pgrep -u edge-ota").output == ""


def test_timer_installs_the_first_release(site: Service, fleet: Fleet) -> None:
    fleet.provision()
    fleet.publish(1)
    site.machine.run("systemctl start edge-ota-trial.socket edge-ota-build.socket edge-ota.timer")
    fleet.wait_for(1)
    assert site.infer() == 200
    assert site.machine.run(f"readlink {MODELS}/simple") == f"{STATE}/releases/simple/1\n"
    assert "edge-ota-trial@" in site.machine.run("journalctl --no-pager -o with-unit -u 'edge-ota-trial@*'")


def test_agent_updates_and_rolls_back_a_bad_release(site: Service, fleet: Fleet) -> None:
    fleet.publish(2)
    fleet.wait_for(2)
    assert site.ask("GET", "/v2/models/simple")[1].count('"2"') == 1
    fleet.publish(3, wrong=True)

    assert wait_until(lambda: bool(fleet.status()["bad"]), 30 * site.patience, 0.3), fleet.journal()
    (bad,) = fleet.status()["bad"]
    assert (bad["release"], bad["reason"]) == (3, "trial")
    assert "values differ" in bad["message"]
    assert "values differ" in fleet.journal()
    fleet.wait_for(2)
    assert site.infer() == 200
    assert "edge-ota.service" in site.machine.try_run("systemctl status edge-ota.service --no-pager").output
    metrics = site.metrics()
    assert "edge_ota_bad_releases 1" in metrics
    assert 'edge_ota_release{model="simple",release="2"} 1' in metrics
    assert "edge_ota_rollbacks_total 0" in metrics
    assert 'edge_ota_metadata_expires_seconds{role="timestamp"}' in metrics


def test_permissions_of_server_and_agent(site: Service) -> None:
    """Check that the server's user reads releases only, and that the agent writes only links to models."""
    release = f"{STATE}/releases/simple/2"
    server = "setpriv --reuid edge-serve --regid edge-serve --clear-groups sh -c"
    site.machine.run(
        f"{server} 'cat {release}/2/model.onnx >/dev/null && cat {STATE}/status.json >/dev/null"
        f" && ! touch {release}/a 2>/dev/null && ! touch {release}/2/model.onnx 2>/dev/null"
        f" && ! rm -rf {release} 2>/dev/null && ! ls {STATE}/identity 2>/dev/null && ! ls {STATE}/journal 2>/dev/null'"
    )
    script = (
        "touch /var/lib/edge-serve/models/.a && rm /var/lib/edge-serve/models/.a"
        " && for place in /var/lib/edge-serve /var/lib/edge-serve/home /var/cache/edge-serve /run/edge-serve"
        " /etc/edge-serve /etc/edge-ota /opt/edge-serve /usr; do ! touch $place/a 2>/dev/null || exit 1; done"
    )
    override = f'[Service]\nExecStart=\nExecStart=/bin/sh -c "{script.replace("$", "$$")}"\n'
    site.machine.run("systemctl stop edge-ota.timer edge-ota.service")
    site.machine.put("/etc/systemd/system/edge-ota.service.d/test.conf", override.encode())
    site.machine.run("systemctl daemon-reload")
    done = site.machine.try_run("systemctl start edge-ota.service; systemctl show -p Result --value edge-ota.service")
    site.machine.run("rm -r /etc/systemd/system/edge-ota.service.d && systemctl daemon-reload")
    assert done.output == "success\n"


def test_agent_has_no_process_between_runs(site: Service) -> None:
    assert site.machine.try_run("pgrep -u edge-ota").output == ""


def test_each_start_uses_a_try_of_a_release_in_probation(site: Service, fleet: Fleet) -> None:
    fleet.configure(3600)
    fleet.publish(4)
    site.machine.run("systemctl start --no-block edge-ota.service")
    fleet.wait_for(4, "PROBATION")
    pid = site.machine.run("systemctl show -p MainPID --value edge-ota.service").strip()
    peak = site.machine.run(f"awk '/VmHWM/ {{ print $2 }}' /proc/{pid}/status")
    print(f"memory of the agent: {int(peak) / 1024:.0f} MiB at most")
    assert int(peak) < 80 * 1024
    site.machine.run("systemctl stop edge-ota.service")
    for left in (2, 1):
        site.machine.run("systemctl restart edge-serve", 120)
        assert f"{left} of the starts of release 4 are left" in fleet.journal()
        assert site.ask("GET", "/v2/models/simple")[1].count('"4"') == 1
    site.machine.run("systemctl restart edge-serve", 120)
    assert site.ask("GET", "/v2/models/simple")[1].count('"2"') == 1
    assert site.infer() == 200
    shown = site.machine.run("edge-ota status")
    assert "simple: release 2 serves" in shown
    assert "crash_loop" in shown
    assert "rolled_back" in site.machine.run("edge-ota history")
    metrics = site.metrics()
    assert "edge_ota_rollbacks_total 1" in metrics
    assert "edge_ota_bad_releases 2" in metrics
    assert 'edge_ota_release{model="simple",release="2"} 1' in metrics


def test_device_serves_and_updates_after_a_power_cut(site: Service, fleet: Fleet) -> None:
    machine = site.machine
    machine.run("sync")
    machine.boot.cut()
    machine.start()
    site.recovered_in("simple", 60)
    assert site.ask("GET", "/v2/models/simple")[1].count('"2"') == 1
    assert machine.run(f"systemctl is-active {ENABLED.replace('edge-ota-boot.service', '')}").split() == ["active"] * 3
    assert machine.run("systemctl show -p ConditionResult --value edge-ota-boot.service").strip() == "yes"
    fleet.configure(2)
    fleet.serve()
    fleet.publish(5)
    fleet.wait_for(5)
    assert site.infer() == 200


def test_package_upgrade_restarts_a_run_of_the_agent(site: Service, fleet: Fleet) -> None:
    machine = site.machine
    machine.run("systemctl stop edge-ota.timer edge-ota.service")
    fleet.configure(3600)
    fleet.publish(6)
    machine.run("systemctl start --no-block edge-ota.service")
    fleet.wait_for(6, "PROBATION")
    machine.run(f"dpkg -i {KEPT}/edge-serve_*.deb", 120)

    def runs_the_new_one() -> bool:
        current = machine.run("readlink -f /opt/edge-serve/current").strip()
        pid = machine.run("systemctl show -p MainPID --value edge-ota.service").strip()
        return current in machine.try_run(f"tr '\\0' ' ' </proc/{pid}/cmdline").output

    assert wait_until(runs_the_new_one, 30 * site.patience, 0.3)
    fleet.wait_for(6, "PROBATION")
    site.recovered_in("simple", 60)
