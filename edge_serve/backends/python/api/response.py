"""`pb_utils.InferenceResponse`: a model's answer.

Contract and texts: triton-inference-server/python_backend src/infer_response.cc.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from edge_serve.backends.base import Reply
from edge_serve.backends.python.api.errors import MODULE, TritonError, TritonModelException
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.messages.infer import Parameter


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("__weakref__", "_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Raises TypeError for values of other types, TritonModelException for an empty tensor or odd parameters."""
        try:
            self._tensors = list(output_tensors)
        except TypeError:
            raise _no_list(output_tensors) from None
        for tensor in self._tensors:
            if type(tensor) is not Tensor:
                _refuse_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(error=...) must be a TritonError, found {type(error).__name__}")
        self._error = error
        self._parameters = None if parameters is None else check_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return a new list of the outputs."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as a JSON object."""
        return json.dumps(self._parameters or {})

    def as_reply(self, wanted: Collection[str]) -> Reply:
        """Return the response for the channel, without the outputs that are not `wanted`."""
        if self._error is not None:
            return Reply([], self._error.as_reply_error(), answered=True)
        outputs = [tensor.as_wire() for tensor in self._tensors if tensor._name in wanted]
        reply = Reply(outputs, None, self._parameters or {})
        if len(outputs) != len(self._tensors):
            reply.dropped = [tensor._name for tensor in self._tensors if tensor._name not in wanted]
        return reply

    @classmethod
    def of(cls, reply: Reply, gpu: int = -1) -> InferenceResponse:
        """Make the response that a called model sent.

        Args:
            gpu: where the outputs should lie, as far as that is possible; -1 = on the host.
        """
        if reply.error is not None:
            return cls(error=TritonError.of(reply.error))
        outputs = [Tensor.received(output) for output in reply.outputs]
        if gpu >= 0:
            outputs = [output.on_gpu(gpu) for output in outputs]
        return cls(outputs, parameters=reply.parameters or None)


def _refuse_tensor(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise _no_list(tensor)


def _no_list(found: object) -> TypeError:
    kind = type(found)
    text = f"InferenceResponse(output_tensors=...) must be a list of Tensor, found {kind.__name__}"
    if kind is Tensor:
        return TypeError(f"{text} without a list: write [tensor]")
    return TypeError(f"{text} of the module {kind.__module__}: write pb_utils.Tensor(NAME, array)")


def check_parameters(parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """Check parameters, and return a copy: the model may change its own.

    Raises:
        TritonModelException: not a dict of strings to bool, int of 64 bits, str or float.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    parameters = {**parameters}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str, float)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str/float, found type {type(value)}"
            )
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(f"Expect integers of at most 64 bits as parameters values, found {value}")
    return parameters


InferenceResponse.__module__ = MODULE
