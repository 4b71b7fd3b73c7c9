"""Busy clients in a process of their own, and what they saw: versions, counts, and each request that failed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).parents[3]

#: asks until its standard input is closed
_CLIENTS = """
import json, sys, threading
from tests.server.load import Client
port, model, connections, odd = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
stop, lock = threading.Event(), threading.Lock()
versions, failures, odd_answers = {}, [], {}
def body(value):
    row = {"datatype": "INT32", "shape": [1, 16], "data": [value] * 16}
    return json.dumps({"inputs": [{"name": name, **row} for name in ("INPUT0", "INPUT1")]})
GOOD, ODD = body(1), odd
def ask(number):
    client, count = Client(port), number
    while not stop.is_set():
        count += 1
        strange = ODD is not None and count % 2
        try:
            status, answer = client.infer(model, ODD if strange else GOOD)
        except Exception as error:
            status, answer, client = 0, {"error": repr(error)}, Client(port)
        with lock:
            if strange:
                odd_answers[status] = odd_answers.get(status, 0) + 1
            elif status == 200 and answer["outputs"][0]["data"] == [2] * 16:
                version = answer["model_version"]
                versions[version] = versions.get(version, 0) + 1
            elif len(failures) < 10_000:
                failures.append([status, str(answer.get("error", answer))])
threads = [threading.Thread(target=ask, args=(number,)) for number in range(connections)]
[one.start() for one in threads]
sys.stdin.read()
stop.set()
[one.join() for one in threads]
print(json.dumps([versions, failures, odd_answers]))
"""


@dataclass
class Seen:
    """The answers that clients received.

    Attributes:
        versions: version -> right answers; failures: (HTTP status, error) of requests that should have succeeded.
        odd: HTTP status -> answers to odd requests.
    """

    versions: dict[str, int] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    odd: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def busy(port: int, model: str = "det", connections: int = 16, odd: Any = None) -> Iterator[Seen]:
    """Ask while this lasts; the values are there at the end.

    Args:
        odd: the body of every second request.
    """
    seen = Seen()
    command = [sys.executable, "-c", _CLIENTS, str(port), model, str(connections), json.dumps(odd)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_CHECKOUT) as clients:
        try:
            yield seen
        finally:
            out, _ = clients.communicate(timeout=60)
    versions, failures, odd_answers = json.loads(out)
    seen.versions, seen.odd = versions, odd_answers
    seen.failures = [(status, text) for status, text in failures]
