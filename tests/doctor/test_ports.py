"""The owner of a port: the running server, systemd for it, another program, or no process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_serve.doctor import ports
from edge_serve.doctor.ports import DoorPort, Owner, examine_port, find_owner


def port_of(number: int, flag: str = "--http-port") -> DoorPort:
    return DoorPort(number, "127.0.0.1", flag)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_free_port() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]

    assert (examine_port(port_of(port)).text, examine_port(port_of(port)).good) == (f"{port}: free", True)


def test_a_port_is_free_for_one_address_only(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.2", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert examine_port(DoorPort(port, "127.0.0.1", "--http-port")).good is True
        everywhere = examine_port(DoorPort(port, "0.0.0.0", "--http-port"))
    assert (everywhere.good, everywhere.advice[:18]) == (False, "stop that program,")
    elsewhere = examine_port(DoorPort(port, "192.0.2.7", "--http-port"), root=tmp_path)
    assert (elsewhere.text, elsewhere.good) == (f"{port}: Cannot assign requested address", False)
    assert elsewhere.advice.startswith("give an address of this machine")


def test_a_server_on_another_address_makes_no_address_good(taken: int, tmp_path: Path) -> None:
    server = {"pid": 77, "doors": {"HTTP": [f"127.0.0.1:{taken}"]}}
    root = proc(tmp_path, taken, b"edge-serve\0serve\0")
    finding = examine_port(DoorPort(taken, "192.0.2.7", "--http-port"), {"server": server}, root=root)

    assert (finding.text, finding.good) == (f"{taken}: Cannot assign requested address", False)


def test_a_server_has_a_port_that_this_user_may_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel compares rights first."""
    monkeypatch.setattr(ports, "_refusal", lambda _: PermissionError(errno.EACCES, "Permission denied"))
    document = {"server": {"pid": 77, "doors": {"HTTP": ["127.0.0.1:80"]}}, "versions": {"edge-serve": "0.1.0"}}

    assert examine_port(port_of(80), document).text == "80: edge-serve 0.1.0 listens here for HTTP (pid 77)"


def test_an_address_that_is_too_long_for_a_name_is_reported() -> None:
    finding = examine_port(DoorPort(8000, "a" * 70, "--http-port"))

    assert (finding.text, finding.good) == ("8000: the address is too long for a name", False)


def test_an_unknown_name_is_no_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    finding = examine_port(DoorPort(8000, "cart-7", "--http-port"))
    assert not finding.good
    assert finding.advice.startswith("give an address of this machine")


def test_the_running_server_has_its_port(taken: int) -> None:
    server = {"pid": 77, "doors": {"HTTP": ["127.0.0.1:1"], "metrics": [f"[::]:{taken}"]}}
    document: dict[str, Any] = {"server": server, "versions": {"edge-serve": "0.1.0"}}

    finding = examine_port(port_of(taken, "--metrics-port"), document)
    assert (finding.text, finding.good) == (f"{taken}: edge-serve 0.1.0 listens here for metrics (pid 77)", True)


def test_systemd_may_hold_the_port_for_the_server(taken: int, tmp_path: Path) -> None:
    finding = examine_port(port_of(taken), held=[taken], root=tmp_path)

    assert (finding.text, finding.good) == (f"{taken}: systemd holds it for edge-serve", True)


def test_another_program_is_named(taken: int) -> None:
    finding = examine_port(port_of(taken))

    assert finding.good is False
    assert f"(pid {os.getpid()})" in finding.text
    assert finding.advice == "stop that program, or choose another port with --http-port"


def proc(root: Path, port: int, command: bytes, *, readable: bool = True) -> Path:
    """A /proc in which process 42 listens on `port`."""
    (root / "proc/net").mkdir(parents=True)
    line = f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 4711 1 0000 100\n"
    (root / "proc/net/tcp").write_text("  sl  local_address ...\n" + line)
    folder = root / "proc/42"
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(command)
    if readable:
        (folder / "fd/3").symlink_to("socket:[4711]")
    return root


@pytest.mark.parametrize(
    ("command", "ours"),
    [(b"/opt/edge-serve/bin/python3\0/usr/bin/edge-serve\0serve\0", True), (b"python\0-m\0edge_serve\0", True),
     (b"nginx: master process\0", False)],
)  # fmt: skip
def test_the_owner_of_a_port_is_found_in_proc(tmp_path: Path, command: bytes, ours: bool) -> None:
    owner = find_owner(8000, proc(tmp_path, 8000, command))

    assert owner is not None
    assert (owner.pid, owner.is_ours) == (42, ours)
    assert find_owner(8001, tmp_path) is None


def test_a_server_that_does_not_tell_its_status_is_known_by_its_command(taken: int, tmp_path: Path) -> None:
    finding = examine_port(port_of(taken), root=proc(tmp_path, taken, b"edge-serve\0serve\0"))

    assert (finding.text, finding.good) == (f"{taken}: edge-serve listens here (pid 42)", True)


def test_another_users_program_is_for_root_to_name(taken: int, tmp_path: Path) -> None:
    root = proc(tmp_path, taken, b"", readable=False)

    assert find_owner(taken, root) == Owner()
    assert "root sees by which program" in examine_port(port_of(taken), root=root).text
