"""Opens a Python model in this process, without a server, for tests and debuggers (docs/testing_a_model.md).

A breakpoint in `model.py` stops the program, and an exception arrives with its traceback. `edge_serve.Server` runs a
model as the service does: in worker processes, with queues, batches, sequences, and calls of other models.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_serve.backends.base import BackendRequest, InstanceSpec, ModelSpec, Reply
from edge_serve.backends.cuda.device_data import outputs_on_host
from edge_serve.backends.python.api.request import InferenceRequest
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.sender import InferenceResponseSender
from edge_serve.backends.python.backend import PythonBackend
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.config.signature import signature_of
from edge_serve.config.stages import load_model_config, merge_completed
from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.in_process.arrays import Inputs, Outputs, outputs_of, tensor_of
from edge_serve.messages.infer import InferRequest, InferResponse, Parameter, RequestedOutput
from edge_serve.models.repository.repository import versions
from edge_serve.models.run.reshape import reshape_inputs, reshape_outputs
from edge_serve.protocol.inference.validate import validate
from edge_serve.workers.child.mismatch import Mismatches

#: how long a decoupled model may take until its final response, seconds
FINAL_SECONDS = 10.0


class PythonModel:
    """A Python model that is open in this process, until `close` or the end of its `with` block.

    Args:
        directory: of the model: `<repository>/<model>`.
        version: None = the highest.

    Attributes:
        model: the object of class `TritonPythonModel`, after `initialize`.
        config: the configuration that `initialize` was given, as a dictionary.

    Raises:
        EdgeServeError: the configuration or the model does not load; the model's own exception is its cause.
    """

    def __init__(self, directory: str | Path, version: int | None = None) -> None:
        name = Path(os.path.abspath(directory)).name  # of the link, where there is one
        path = Path(directory).resolve()
        config = load_model_config(path, auto_complete=True, name=name)
        if config.backend != "python":
            backend = config.backend or config.platform
            raise InvalidArgument(f"'{path}' has backend '{backend}', expected python: open it with edge_serve.Server")
        found = versions(path)
        number = max(found, default=0) if version is None else version
        if number not in found:
            raise InvalidArgument(f"'{path}' has the versions {found}, expected version directory {version or 1}")
        self._backend = PythonBackend()
        spec = ModelSpec(name, number, path, path / str(number), model_config_to_json(config))
        try:
            config = merge_completed(config, self._backend.complete_config(spec))
            self.config = model_config_to_json(config)
            self._spec = replace(spec, config=self.config)
            (self._instance,) = self._backend.open(self._spec, [InstanceSpec(f"{name}_0")])
        except BaseException:
            self._backend.close()
            raise
        self._signature = signature_of(config, name, number)
        self.model: Any = self._instance.model

    def __enter__(self) -> PythonModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call the model's `finalize` and remove its modules, so that the next model gets its own of equal names."""
        del self.model
        self._instance.close()
        self._backend.close()
        own = f"{self._spec.model_directory}{os.sep}"
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(own):
                del sys.modules[name]

    def infer(
        self, inputs: Inputs, *, outputs: Sequence[str] = (), parameters: Mapping[str, Parameter] | None = None
    ) -> Outputs:
        """Return the outputs of one request, as `edge_serve.Session.infer` does.

        Args:
            inputs: arrays with the batch dimension, if the model has one. Lists become arrays of the model's type.
            outputs: names; none = all.

        Raises:
            EdgeServeError: the request does not fit the configuration, or the response is an error.
            AssertionError: the outputs differ from the configuration, or there is not exactly one response.
        """
        responses = self.stream(inputs, outputs=outputs, parameters=parameters)
        if len(responses) != 1:
            raise AssertionError(f"found {len(responses)} responses, expected 1: use stream() for a decoupled model")
        return responses[0]

    def stream(
        self, inputs: Inputs, *, outputs: Sequence[str] = (), parameters: Mapping[str, Parameter] | None = None
    ) -> list[Outputs]:
        """Return the outputs of each response to one request, after the final one; raises as `infer`."""
        request = InferRequest(self._spec.name, parameters=dict(parameters or {}))
        known = self._signature.inputs
        given = [tensor_of(name, value, known.get(name)) for name, value in inputs.items()]
        request.inputs = [replace(tensor, data=bytearray(tensor.data)) for tensor in given]  # a model may write to them
        request.outputs = [RequestedOutput(name) for name in outputs]
        if self._signature.has_sequence_batching:
            raise Unsupported(f"model '{self._spec.name}' has sequence_batching: test it with edge_serve.Server")
        rows = validate(request, self._signature)
        reshape_inputs(request, self._signature)
        return [self._outputs(reply, rows, outputs) for reply in self._replies(request)]

    def _replies(self, request: InferRequest) -> list[Reply]:
        """Call `execute` with one request. Its exceptions pass through."""
        wanted = [one.name for one in request.outputs] or list(self._signature.outputs)
        wire = BackendRequest("", request.inputs, wanted, request.parameters, 0, 0, 0, 0, lambda: False)
        collected = _Collected()
        decoupled = self._signature.decoupled

        def make_sender(wire: BackendRequest) -> InferenceResponseSender:
            return InferenceResponseSender(collected.take, wanted, wire.is_cancelled, decoupled)

        received = InferenceRequest.received(wire, self._spec.name, self._spec.version, make_sender)
        received.get_response_sender()  # it ends without an answer if the model drops the request
        result = self.model.execute([received])
        if asyncio.iscoroutine(result):
            result = self._instance.run(result)  # its loop goes on, as a server's: models leave tasks in it
        del received
        if not decoupled and result != [None] and result is not None:
            return [_only(result).as_reply(wanted)]
        return collected.wait()

    def _outputs(self, reply: Reply, rows: int, names: Sequence[str]) -> Outputs:
        problems: list[str] = []
        mismatches = Mismatches(self._spec, lambda name, text: problems.append(text))
        if reply.error is None:
            key = (b"", 0 if self._signature.decoupled else rows, len(names) or -1)
            mismatches.check(key, reply, reply.outputs, names or None)
        if problems:
            raise AssertionError("\n".join(problems))
        outputs_on_host(reply)
        response = InferResponse(self._spec.name, "", outputs=reply.outputs, error=reply.error)
        reshape_outputs(response, self._signature)
        return outputs_of(response)


class _Collected:
    """Copies of the responses that came through a response sender, perhaps from another thread."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._final = threading.Event()

    def take(self, reply: Reply | None, final: bool) -> None:
        if reply is not None:
            reply.copy_outputs()
            self._replies.append(reply)
        if final:
            self._final.set()

    def wait(self) -> list[Reply]:
        if not self._final.wait(FINAL_SECONDS):
            raise AssertionError(f"no final response within {FINAL_SECONDS:g} s")
        return self._replies


def _only(result: object) -> InferenceResponse:
    if not isinstance(result, list) or len(result) != 1 or not isinstance(result[0], InferenceResponse):
        raise AssertionError(f"execute returned {result!r}, expected a list of one InferenceResponse for one request")
    return result[0]
