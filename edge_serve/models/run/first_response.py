"""Times the first response to each request of a version, where `--metrics-config=histogram_latencies=true` asks for it.

Rules: triton-inference-server/core src/infer_response.cc (UpdateResponseMetrics). A request counts with its first
response, which may be an error or come from the response cache. A request that is refused when it arrives has none.
"""

from __future__ import annotations

from collections.abc import Hashable

from edge_serve.clock import Clock
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.run.runner import OnResponse, Submitter, Ticket
from edge_serve.models.run.statistics import record_first_response


class FirstResponseTimer:
    """Times the requests of one version, whose `statistics` have a histogram of first responses."""

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock

    def submit(
        self, runner: Submitter, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse
    ) -> Ticket:
        """Submit a request to `runner`, and count the time until its first response."""
        arrival_ns = self._clock.now_ns()
        waits, accepted = True, False

        def deliver(response: InferResponse) -> None:
            nonlocal waits
            if waits and not response.null:
                waits = False
                if accepted or response.error is None:
                    record_first_response(self._statistics, self._clock.now_ns() - arrival_ns)
            on_response(response)

        ticket = runner.submit(request, rows, shape_key, deliver)
        accepted = True
        return ticket
