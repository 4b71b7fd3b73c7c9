"""The services of the hosting process for a backend: log lines, metrics, other models.

The worker's main installs a `Host` that forwards over the channel; without one, log lines go to stderr, metrics go
nowhere, and calls to other models are refused.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from edge_serve.backends.base import Reply
from edge_serve.errors import Unsupported
from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import InferTensor
from edge_serve.records import slotted

#: why a model that runs outside the server cannot use it
NO_SERVER = "no server runs in this process: start one with edge_serve.Server(<repository>)"


@slotted
class MetricUpdate:
    """One change of a series of a model's own metric.

    Attributes:
        kind: counter, gauge or histogram.
        operation: create, increment, set, observe or remove. Increments are deltas, so that instances of a model
            that count in the same series add up; a removed series leaves the page.
        bounds: of a histogram.
    """

    name: str
    description: str
    kind: str
    labels: Mapping[str, str]
    operation: str
    value: float = 0.0
    bounds: tuple[float, ...] = ()


@slotted
class ModelCall:
    """An inference that a model asks of another model (business logic scripting).

    Attributes:
        model_version: -1 = the highest.
        decoupled: any number of responses is welcome; else a decoupled model is not called.
        blocking: the only thread of the calling instance waits for the answer.
        trace: `BackendRequest.number` of the request whose trace it belongs to; -1 = it belongs to none.
    """

    model_name: str
    model_version: int
    inputs: Sequence[InferTensor]
    requested_outputs: Sequence[str]
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    decoupled: bool = False
    blocking: bool = False
    trace: int = -1


#: takes each response to a call, and whether it is the last; called by another thread, which it must not hold up
OnReply = Callable[[Reply, bool], None]
#: wants no (further) response to a call; may be called by any thread and anywhere, a finalizer too
Cancel = Callable[[], None]


class Host(Protocol):
    """The worker's side of the channel, as backends see it. Any thread may call it."""

    def log(self, level: str, message: str) -> None:
        """One line for the server's log; `level` is INFO, WARNING, ERROR, or VERBOSE, as in Triton."""

    def metric(self, update: MetricUpdate) -> None:
        """Forward a change of a metric."""

    def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        """Start another model. Its errors, and why it could not be asked, come in a reply; the last one always comes.

        Raises:
            EdgeServeError: the call could not be made, and no reply comes.
        """

    def report_idle(self, still: Callable[[], bool]) -> bool:
        """The only instance of this process waits until another thread wakes it.

        Args:
            still: whether that is so at the time of asking.

        Returns:
            Whether that is known now; else a thread of the model's own might wake it, and one may ask again.
        """

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """As the repository API. Raises EdgeServeError."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """As the repository API. Raises EdgeServeError."""

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a request would be taken; version "" is the highest. Raises EdgeServeError."""


class Alone:
    """The host of a process without a channel: tests and tools."""

    def log(self, level: str, message: str) -> None:
        """To stderr."""
        print(f"{level} {message}", file=sys.stderr, flush=True)

    def metric(self, update: MetricUpdate) -> None:
        """Discard it: no server reads metrics here."""

    def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        """Refused."""
        raise Unsupported(f"model '{call.model_name}' cannot be called: {NO_SERVER}")

    def report_idle(self, still: Callable[[], bool]) -> bool:
        """Do nothing: no call can wait here."""
        return True

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Refused."""
        raise Unsupported(f"model '{name}' cannot be loaded: {NO_SERVER}")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Refused."""
        raise Unsupported(f"model '{name}' cannot be unloaded: {NO_SERVER}")

    def is_model_ready(self, name: str, version: str) -> bool:
        """Refused."""
        raise Unsupported(f"whether model '{name}' is ready cannot be told: {NO_SERVER}")


_host: Host = Alone()

#: acquired to send a message to the server, and before that for a change which the message is about, so that messages
#: come in the order of the changes. It is one lock for both: the garbage collector may run a finalizer in a thread that
#: is sending, and with two locks it could wait there for a thread that waits to send. Hence it is reentrant, too. The
#: data channel of an instance has a lock of its own (`FrameSender`), so two finalizers can still wait for each other:
#: one that logs in a thread that sends on the data channel, and one that ends a stream in a thread that logs.
#: `InferenceRequest.get_response_sender` acquires it, too: for a sender, which is made once
lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: the thread that held it may not be there to release it."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def install(host: Host) -> Host:
    """Make `host` the one that `current` returns; returns the one before."""
    global _host
    before, _host = _host, host
    return before


def current() -> Host:
    """The host of this process."""
    return _host


def log(level: str, message: str) -> None:
    """One line for the server's log."""
    _host.log(level, message)


def metric(update: MetricUpdate) -> None:
    """Forward a change of a metric."""
    _host.metric(update)
