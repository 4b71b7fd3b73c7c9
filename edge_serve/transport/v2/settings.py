"""The operations `/v2/logging` and `/v2/trace/setting` over HTTP."""

from __future__ import annotations

from typing import Protocol

from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.protocol.v2 import settings
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.v2.routes import Route


class SettingsService(Protocol):
    """The service, as these operations use it."""

    def log_settings(self) -> LogSettings: ...
    def update_log_settings(self, settings: LogSettings) -> None: ...
    def trace_settings(self, model: str) -> TraceSettings: ...
    def update_trace_settings(self, model: str, changes: TraceChanges) -> None: ...


class SettingsRoutes:
    """Answers the two operations: GET returns the settings, POST changes them first."""

    def __init__(self, service: SettingsService) -> None:
        self._service = service

    def logging(self, exchange: Exchange, route: Route) -> None:
        """Answer GET and POST /v2/logging."""
        service = self._service
        if exchange.head.method == "POST":
            service.update_log_settings(settings.read_log_settings(exchange.body, service.log_settings()))
        exchange.reply(200, (settings.log_settings(service.log_settings()),))

    def trace(self, exchange: Exchange, route: Route) -> None:
        """Answer GET and POST /v2/trace/setting and /v2/models/{m}/trace/setting."""
        current = self._service.trace_settings(route.model)
        if exchange.head.method == "POST":
            self._service.update_trace_settings(route.model, settings.read_trace_changes(exchange.body))
            current = self._service.trace_settings(route.model)
        exchange.reply(200, (settings.trace_settings(current),))
