"""Which requests are traced: the server's trace setting and those of single models, changed while it runs.

Rules: triton-inference-server/server src/tracer.cc. A change makes a new setting with fresh counters; what is left of
`count` is carried over. A change of the server's setting changes those of models that follow it in a field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.settings import TraceChanges, TraceSettings
from edge_serve.messages.trace import Arrival, Trace
from edge_serve.observe.tracing.files import TraceBatch, TraceFiles
from edge_serve.records import slotted

_FIELDS = ("level", "rate", "count", "log_frequency")
_UNCHANGED = TraceChanges()

OnResponse = Callable[[InferResponse], None]


@slotted
class TraceSetting:
    """The trace settings of the server or of one model.

    Attributes:
        values: `count` decreases with each trace.
        specified: names of the fields that were set here; the others follow the setting above.
        seen: requests since it came into force.
        open: traces that were begun under it and are not complete.
        batch: complete traces that are not written yet.
        replaced: another setting has taken its place.
    """

    values: TraceSettings
    specified: frozenset[str] = frozenset()
    seen: int = 0
    open: int = 0
    batch: TraceBatch = field(default_factory=TraceBatch)
    replaced: bool = False

    def changed(self, above: TraceSettings, changes: TraceChanges, *, asked: bool = True) -> TraceSetting:
        """Return this setting with `changes`, under the values of the setting above.

        Args:
            asked: a client changes this setting, not the one above. False = a count that is used up stays used up, and
                a setting that follows in no field is returned itself, with its counter and its batch.

        Raises:
            InvalidArgument: it would trace, and cannot.
        """
        specified: dict[str, Any] = {name: getattr(self.values, name) for name in self.specified - changes.cleared}
        new = {name: getattr(changes, name) for name in _FIELDS if getattr(changes, name) is not None}
        specified.update(new)
        values = replace(above, **specified)
        reason, used_up = why_not(values), asked and values.count == 0
        if values.level and (reason or used_up):  # of a count that is used up Triton gives no reason either
            raise InvalidArgument(f"Attempting to set invalid trace setting :{reason}")
        follows_nothing = not asked and self.specified.issuperset(_FIELDS)
        return self if follows_nothing else TraceSetting(values, frozenset(specified))

    def take(self) -> bool:
        """Count a request. Return whether to trace it."""
        values = self.values
        if why_not(values) or values.count == 0:
            return False
        self.seen += 1
        if self.seen % values.rate:
            return False
        if values.count > 0:
            self.values = replace(values, count=values.count - 1)
        self.open += 1
        return True


def why_not(values: TraceSettings) -> str:
    """Return the reason why nothing is traced under these values, in Triton's words; "" = requests are traced."""
    if not values.level:
        return "tracing is disabled"
    if values.rate == 0:
        return "sample rate must be non-zero"
    if not values.file:
        return "trace file name is not given"
    return ""


class Tracing:
    """The trace settings and what they lead to. Implements `trace.Recorder`.

    Args:
        start: what the server was started with (`--trace-config`).

    Attributes:
        on: some request may be traced; when False, nothing else needs to be asked.
    """

    def __init__(self, start: TraceSettings | None = None, clock: Clock | None = None) -> None:
        self._start = start or TraceSettings()
        self._clock = clock or MonotonicClock()
        self._server = TraceSetting(self._start)
        self._models: dict[str, TraceSetting] = {}
        self._files = TraceFiles()
        self._next_id = 1
        #: under way, by id
        self._open: dict[int, tuple[Trace, TraceSetting]] = {}
        self._subscribers: list[Callable[[bool], None]] = []
        self.on = False
        self._update_on()

    def settings(self, model: str = "") -> TraceSettings:
        """Return the settings of a model; "" for models without settings of their own."""
        return self._models.get(model, self._server).values

    def update(self, model: str, changes: TraceChanges) -> None:
        """Change the server's setting ("") or a model's. Fields that a model has not set follow the server's.

        Raises:
            InvalidArgument: a setting would trace and cannot; nothing has changed.
        """
        if model:
            made = self._models.get(model, TraceSetting(self._server.values)).changed(self._server.values, changes)
            self._put({**self._models, model: made}, self._server)
            return
        server = self._server.changed(self._start, changes)
        models = {
            name: setting.changed(server.values, _UNCHANGED, asked=False) for name, setting in self._models.items()
        }
        self._put(models, server)

    def subscribe(self, switched: Callable[[bool], None]) -> None:
        """Call this now, and whenever `on` has changed: what a door does for traces, it does while there are any."""
        self._subscribers.append(switched)
        switched(self.on)

    def sample(self, model: str) -> Trace | None:
        """Return the trace of a request that has arrived; None if it is not sampled. It is written when all its parts
        end."""
        setting = self._models.get(model, self._server)
        if not setting.take():
            return None
        level = setting.values.level
        trace = Trace(self.next_id(), self, timestamps="TIMESTAMPS" in level, tensors="TENSORS" in level)
        self._open[trace.id] = trace, setting
        return trace

    def watch(
        self, request: InferRequest, model: str, version: str, on_response: OnResponse, arrival: Arrival | None = None
    ) -> OnResponse:
        """Trace a valid request that goes to a model, if it is its turn. Return the receiver of its responses.

        Args:
            arrival: the timestamps that the door has recorded; None = none.
        """
        trace = self.sample(model)
        if trace is None:
            return on_response
        at = arrival or Arrival(())
        at.traced(trace)
        trace.open(model, version, request)

        def deliver(response: InferResponse) -> None:
            at.answered()
            trace.answered(response)
            if at.streams and not response.null:
                at.mark("GRPC_SEND_START")
                on_response(response)
                at.mark("GRPC_SEND_END")
            else:
                on_response(response)
            if response.final:
                if arrival is None or at.streams:
                    at.release()
                trace.release()

        return deliver

    def next_id(self) -> int:
        """Return a new ID for a trace."""
        self._next_id += 1
        return self._next_id - 1

    def now_ns(self) -> int:
        """Return the time for a timestamp of a trace, monotonic."""
        return self._clock.now_ns()

    def collect(self, trace: Trace) -> None:
        """Add a trace to its file. It is complete, and so are all traces that belong to it."""
        _, setting = self._open.pop(trace.id)
        setting.open -= 1
        self._files.add(trace, setting.values, setting.batch)
        if not setting.open and (setting.replaced or not setting.values.count):  # it was the last
            self._files.flush(setting.values, setting.batch)

    def close(self) -> None:
        """Write what is left; blocks for some seconds at most."""
        for trace, _ in list(self._open.values()):
            trace.close()
        for setting in (*self._models.values(), self._server):
            self._files.flush(setting.values, setting.batch)
        self._files.close()

    def _put(self, models: dict[str, TraceSetting], server: TraceSetting) -> None:
        before = (*self._models.values(), self._server)
        self._models = {name: setting for name, setting in models.items() if setting.specified}
        self._server = server
        left = {id(setting) for setting in (*self._models.values(), server)}
        for setting in before:
            if id(setting) not in left:
                setting.replaced = True
                self._files.flush(setting.values, setting.batch)
        self._update_on()

    def _update_on(self) -> None:
        settings = (*self._models.values(), self._server)
        on = any(not why_not(setting.values) for setting in settings)
        if on != self.on:
            self.on = on
            for switched in self._subscribers:
                switched(on)
