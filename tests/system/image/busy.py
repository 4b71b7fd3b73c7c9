"""Clients that are busy while a device restarts, and a model that notes which requests arrived."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter

from tests.system.machine import UNREACHABLE
from tests.system.service import HTTP, Service

MODEL = "noted"
#: writes the id of each request to the service's journal, before it answers
NOTED = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pb_utils.Logger.log_info(f"arrived {request.request_id()}.")
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)]))
        return responses
"""
_CONNECTIONS = 16
#: between two tries to connect
_PAUSE_SECONDS = 0.5
_INPUT = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}


class Busy:
    """Sixteen clients with a connection each. A request has an id, which no other one has.

    Attributes:
        answered: ids of the requests with a complete answer, and the time of it
        refused: number of requests by the error that the client saw
    """

    def __init__(self, service: Service) -> None:
        self.answered: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self._service = service
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(_CONNECTIONS)]

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def longest_pause(self) -> float:
        """Return the longest time in seconds without an answer to any client."""
        times = sorted(self.answered.values())
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _run(self, number: int) -> None:
        connection: http.client.HTTPConnection | None = None
        asked = 0
        while not self._over.is_set():
            asked += 1
            name = f"{number}-{asked}"
            try:
                if connection is None:
                    address = self._service.machine.boot.address(HTTP)
                    connection = http.client.HTTPConnection(*address, timeout=10 * self._service.patience)
                connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps({"id": name, "inputs": [_INPUT]}))
                answer = connection.getresponse()
                text = answer.read()
            except UNREACHABLE as error:
                self.refused[type(error).__name__] += 1
                if connection is not None:
                    connection.close()
                connection = None
                self._over.wait(_PAUSE_SECONDS)
                continue
            if answer.status == 200:
                self.answered[name] = time.monotonic()
            else:
                self.refused[f"{answer.status} {text[:200]!r}"] += 1
                self._over.wait(_PAUSE_SECONDS)
        if connection is not None:
            connection.close()
