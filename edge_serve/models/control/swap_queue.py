"""Queues requests between the unloading of a version and the loading of its successor, when memory holds only one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from edge_serve.aio.tasks import notify
from edge_serve.errors import Cancelled, EdgeServeError, Unavailable, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.models.run.driver import Job
from edge_serve.models.run.runner import OnResponse, Runner, Ticket
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.scheduling.queue import deadline_expired

#: Triton's words for a request that expects one response, and how to send the next one
_BECAME_DECOUPLED = (
    "model '{name}' was swapped while this request waited for it, and its endpoint doesn't support models with "
    "decoupled transaction policy: use ModelStreamInfer of gRPC, or generate_stream of HTTP"
)


class Waiter:
    """A queued request, then the handle of the request at the new version."""

    __slots__ = ("on_response", "queue", "request", "ticket", "timer")

    def __init__(self, queue: SwapQueue, request: InferRequest, on_response: OnResponse) -> None:
        self.queue, self.request, self.on_response = queue, request, on_response
        self.ticket: Ticket | None = None
        #: ends its wait at the request's deadline
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        if self.ticket is not None:
            self.ticket.cancel()
        else:
            self.queue.cancel(self)

    def set_paused(self, paused: bool) -> bool:
        if self.ticket is not None:
            return self.ticket.set_paused(paused)
        self.request.paused = paused
        return True

    def jobs(self) -> Sequence[Job]:
        return self.ticket.jobs() if self.ticket is not None else ()


class SwapQueue(Runner):
    """The runner of a version that is being swapped.

    Args:
        most: requests that may wait; more are refused.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._waiters: dict[Waiter, None] = {}
        #: what becomes of a request, once that is known
        self._deliver: Callable[[Waiter], None] | None = None

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        """Queue a request, or submit it to the new version if that is loaded."""
        waiter = Waiter(self, request, on_response)
        if self._deliver is not None:
            self._deliver(waiter)
        elif len(self._waiters) >= self._most:
            text = f"model '{self._name}' is being swapped and {self._most} requests wait for it (--swap-queue-size)"
            self._refuse(Unavailable(f"Exceeds maximum queue size: {text}"), waiter)
        else:
            self._waiters[waiter] = None
            if request.deadline_ns:  # on the clock of the event loop
                loop, late = asyncio.get_running_loop(), deadline_expired(request)
                waiter.timer = loop.call_at(request.deadline_ns / 1e9, self._remove, waiter, late)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Cancel a queued request: its client has disconnected."""
        if waiter in self._waiters:
            self._remove(waiter, Cancelled(""))

    def _remove(self, waiter: Waiter, error: EdgeServeError) -> None:
        del self._waiters[waiter]
        _stop_timer(waiter)
        self._refuse(error, waiter)

    def submit_all(self, target: Served) -> None:
        """Submit all queued requests to the new version, in order of arrival."""
        self._deliver_all(partial(self._send, target))

    def fail(self, error: EdgeServeError) -> None:
        """Fail all queued requests: no new version will be loaded."""
        self._deliver_all(partial(self._refuse, error))

    def _deliver_all(self, deliver: Callable[[Waiter], None]) -> None:
        self._deliver = deliver
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            _stop_timer(waiter)
            deliver(waiter)

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        """Fail the queued requests, unless `submit_all` or `fail` was called before."""
        if self._deliver is None:
            self.fail(Unavailable(f"model '{self._name}' was unloaded"))
        on_idle()

    def in_flight(self) -> int:
        """Return the number of queued requests."""
        return len(self._waiters)

    def _send(self, target: Served, waiter: Waiter) -> None:
        accepted_by = waiter.request.validated
        try:
            if target.signature.decoupled and (accepted_by is None or not accepted_by.decoupled):
                raise Unsupported(_BECAME_DECOUPLED.format(name=self._name))
            validate(waiter.request, target.signature)
        except EdgeServeError as error:
            self._refuse(error, waiter)
            return
        waiter.ticket = target.submit(waiter.request, waiter.on_response)

    def _refuse(self, error: EdgeServeError, waiter: Waiter) -> None:
        request = waiter.request
        if request.lease is not None:
            request.lease.release()
        response = InferResponse(request.model_name, request.model_version, request.id, error=error)
        notify(waiter.on_response, response)


def _stop_timer(waiter: Waiter) -> None:
    if waiter.timer is not None:
        waiter.timer.cancel()
        waiter.timer = None
