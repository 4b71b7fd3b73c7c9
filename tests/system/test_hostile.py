"""A hostile model.py in the packaged service, with TLS: docs/security.md has the table of what it may still do."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.server.hostile import CONFIG, MODEL, question, results
from tests.system.service import METRICS, MODELS, Service

DENIED, UNSEEN, REFUSED = "Permission denied", "Operation not permitted", "HTTP/1.1 403 Forbidden"
#: ProtectProc= hides a process from those that may not look into it
HIDDEN = "No such file or directory"
CREDENTIALS = "/run/credentials/edge-serve.service"
#: as the user of the service reads it
_VERSION = "python3 -c 'import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))'"


def attempt(service: Service, *attempts: list[Any]) -> list[str]:
    status, text = service.ask("POST", "/v2/models/hostile/infer", question(list(attempts)))
    assert status == 200, text
    return results(json.loads(text))


@pytest.fixture
def attacked(fresh: Service, tmp_path: Path) -> Service:
    """Return the service with a key among its credentials, and a hostile model beside another."""
    for name in ("hostile", "victim"):
        fresh.machine.put(f"{MODELS}/{name}/config.pbtxt", CONFIG.encode())
        fresh.machine.put(f"{MODELS}/{name}/1/model.py", MODEL.encode())
    pair = Authority(tmp_path).issue()
    fresh.machine.put("/etc/edge-serve/credentials/server.key", pair.key.read_bytes())
    fresh.machine.put("/etc/edge-serve/credentials/server.crt", pair.certificate.read_bytes())
    given = f"{CREDENTIALS}/edge-serve_server"
    fresh.configure(grpc_use_ssl="true", grpc_server_cert=f"{given}.crt", grpc_server_key=f"{given}.key")
    return fresh


def test_hostile_model_cannot_reach_the_server(attacked: Service) -> None:
    version = int(attacked.machine.run(_VERSION))
    if version < 2:
        pytest.skip("this kernel has no Landlock")
    attacked.start()
    workers = json.loads(attacked.machine.run("edge-serve status --json"))["workers"]
    victim = next(int(one["pid"]) for one in workers if "victim" in json.dumps(one))
    front = attacked.main_pid()
    home, state = "/var/lib/edge-serve/home", "/var/lib/edge-serve"

    found = attempt(
        attacked,
        ["work"], ["create", f"{home}/kept"], ["read", f"{MODELS}/hostile/config.pbtxt"],
    )  # fmt: skip
    assert found == ["worked", "done", str(len(CONFIG))]

    found = attempt(
        attacked,
        ["read", f"{CREDENTIALS}/edge-serve_server.key"], ["read", f"{MODELS}/victim/1/model.py"],
        ["read", f"{state}/crashes.json"], ["create", f"{state}/edge_serve.py"],
    )  # fmt: skip
    assert found == [DENIED] * 4

    found = attempt(
        attacked,
        *(["read", f"/proc/{process}/{name}"] for process in (front, victim) for name in ("mem", "environ")),
        ["arenas", front], ["arenas", victim], ["spy", front], ["spy", victim],
    )  # fmt: skip
    assert [one for one in found if one not in (DENIED, UNSEEN, HIDDEN)] == []

    found = attempt(attacked, ["create", f"{MODELS}/hostile/1/cache"], ["move", f"{MODELS}/victim", f"{MODELS}/gone"])
    assert set(found) <= {"Read-only file system", DENIED}
    socket = "/run/edge-serve/admin.sock"
    assert attempt(attacked, ["unix", socket], ["unix", socket, "daemon"]) == [REFUSED, REFUSED]
    assert attempt(attacked, ["unix", "/run/dbus/system_bus_socket"]) == ["done"], "it heard nothing"
    if version >= 6:
        assert attempt(attacked, ["kill", "front end", signal.SIGKILL]) == [UNSEEN]
    assert "victim" in attacked.machine.run("edge-serve status"), "the socket is open to root"


def test_modules_written_by_a_model_are_not_imported(attacked: Service) -> None:
    """Check the directories that a model could write to in earlier versions: the state directory."""
    for name in ("edge_serve/__init__", "numpy", "usercustomize"):
        attacked.machine.put(f"/var/lib/edge-serve/{name}.py", b"raise SystemExit('hostile')\n")
    attacked.machine.run("chown -R edge-serve: /var/lib/edge-serve/edge_serve /var/lib/edge-serve/*.py")

    attacked.start()

    assert attempt(attacked, ["work"]) == ["worked"]
    assert "hostile'" not in attacked.journal()


def test_network_of_models_can_be_closed(attacked: Service) -> None:
    """Follow docs/security.md; the server's ports stay open."""
    attacked.override("[Service]\nPrivateNetwork=yes\n")
    attacked.start()
    if "PrivateNetwork=yes is configured, but" in attacked.machine.run("journalctl -u edge-serve -b --no-pager"):
        pytest.skip("this container may not make a network namespace, which systemd has said")

    found = attempt(attacked, ["connect", "127.0.0.1", METRICS], ["connect", "10.0.2.2", 80])

    assert [one for one in found if one == "done"] == []
    assert "nv_inference_request_success" in attacked.metrics()


def test_model_cannot_open_a_port(attacked: Service) -> None:
    bind = 'import socket; socket.socket().bind(("", 9999))'
    probe = f"systemd-run --wait --quiet --pipe -p SocketBindDeny=any python3 -c '{bind}'"
    if attacked.machine.try_run(probe).status == 0:
        pytest.skip("SocketBindDeny= has no effect: needs systemd with +BPF_FRAMEWORK (not Debian 12), cgroup v2")
    attacked.start()

    assert attempt(attacked, ["bind", "0.0.0.0", 9999]) == [UNSEEN]
