"""Sockets that a manager holds: which is whose, and restarts that no client notices."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from edge_serve.config.settings.server import ServerConfig
from edge_serve.errors import InvalidArgument
from edge_serve.systemd import activation
from edge_serve.systemd.activation import door_of, inherit, numbers_and_names
from edge_serve.transport.door.listeners import Listener
from tests.server.running import ADD_SUB, PATIENCE, python_model
from tests.supervision.manager import Mailbox, mailbox, ready

#: for a start or a stop beside everything else that a test machine does
LONG = 3 * PATIENCE
SLOW = ADD_SUB.replace("        replies = []", "        __import__('time').sleep(0.4)\n        replies = []")
BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
)


def test_descriptors_and_their_names() -> None:
    environ = {"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "http:grpc"}
    assert numbers_and_names(environ, 7) == [(3, "http"), (4, "grpc"), (5, "")]
    assert numbers_and_names(environ, 8) == []
    assert numbers_and_names({}, 7) == []
    for count in ("two", "", "-1", "1000000000"):
        with pytest.raises(InvalidArgument, match=f"LISTEN_FDS is '{count}'"):
            numbers_and_names({"LISTEN_PID": "7", "LISTEN_FDS": count}, 7)


@pytest.mark.parametrize(
    ("name", "place", "door"),
    [
        ("metrics", 8000, "metrics"),
        ("edge-serve.socket", 8000, "http"),
        ("", 8001, "grpc"),
        ("", 8002, "metrics"),
        ("", "/run/http", "http"),
        ("", "/run/admin", "admin"),
    ],
)
def test_doors_by_name_or_address(name: str, place: int | str, door: str) -> None:
    assert door_of(name, place, ServerConfig(http_unix_socket="/run/http", admin_socket="/run/admin")) == door


@pytest.mark.parametrize("place", [9000, "/run/other", ""])
def test_a_socket_for_no_door_is_refused(place: int | str) -> None:
    with pytest.raises(InvalidArgument, match="expected FileDescriptorName= to be one of http, grpc, metrics, admin"):
        door_of("unit.socket", place, ServerConfig())


@pytest.mark.parametrize("place", [9000, "@admin", ""])
def test_the_admin_door_has_a_path(place: int | str) -> None:
    assert door_of("admin", "/run/admin", ServerConfig()) == "admin"
    text = f"found {place or 'an unknown place'} for it from the service manager, expected ListenStream= to be a path"
    with pytest.raises(InvalidArgument, match=text):
        door_of("admin", place, ServerConfig())


def test_an_abstract_socket_has_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"@edge-serve-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(place.replace("@", "\0"))
        sock.listen()
        monkeypatch.setattr(activation, "adopt", lambda fd: Listener(sock))
        for name, config in (("admin", ServerConfig()), ("unit.socket", ServerConfig(admin_socket=place))):
            with pytest.raises(InvalidArgument, match=f"found {place} for it"):
                inherit({"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": name}, 7, config)
        found = inherit({"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}, 7, ServerConfig())
        assert [listener.name for listener in found["http"]] == [place]


@dataclass
class Systemd:
    """Holds sockets, and starts and stops the service, as the real one does."""

    box: Mailbox
    flags: list[str]
    sockets: dict[str, socket.socket]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    statuses: list[int] = field(default_factory=list)

    def start(self, *, wait: bool = True) -> None:
        """Hand the sockets over as descriptors 3, 4, ...; LISTEN_PID must be the process's own, so a shell says it."""
        fds = [sock.fileno() for sock in self.sockets.values()]
        moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(fds))
        script = f'export LISTEN_PID=$$; exec "$@" {moves}'
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": self.box.address,
            "LISTEN_FDS": str(len(fds)),
            "LISTEN_FDNAMES": ":".join(self.sockets),
        }
        command = [sys.executable, "-m", "edge_serve", *self.flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", script, "bash", *command], pass_fds=fds, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        if wait:
            try:
                self.box.wait_for(ready, LONG)
            except AssertionError as error:
                raise AssertionError(self.log.read_text()) from error

    def stop(self) -> None:
        """`systemctl stop`: the sockets stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.statuses.append(self.process.wait(LONG))

    @property
    def port(self) -> int:
        """Of the door of HTTP."""
        return int(self.sockets["http"].getsockname()[1])


@contextlib.contextmanager
def systemd(tmp_path: Path, *flags: str, names: tuple[str, ...] = ("http", "metrics")) -> Iterator[Systemd]:
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(mailbox(tmp_path / "notify"))
        sockets = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024)) for name in names}
        given = [f"--model-repository={tmp_path}/models", f"--allow-grpc={str('grpc' in names).lower()}", *flags]
        manager = Systemd(box, given, sockets, tmp_path / "log")
        try:
            yield manager
        finally:
            if manager.process is not None and manager.process.poll() is None:
                manager.process.kill()
                manager.process.wait()


def client(port: int) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG))


def ask(connection: http.client.HTTPConnection, model: str = "quick") -> tuple[int, bool]:
    """One infer: status, and whether the server said that it closes the connection."""
    connection.request("POST", f"/v2/models/{model}/infer", BODY)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return answer.status, answer.getheader("Connection") == "close"


class Load:
    """Clients that ask until they are told to stop."""

    def __init__(self, port: int, clients: int, one: Callable[[int, Load], None]) -> None:
        self.port = port
        self.answers: Counter[int | str] = Counter()
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, one: Callable[[int, Load], None]) -> None:
        try:
            one(self.port, self)
        except Exception as error:  # what a client would call a failed request
            self.answers[f"{type(error).__name__}: {error}"] += 1

    def end(self) -> Counter[int | str]:
        """Stop the clients. Return how often each answer came."""
        self.over.set()
        for thread in self._threads:
            thread.join(LONG)
        return self.answers


def fresh(port: int, load: Load) -> None:
    """A connection for each request."""
    while not load.over.is_set():
        with client(port) as connection:
            load.answers[ask(connection)[0]] += 1


def keep_alive(port: int, load: Load) -> None:
    """One connection, opened again when the server has closed it while it was idle, as RFC 9110 9.2.2 lets a client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    retries = 0
    while not load.over.is_set():
        try:
            load.answers[ask(connection)[0]] += 1
            retries = 0
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            connection.close()
            retries += 1
            if retries > 1:
                raise
    connection.close()


def over_grpc(port: int, load: Load) -> None:
    """One channel, which connects anew when the server says GOAWAY."""
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for one in inputs:
        one.set_data_from_numpy(np.ones((1, 16), np.int32))
    with contextlib.closing(triton.InferenceServerClient(f"127.0.0.1:{port}")) as channel:
        while not load.over.is_set():
            channel.infer("quick", inputs)
            load.answers[200] += 1


def restart_under_load(tmp_path: Path, door: str, one: Callable[[int, Load], None], connections: int) -> None:
    """Ten times."""
    python_model(tmp_path / "models", "quick")
    with systemd(tmp_path, names=("http", "grpc", "metrics")) as manager:
        manager.start()
        load = Load(manager.sockets[door].getsockname()[1], connections, one)
        for _ in range(10):
            before = load.answers[200]
            while load.answers[200] < before + 100:
                time.sleep(0.01)
            manager.stop()
            manager.start()
        answers = load.end()
        assert set(answers) == {200}
        assert manager.statuses == [0] * 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", [fresh, keep_alive])
def test_ten_restarts_under_load_fail_no_request(tmp_path: Path, one: Callable[[int, Load], None]) -> None:
    restart_under_load(tmp_path, "http", one, 16)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_restarts_under_grpc_load_fail_no_call(tmp_path: Path) -> None:
    restart_under_load(tmp_path, "grpc", over_grpc, 8)


def test_active_clients_are_asked_to_close_and_idle_clients_may_still_send(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "quick")
    python_model(tmp_path / "models", "slow", SLOW)
    with systemd(tmp_path) as manager, contextlib.ExitStack() as stack:
        manager.start()
        assert manager.process is not None
        idle, silent, busy, late = (stack.enter_context(client(manager.port)) for _ in range(4))
        for connection in (idle, busy):
            assert ask(connection) == (200, False)
        silent.connect()
        busy.request("POST", "/v2/models/slow/infer", BODY)
        time.sleep(0.1)  # it runs
        manager.process.send_signal(signal.SIGTERM)
        manager.box.wait_for(lambda message: message.get("STOPPING") == "1")

        for connection in (idle, silent, late):  # the last waits in the socket's queue
            connection.request("POST", "/v2/models/quick/infer", BODY)
        for connection in (idle, silent, busy):
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (200, "close")
        assert manager.process.wait(PATIENCE) == 0

        manager.start()
        assert late.getresponse().status == 200


def test_an_idle_connection_is_closed_after_its_grace(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "quick")
    with systemd(tmp_path) as manager:
        manager.start()
        with client(manager.port) as connection:
            assert ask(connection) == (200, False)
            began = time.monotonic()
            manager.stop()
            assert 0.9 < time.monotonic() - began < 10
            assert connection.sock.recv(1) == b""


def test_clients_wait_for_the_models_but_not_for_metrics(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"\n    def initialize(self, args):\n        while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    python_model(tmp_path / "models", "quick", "import os, time\n" + ADD_SUB + waits)
    with systemd(tmp_path) as manager:
        manager.start(wait=False)
        manager.box.wait_for(lambda message: "loading quick" in message.get("STATUS", ""))
        with client(manager.port) as early, client(manager.sockets["metrics"].getsockname()[1]) as scraper:
            early.request("POST", "/v2/models/quick/infer", BODY)
            scraper.request("GET", "/metrics")
            assert scraper.getresponse().status == 200
            gate.touch()
            assert early.getresponse().status == 200


def test_a_descriptor_that_is_no_socket_is_reported(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    command = [
        "bash", "-c", f'export LISTEN_PID=$$; exec "$@" 3<&{reader}', "bash", sys.executable, "-m", "edge_serve",
        f"--model-repository={tmp_path}",
    ]  # fmt: skip
    environment = {**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    done = subprocess.run(command, pass_fds=[reader], env=environment, capture_output=True, timeout=LONG)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 1
    assert b"socket 'http' of the service manager" in done.stderr
    assert b"Traceback" not in done.stderr


def test_nothing_is_inherited_without_a_manager() -> None:
    assert not inherit({}, 1, ServerConfig())
