"""A running server in this process, on the event loop that started it."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from edge_serve import server
from edge_serve.errors import EdgeServeError, InvalidArgument, Unsupported
from edge_serve.in_process.arrays import Inputs, Outputs, outputs_of, release, tensor_of
from edge_serve.in_process.responses import Responses
from edge_serve.messages.infer import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    Parameter,
    RequestedOutput,
)
from edge_serve.messages.metadata import IndexEntry
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import MAX_CORRELATION_ID
from edge_serve.protocol.v2.json_text import UINT64_MAX
from edge_serve.records import frozen


@frozen
class Options:
    """The options of a request besides its inputs.

    Attributes:
        version: "" = the highest that is ready.
        outputs: names; none = all.
        timeout_us: microseconds for which the request may wait in the queue of the model; 0 = no limit.

    Raises:
        InvalidArgument: a value that no client could send, and that would fail other requests of the batch.
    """

    version: str = ""
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    request_id: str = ""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0

    def __post_init__(self) -> None:
        _check_text("request_id", self.request_id)
        if isinstance(self.sequence_id, str):
            _check_text("sequence_id", self.sequence_id, MAX_CORRELATION_ID)
        else:
            _check_number("sequence_id", self.sequence_id)
        _check_number("priority", self.priority)
        _check_number("timeout_us", self.timeout_us)
        _check_flag("sequence_start", self.sequence_start)
        _check_flag("sequence_end", self.sequence_end)
        for name, value in self.parameters.items():
            _check_text("a parameter's name", name)
            if isinstance(value, str):
                _check_text(f"parameter '{name}'", value)
            elif not isinstance(value, (bool, int, float)):
                raise InvalidArgument(f"parameter '{name}': found {value!r}, expected a string, a number or a boolean")


class AsyncSession:
    """A running server, on the event loop that started it.

    Attributes:
        addresses: of the open doors: `addresses["HTTP"][0]` is `127.0.0.1:8000`.
    """

    def __init__(self, running: server.ServerProcess) -> None:
        self._server = running
        self._service = running.service
        self.addresses = running.addresses

    async def infer(self, model: str, inputs: Inputs, options: Options | None = None, **more: Any) -> Outputs:
        """Return the outputs of one request as arrays that the caller owns; strings are object arrays of `bytes`.

        Args:
            inputs: arrays; lists become arrays of the model's type. They must not change until the answer arrives.
            more: single fields of `Options`, which override those of `options`.

        Raises:
            EdgeServeError: the request was refused, or failed.
        """
        served, request = self._request(model, inputs, replace(options or Options(), **more))
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def on_response(response: InferResponse) -> None:
            if answer.done():  # the caller has cancelled
                release(response)
            else:
                answer.set_result(response)

        ticket = self._service.infer(served, request, on_response)
        try:
            response = await answer
        except asyncio.CancelledError:
            ticket.cancel()
            if answer.done() and not answer.cancelled():
                release(answer.result())
            raise
        return outputs_of(response)

    async def stream(
        self, model: str, inputs: Inputs, options: Options | None = None, **more: Any
    ) -> AsyncGenerator[Outputs, None]:
        """Yield the outputs of each response as it arrives; decoupled models send any number. Leaving the loop early
        cancels the request.

        Raises:
            EdgeServeError: the request was refused or failed, or more than MAX_UNREAD bytes were not taken.
        """
        served, request = self._request(model, inputs, replace(options or Options(), **more), decoupled=True)
        responses = Responses()
        ticket = self._service.infer(served, request, responses.take)
        responses.cancel = ticket.cancel
        try:
            while (outputs := await responses.next()) is not None:
                yield outputs
        finally:
            responses.close()

    async def load(
        self, model: str, config: Mapping[str, Any] | str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model; `config` (JSON or a dict) replaces config.pbtxt, `files` replaces its files.

        Raises:
            EdgeServeError: the model cannot be served; a version that served before continues.
        """
        parameters: dict[str, Any] = {f"file:{path}": content for path, content in (files or {}).items()}
        if config:
            parameters["config"] = config if isinstance(config, str) else json.dumps(config)
        await _done(lambda done: self._service.load_model(model, parameters, done))

    async def unload(self, model: str) -> None:
        """Unload a model once its requests are answered.

        Raises:
            EdgeServeError: the model control mode does not allow unloading on request.
        """
        await _done(lambda done: self._service.unload_model(model, False, done))

    async def ready(self, model: str = "", version: str = "") -> bool:
        """Return whether the model is ready; without a name, whether all models are."""
        if not model:
            return self._service.ready()
        try:
            return self._service.model_ready(model, version)
        except EdgeServeError:
            return False

    async def models(self) -> list[IndexEntry]:
        """Return all models of the repositories with their states."""
        return await self._service.read_repository_index()

    async def close(self) -> None:
        """Answer the accepted requests, then stop the server; the end of `async with` does this."""
        await stop_server(self._server)

    def _request(
        self, model: str, inputs: Inputs, options: Options, decoupled: bool = False
    ) -> tuple[Served, InferRequest]:
        served = self._service.lookup(model, options.version)
        if served.signature.decoupled and not decoupled:
            raise Unsupported(f"model '{model}' is decoupled and may answer any number of times: use stream()")
        if not isinstance(inputs, Mapping):
            found = type(inputs).__name__
            raise InvalidArgument(f'inputs: found a {found}, expected arrays by name, as {{"INPUT": [[1.0]]}}')
        flags = (SEQUENCE_START if options.sequence_start else 0) | (SEQUENCE_END if options.sequence_end else 0)
        return served, InferRequest(
            model,
            options.version,
            options.request_id,
            [tensor_of(name, value, served.signature.inputs.get(name)) for name, value in inputs.items()],
            [RequestedOutput(name) for name in options.outputs],
            dict(options.parameters),
            options.sequence_id,
            flags,
            options.priority,
            options.timeout_us,
        )


def _check_text(name: str, value: object, most: int | None = None) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: found {value!r}, expected a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name}: found {value!r}, which UTF-8 cannot hold") from error
    if most is not None and size > most:
        raise InvalidArgument(f"{name}: found {size} bytes, expected at most {most}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name}: found {value!r}, expected True or False")


def _check_number(name: str, value: Any) -> None:
    try:
        fits = 0 <= operator.index(value) <= UINT64_MAX
    except TypeError:
        fits = False
    if not fits:
        raise InvalidArgument(f"{name}: found {value!r}, expected a whole number from 0 to {UINT64_MAX}")


async def stop_server(running: server.ServerProcess) -> None:
    """Stop a server, whether or not it has started. A cancellation ends the draining; the processes are stopped."""
    try:
        await running.stop()
    finally:
        closing = asyncio.create_task(running.close(), name="close")
        try:
            await asyncio.shield(closing)
        finally:
            await asyncio.wait({closing})


async def _done(start: Callable[[Callable[[EdgeServeError | None], None]], None]) -> None:
    """Wait for an operation with a callback.

    Raises:
        EdgeServeError: the error of the operation.
    """
    outcome: asyncio.Future[EdgeServeError | None] = asyncio.get_running_loop().create_future()
    start(lambda error: outcome.set_result(error) if not outcome.done() else None)
    error = await outcome
    if error is not None:
        raise error
