"""`/v2/logging` and `/v2/trace/setting` over HTTP, with real settings behind them."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.errors import NotFound
from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.transport.v2.operations import Operations
from edge_serve.transport.v2.routes import Operation, Route
from tests.transport.v2_scene import JSON, Door, FakeExchange, FakeService, head_of


class Service(FakeService):
    """A log and traces; the only model is `m`."""

    def __init__(self) -> None:
        super().__init__()
        self.log = LogSettings("f.log")
        self.tracing = Tracing(TraceSettings(file="t.json"))

    def log_settings(self) -> LogSettings:
        return self.log

    def update_log_settings(self, settings: LogSettings) -> None:
        self.log = settings

    def trace_settings(self, model: str) -> TraceSettings:
        if model not in ("", "m"):
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return self.tracing.settings(model)

    def update_trace_settings(self, model: str, changes: TraceChanges) -> None:
        self.tracing.update(model, changes)


def answer(service: Service, operation: Operation, exchange: FakeExchange, model: str = "") -> None:
    handlers = Operations(service, lambda config: config, False).handlers
    handlers[operation](exchange, Route(operation, True, model))


def ask(service: Service, operation: Operation, body: bytes | None = None, model: str = "") -> Any:
    """The JSON of the answer; a GET without a body."""
    exchange = FakeExchange(head_of("GET" if body is None else "POST", "/"), body or b"")
    answer(service, operation, exchange, model)
    assert (exchange.status, exchange.content_type) == (200, JSON)
    return exchange.json


def test_the_log_is_shown_and_changed() -> None:
    service = Service()
    assert ask(service, Operation.LOGGING)["log_file"] == "f.log"

    changed = ask(service, Operation.LOGGING, b'{"log_verbose_level":2,"log_format":"ISO8601"}')

    assert (changed["log_verbose_level"], changed["log_format"]) == (2, "ISO8601")
    assert service.log == LogSettings("f.log", verbose_level=2, format="ISO8601")
    assert ask(service, Operation.LOGGING) == changed


def test_traces_of_the_server_and_of_a_model() -> None:
    service = Service()
    ask(service, Operation.TRACE_SETTING, b'{"trace_rate":"7"}', "m")
    ask(service, Operation.TRACE_SETTING, b'{"trace_rate":"9","trace_count":"3"}')

    assert ask(service, Operation.TRACE_SETTING)["trace_rate"] == "9"
    of_model = ask(service, Operation.TRACE_SETTING, model="m")
    assert (of_model["trace_rate"], of_model["trace_count"]) == ("7", "3")
    assert ask(service, Operation.TRACE_SETTING, b'{"trace_rate":null}', "m")["trace_rate"] == "9"


def test_a_get_with_a_body_changes_nothing() -> None:
    service = Service()
    exchange = FakeExchange(head_of("GET", "/v2/logging", length=22), b'{"log_info":false}    ')
    answer(service, Operation.LOGGING, exchange)

    assert exchange.json["log_info"] is True


def test_an_unknown_model_is_refused_before_the_body_is_read() -> None:
    with pytest.raises(NotFound):
        ask(Service(), Operation.TRACE_SETTING, b"no JSON", "other")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/logging", b'{"log_file":"x","log_info":false}', 501),
        ("/v2/logging", b'{"log_info":false,"log_format":"x"}', 503),
        ("/v2/logging", b'{"log_info":false,"log_verbose_level":"x"}', 500),
        ("/v2/trace/setting", b'{"trace_rate":"7","trace_count":"-9"}', 400),
        ("/v2/models/m/trace/setting", b'{"trace_rate":"7","trace_file":"x"}', 501),
    ],
)
def test_a_change_that_is_refused_changes_nothing(path: str, body: bytes, status: int) -> None:
    door = Door()
    exchange = door.call("POST", path, body)

    assert (exchange.status, exchange.content_type) == (status, JSON)
    assert door.service.log == LogSettings()
    assert door.service.trace_changes == []
