"""Requests that belong to a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.flight import Ensemble
from edge_serve.models.ensemble.traced import TracedServed, traced_ensemble
from edge_serve.models.versions.served import Served
from tests.observe.tracing.recorder import Collected


@dataclass
class Version:
    """A served version that keeps what it is asked."""

    name: str = "step"
    version: str = "3"
    signature: Signature | None = None
    asked: list[tuple[InferRequest, Any]] = field(default_factory=list)

    def submit(self, request: InferRequest, on_response: Any) -> str:
        self.asked.append((request, on_response))
        return "ticket"


def root() -> tuple[Trace, Collected]:
    recorder = Collected()
    return Trace(1, recorder, timestamps=True, tensors=False), recorder


def test_a_request_is_a_part_until_its_last_answer() -> None:
    trace, recorder = root()
    version, heard = Version(), list[InferResponse]()
    request = InferRequest("step", id="r", compute=ComputeTimes())

    ticket: object = TracedServed(cast(Served, version), trace).submit(request, heard.append)
    assert ticket == "ticket"
    trace.leave()
    ((asked, tell),) = version.asked
    tell(InferResponse("step", "3", final=False))
    assert recorder.traces == []
    tell(InferResponse("step", "3"))

    assert asked is request
    assert len(heard) == 2
    assert recorder.traces == [trace]
    part = trace.group[1]
    assert (part.parent_id, part.model_name, part.model_version, part.request_id) == (1, "step", "3", "r")
    assert [name for name, _ in part.timestamps or ()] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_only_a_trace_makes_an_ensemble_traced() -> None:
    ensemble = cast(Ensemble, object())

    assert traced_ensemble(ensemble, ComputeTimes()) is ensemble
