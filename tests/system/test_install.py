"""The package: installed offline, started, used from outside, configured, upgraded, removed."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from deploy.program import CHECKOUT
from tests.system.agent import KEPT
from tests.system.machine import wait_until
from tests.system.service import CONF_D, HTTP, METRICS, Service


def test_started_and_answers_from_outside(fresh: Service) -> None:
    fresh.add_shipped_models("simple", "simple_string")

    fresh.start()  # returns when the models are ready

    assert fresh.show("ActiveState") == "active"
    assert fresh.infer() == 200
    assert 'nv_inference_request_success{model="simple",version="1"} 1' in fresh.metrics()
    assert "2 models ready" in fresh.show("StatusText")


def test_is_enabled_with_its_sockets(installed: Service) -> None:
    units = "edge-serve.service edge-serve.socket edge-serve-grpc.socket edge-serve-metrics.socket"
    assert installed.machine.run(f"systemctl is-enabled {units}").split() == ["enabled"] * 4


def test_only_inference_and_metrics_are_open_to_the_network(service: Service) -> None:
    listening = service.machine.run("ss -Hltn").splitlines()
    ports = {line.split()[3] for line in listening}

    assert {address for address in ports if address.endswith((":8000", ":8001", ":8002"))} == {
        f"*:{HTTP}", "127.0.0.1:8001", "[::1]:8001", f"*:{METRICS}",
    }  # fmt: skip
    status = service.status_of("POST", "/v2/repository/models/simple/unload", {})
    assert status == 403, "administration from outside"
    assert service.infer() == 200


def test_installation_output_names_the_open_ports(installed: Service) -> None:
    if not installed.installation:
        pytest.skip("the image of a virtual machine has the package already")
    last = installed.installation.splitlines()[-1]
    assert "run inferences (port 8000) and read metrics (port 8002); gRPC (port 8001) and administration are" in last
    assert last.endswith("/usr/share/doc/edge-serve/security.md")


def test_documented_commands_close_the_ports(fresh: Service) -> None:
    page = (CHECKOUT / "docs/security.md").read_text().partition("### Close the ports")[2]
    commands = page.partition("```bash\n")[2].partition("```")[0]
    fresh.add_shipped_models("simple")
    fresh.start()
    assert fresh.infer() == 200

    fresh.machine.run(commands, 60)
    try:
        assert fresh.infer() == 0, "from another host"
        inside = "import urllib.request as u; print(u.urlopen('http://localhost:{}{}').status)"
        for port, path in ((HTTP, "/v2/health/ready"), (METRICS, "/metrics")):
            assert fresh.machine.run(f'python3 -c "{inside.format(port, path)}"') == "200\n"
    finally:
        fresh.machine.run("rm -r /etc/systemd/system/edge-serve*.socket.d && systemctl daemon-reload")
        fresh.machine.run("systemctl restart edge-serve edge-serve.socket edge-serve-metrics.socket", 60)


def test_tritonserver_command_is_installed(installed: Service) -> None:
    assert installed.machine.run("tritonserver --help").startswith("Usage: tritonserver ")
    done = installed.machine.try_run("tritonserver --model-repository=s3://bucket/models")
    assert (done.status, done.output.partition(":")[0]) == (1, "tritonserver")


#: on the machine: the status of a POST to the HTTP port, over IPv4 and over IPv6
_ASK = b"""
import http.client, sys
for host in ("127.0.0.1", "::1"):
    connection = http.client.HTTPConnection(host, 8000, timeout=10)
    connection.request("POST", sys.argv[1], "{}")
    print(connection.getresponse().status)
"""


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_administration_needs_the_admin_socket(service: Service, user: str) -> None:
    service.machine.put(f"{KEPT}/ask.py", _ASK)
    asked = f"setpriv --reuid {user} --clear-groups python3 {KEPT}/ask.py /v2"
    assert service.machine.run(f"{asked}/repository/models/simple/unload").split() == ["403", "403"]
    assert service.machine.run(f"{asked}/logging").split() == ["403", "403"]
    assert service.machine.run(f"{asked}/repository/index").split() == ["200", "200"]


def test_revoked_token_stops_working(fresh: Service) -> None:
    machine = fresh.machine
    token = machine.run("edge-serve token /etc/edge-serve/tokens infer camera").strip()
    assert machine.run("stat -c '%a %U %G' /etc/edge-serve/tokens") == "640 root edge-serve\n"
    fresh.configure(token_file="/etc/edge-serve/tokens")
    fresh.start()

    def status() -> int:
        return fresh.ask("GET", "/v2", headers={"Authorization": f"Bearer {token}"})[0]

    assert status() == 200
    machine.run("sed -i /camera/d /etc/edge-serve/tokens")
    assert wait_until(lambda: status() == 401, 4 * fresh.patience)


def test_units_are_clean_and_locked_down(installed: Service) -> None:
    units = "edge-serve.service edge-serve.socket edge-serve-grpc.socket edge-serve-metrics.socket"
    assert installed.machine.run(f"systemd-analyze verify {units}") == ""
    report = installed.machine.run("systemd-analyze security --no-pager edge-serve")
    exposure = float(report.rstrip().rpartition("exposure level for edge-serve.service: ")[2].split()[0])
    assert exposure <= 2.0, report


def test_service_writes_only_its_own_directories(service: Service) -> None:
    script = (
        "touch /var/lib/edge-serve/a /var/cache/edge-serve/a /run/edge-serve/a /tmp/a && "
        "! touch /opt/edge-serve/a && ! touch /etc/edge-serve/a && ! touch /usr/a && ! touch /home/a && "
        "! ls /etc/edge-serve/credentials"
    )
    properties = service.machine.run(
        "systemctl show edge-serve -p ProtectSystem,StateDirectory,ProtectHome,NoNewPrivileges,MemoryDenyWriteExecute"
    )
    pid = service.main_pid()
    done = service.machine.try_run(
        f"nsenter -t {pid} -m setpriv --reuid edge-serve --regid edge-serve --clear-groups sh -c '{script}'"
    )
    assert done.status == 0, f"{properties}\n{done.output}"


def test_reload_loads_new_models_in_the_same_process(service: Service) -> None:
    before = service.main_pid()
    service.add_shipped_models("simple_string")

    service.machine.run("systemctl reload edge-serve", 120)

    assert wait_until(lambda: "2 models ready" in service.show("StatusText"), 20 * service.patience)
    assert wait_until(lambda: service.show("ActiveState") == "active", 5 * service.patience)
    assert service.main_pid() == before


def test_tls_keys_are_read_from_credentials(fresh: Service, tmp_path: Path) -> None:
    """Put the keys into files that only root may read; systemd gives the service copies."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=edge"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    for file in (key, certificate):
        fresh.machine.put(f"/etc/edge-serve/credentials/{file.name}", file.read_bytes())
    given = "/run/credentials/edge-serve.service/edge-serve_server"
    fresh.configure(http_use_ssl="true", http_server_cert=f"{given}.crt", http_server_key=f"{given}.key")
    fresh.start()

    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    address = fresh.machine.boot.address(HTTP)
    connection = http.client.HTTPSConnection(*address, timeout=10 * fresh.patience, context=context)
    connection.request("GET", "/v2/health/ready")
    assert connection.getresponse().status == 200
    connection.close()
    assert fresh.status_of("GET", "/v2/health/ready") == 400, "without TLS, which is told and not served"


def test_reinstallation_keeps_the_service_and_its_settings(service: Service) -> None:
    service.configure(log_verbose="0")
    before = service.main_pid()

    service.machine.run(f"dpkg -i {KEPT}/edge-serve_*.deb", 120)

    assert service.machine.run(f"tail -1 {CONF_D}/90-test.conf") == "EDGE_SERVE_LOG_VERBOSE=0\n"
    service.recovered_in("simple", 30)
    assert service.main_pid() != before, "it runs the new program"


def test_upgrade_to_a_program_that_cannot_start_is_refused(service: Service) -> None:
    """Check that the old server keeps running, and that dpkg reports the new package as not installed."""
    before = service.main_pid()
    versions = set(
        service.machine.run("ls /opt/edge-serve/versions").split()
    )  # the previous one is removed a little later
    start = "/opt/edge-serve/package/bin/edge-serve"
    service.machine.run(
        f"cp -p {start} {KEPT}/start; echo 'raise SystemExit(3)' >> {start}; sed -i '/main()/d' {start}"
    )
    try:
        done = service.machine.try_run("/var/lib/dpkg/info/edge-serve.postinst configure 0.0.1")
    finally:
        service.machine.run(f"cp -p {KEPT}/start {start}")

    assert done.status == 1
    assert "the old one keeps running" in done.output
    assert set(service.machine.run("ls /opt/edge-serve/versions").split()) <= versions, "nothing is left of the new one"
    assert service.main_pid() == before
    assert service.infer() == 200
