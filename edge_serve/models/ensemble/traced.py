"""Traces the steps of an ensemble and the calls of a model that belong to a traced request, as in Triton's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.flight import Callee, CalleeLookup, Ensemble
from edge_serve.models.run.runner import OnResponse, Ticket


def check_traceable(lookup: Callable[[str, str], object], model: str) -> None:
    """Check that a client may ask for the settings of `model`, or of all models when "".

    Raises:
        InvalidArgument: it is not ready, in Triton's words (server src/http_server.cc, HandleTrace).
    """
    if not model:
        return
    try:
        lookup(model, "")
    except EdgeServeError:
        raise InvalidArgument(f"Request for unknown model : {model}") from None


class TracedServed:
    """Adds the requests of a version to a trace. Implements `Callee`."""

    __slots__ = ("_served", "_trace", "name", "signature", "version")

    def __init__(self, served: Callee, trace: Trace) -> None:
        self._served = served
        self._trace = trace
        self.name = served.name
        self.signature: Signature = served.signature
        self.version = served.version

    def submit(self, request: InferRequest, on_response: OnResponse) -> Ticket:
        """Submit a request, and trace it; see `Served.submit`."""
        part = self._trace.part(self.name, self.version, request)

        def tell(response: InferResponse) -> None:
            part.answered(response)
            on_response(response)
            if response.final:
                part.leave()

        return self._served.submit(request, tell)


def traced_ensemble(ensemble: Ensemble, compute: ComputeTimes) -> Ensemble:
    """Return the ensemble for a request with these times. If they are a trace, the steps are traced too."""
    if not isinstance(compute, Trace):
        return ensemble
    compute.composed = True
    return replace(ensemble, lookup=_lookup(ensemble.lookup, compute))


def _lookup(inner: CalleeLookup, trace: Trace) -> CalleeLookup:
    def lookup(name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Callee:
        return TracedServed(inner(name, version, correlation_id, flags), trace)

    return lookup
