"""Which requests are traced: the server's trace setting and those of single models, changed while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.settings import TraceChanges, TraceSettings
from edge_serve.messages.trace import Trace
from edge_serve.tracing.files import TraceFiles
from edge_serve.tracing.setting import Setting, why_not

_UNCHANGED = TraceChanges()

OnResponse = Callable[[InferResponse], None]


class Tracing:
    """The trace settings and what they lead to.

    Args:
        start: what the server was started with (`--trace-config`).

    Attributes:
        on: some request may be traced; when False, nothing else needs to be asked.
    """

    def __init__(self, start: TraceSettings | None = None, clock: Clock | None = None) -> None:
        self._start = start or TraceSettings()
        self._clock = clock or MonotonicClock()
        self._server = Setting(self._start)
        self._models: dict[str, Setting] = {}
        self._files = TraceFiles()
        self._next_id = 1
        self.on = False
        self._update_on()

    def settings(self, model: str = "") -> TraceSettings:
        """What applies to a model; to those without settings of their own when ""."""
        return self._models.get(model, self._server).values

    def update(self, model: str, changes: TraceChanges) -> None:
        """Change the server's setting ("") or a model's. Fields that a model has not set follow the server's.

        Raises:
            InvalidArgument: a setting would trace and cannot; nothing has changed.
            Unsupported: traces of this mode are not made here.
        """
        if changes.level and self._start.mode != "triton":
            raise Unsupported(
                f"traces of mode '{self._start.mode}' are not supported, start the server with "
                "--trace-config=mode=triton --trace-config=triton,file=<path>"
            )
        if model:
            made = self._models.get(model, Setting(self._server.values)).changed(self._server.values, changes)
            self._put({**self._models, model: made}, self._server)
            return
        server = self._server.changed(self._start, changes)
        models = {name: setting.changed(server.values, _UNCHANGED) for name, setting in self._models.items()}
        self._put(models, server)

    def sample(self, model: str) -> Trace | None:
        """A trace for a request that has come, when it is its turn."""
        setting = self._models.get(model, self._server)
        if setting.values.mode != "triton" or not setting.take():
            return None
        level = setting.values.level
        trace = Trace(self._next_id, timestamps="TIMESTAMPS" in level, tensors="TENSORS" in level)
        self._next_id += 1
        return trace

    def watch(self, request: InferRequest, model: str, version: str, on_response: OnResponse) -> OnResponse:
        """A valid request goes to a model: trace it when it is its turn; who is to be told its responses."""
        trace = self.sample(model)
        if trace is None:
            return on_response
        trace.model_name, trace.model_version, trace.request_id = model, version, request.id
        now = self._clock.now_ns()
        trace.mark("REQUEST_START", now)
        trace.mark("QUEUE_START", now)
        trace.keep("TENSOR_QUEUE_INPUT", request.inputs)
        request.compute = trace

        def tell(response: InferResponse) -> None:
            if not response.null:
                trace.mark("INFER_RESPONSE_COMPLETE", self._clock.now_ns())
                with contextlib.suppress(EdgeServeError, ValueError):  # whoever encodes it says what is wrong with it
                    trace.keep("TENSOR_BACKEND_OUTPUT", response.outputs)
            if response.final:
                trace.mark("REQUEST_END", self._clock.now_ns())
                self.finish(trace)
            on_response(response)

        return tell

    def finish(self, trace: Trace) -> None:
        """The request of a trace is answered; one that never reached a model leaves no trace."""
        trace.closed = True
        if trace.model_version:
            self._files.add(trace, self.settings(trace.model_name))

    def close(self) -> None:
        """Write what is left; blocks."""
        self._files.close()

    def _put(self, models: dict[str, Setting], server: Setting) -> None:
        before = {setting.values.file for setting in (*self._models.values(), self._server)}
        self._models = {name: setting for name, setting in models.items() if setting.specified}
        self._server = server
        for file in before:
            self._files.flush(file)
        self._update_on()

    def _update_on(self) -> None:
        settings = (*self._models.values(), self._server)
        self.on = any(not why_not(setting.values) for setting in settings)
