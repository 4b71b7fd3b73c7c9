"""The runner of an ensemble: sends the requests of its steps to other models instead of to workers.

scheduling/ensemble.py decides which step may run when; each request is a `Flight` (flight.py). The version of a
member is looked up for every step, so that a swap in the meantime takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from edge_serve.messages.infer import InferRequest
from edge_serve.models.ensemble.flight import Ensemble, Flight, Lookup
from edge_serve.models.ensemble.member import refusal
from edge_serve.models.run.runner import OnResponse, Runner, Ticket
from edge_serve.scheduling.ensemble import EnsemblePlan
from edge_serve.scheduling.queue import stopping


class EnsembleRunner(Runner):
    """Executes requests by calling other models."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        ensemble.landed = self._landed
        self._in_flight = 0
        self._stopping = False
        self._on_idle: Callable[[], None] | None = None

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        """See `Runner`."""
        ensemble = self._ensemble
        trace = request.compute.trace if request.compute is not None else None
        if trace is not None:
            trace.composed = True
        flight = Flight(ensemble, request, on_response, trace)
        self._in_flight += 1
        if self._stopping:
            flight.refuse(stopping(request))
        elif request.shared and (error := refusal(request, ensemble.plan, ensemble.signature)):
            flight.refuse(error)
        else:
            flight.start()
        return flight

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        """See `Runner`. Sequences are open in the members."""
        self._stopping = True
        self._on_idle = on_idle
        self._check_idle()

    def in_flight(self) -> int:
        """See `Runner`."""
        return self._in_flight

    def _landed(self) -> None:
        self._in_flight -= 1
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and not self._in_flight:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def member_labels(plan: EnsemblePlan, lookup: Lookup) -> dict[str, tuple[str, ...]]:
    """Return the class labels of each ensemble tensor, as the model that writes it has them.

    Raises:
        EdgeServeError: a member does not serve.
    """
    labels = {}
    for step in plan.steps:
        outputs = lookup(step.model, step.version).signature.outputs
        for name, tensor in step.outputs.items():
            if name in outputs and outputs[name].labels:
                labels[tensor] = outputs[name].labels
    return labels
