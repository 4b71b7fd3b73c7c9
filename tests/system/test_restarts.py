"""`systemctl restart` under load: systemd holds the sockets, so requests wait and are answered."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable

import pytest

from tests.system.machine import UNREACHABLE
from tests.system.service import HTTP, Service

RESTARTS, CONNECTIONS = 10, 16

_BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)


class Client:
    """Sends requests until stopped, and counts the results."""

    #: one at a time
    _connecting = threading.Lock()

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connection: http.client.HTTPConnection | None = None
        self.answered = 0
        self.retried = 0
        self.failures: list[str] = []

    def fresh(self) -> None:
        """Send one request on a connection of its own, without a second try."""
        self._ask()
        self._hang_up()

    def kept_alive(self) -> None:
        """Send one request on the open connection, or on a new one if that was closed while idle (RFC 9112, 9.3.1)."""
        reused = self._connection is not None
        try:
            self._ask()
        except (ConnectionError, http.client.RemoteDisconnected):
            if not reused:
                raise
            self.retried += 1
            self._hang_up()
            self._ask()

    def run(self, request: Callable[[], None], over: threading.Event) -> None:
        """Send requests until stopped."""
        while not over.is_set():
            began = time.monotonic()
            try:
                request()
            except UNREACHABLE as error:
                self._hang_up()
                self.failures.append(f"{error!r} after {time.monotonic() - began:.1f} s, at {time.monotonic():.1f}")
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> None:
        if self._connection is None:
            address = self._service.machine.boot.address(HTTP)
            self._connection = http.client.HTTPConnection(*address, timeout=60 * self._service.patience)
            with self._connecting:
                self._connection.connect()
                time.sleep(self._service.machine.boot.pace)
        self._connection.request("POST", "/v2/models/simple/infer", _BODY)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status == 200:
            self.answered += 1
        else:
            self.failures.append(f"{answer.status} {text[:200]!r}")
        if answer.getheader("Connection", "").lower() == "close":
            self._hang_up()


@pytest.mark.parametrize("way", ["fresh", "kept_alive"])
def test_restarts_under_load_lose_no_request(service: Service, way: str) -> None:
    over = threading.Event()
    clients = [Client(service) for _ in range(CONNECTIONS)]
    threads = [threading.Thread(target=client.run, args=(getattr(client, way), over)) for client in clients]
    for thread in threads:
        thread.start()
    times = []
    try:
        for _ in range(RESTARTS):
            time.sleep(0.5)
            started = time.monotonic()
            service.machine.run("systemctl restart edge-serve", 60)
            times.append(time.monotonic() - started)
            print(f"restarted from {started:.1f} to {time.monotonic():.1f}")
        time.sleep(0.5)
    finally:
        over.set()
        for thread in threads:
            thread.join()

    failures = [text for client in clients for text in client.failures]
    answered = sum(client.answered for client in clients)
    retried = sum(client.retried for client in clients)
    print(f"{way}: {answered} answered, {retried} retried; a restart took {max(times):.1f} s at most")
    assert failures == [], failures[:5]
    assert min(client.answered for client in clients) > 0
    assert service.show("NRestarts") == "0", "restarted by hand only"
