"""Clients that go on asking while the server drains: each request that was sent is answered (FINDINGS C7)."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.server.running import ADD_SUB, PATIENCE, python_model, running

#: says that it runs, and answers once it may
GATED = ADD_SUB.replace(
    "        replies = []",
    """\
        import os, time
        open(os.path.join(GATES, "running"), "w").close()
        while not os.path.exists(os.path.join(GATES, "answer")):
            time.sleep(0.01)
        replies = []""",
)
_TENSOR = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
BODY = json.dumps({"inputs": [{"name": name, **_TENSOR} for name in ("INPUT0", "INPUT1")]})


@dataclass
class Client:
    """Asks without end on connections that it keeps as long as the server does."""

    port: int
    statuses: list[int] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    kept_after_refusal: int = 0

    def ask_until_refused(self) -> None:
        """Until no connection can be made any more."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                connection.connect()
            except OSError:
                return
            with contextlib.closing(connection):
                self._ask(connection)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        promised = False
        while True:
            try:
                connection.request("POST", "/v2/models/m/infer", BODY)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                if promised:  # a connection that was made too late is as good as one that is refused
                    self.unanswered.append(repr(error))
                return
            promised = True
            self.statuses.append(answer.status)
            if answer.will_close:
                return
            self.kept_after_refusal += answer.status == 503


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_refusal_while_draining_ends_its_connection(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    python_model(tmp_path / "models", "slow", f"GATES = {str(tmp_path)!r}\n{GATED}")
    with running(f"--model-repository={tmp_path / 'models'}") as server:
        clients = [Client(server.http) for _ in range(8)]
        threads = [threading.Thread(target=client.ask_until_refused) for client in clients]
        held = threading.Thread(target=server.add_sub, args=("slow",))
        for thread in (held, *threads):
            thread.start()
        until(lambda: (tmp_path / "running").exists() and all(client.statuses for client in clients))
        server.process.send_signal(signal.SIGTERM)  # the drain waits for the slow model
        until(lambda: all(client.statuses.count(503) >= 10 for client in clients))
        (tmp_path / "answer").touch()
        for thread in (held, *threads):
            thread.join(PATIENCE)
        assert server.process.wait(PATIENCE) == 0
    statuses = [status for client in clients for status in client.statuses]
    assert 503 in statuses
    assert set(statuses) == {200, 503}
    assert sum(client.kept_after_refusal for client in clients) == 0
    assert [text for client in clients for text in client.unanswered] == []
