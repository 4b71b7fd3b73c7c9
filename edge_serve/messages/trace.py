"""What is recorded of one traced request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge_serve.messages.statistics import ComputeTimes
from edge_serve.tensors import Shape, Tensor, is_unseen, to_array


class TensorRecord(NamedTuple):
    """A tensor as text, because its memory is used again."""

    activity: str
    name: str
    data: str
    shape: Shape
    datatype: str


class Trace(ComputeTimes):
    """One request's trace. It takes the place of `InferRequest.compute`, so the driver tells it the compute times.

    Attributes:
        timestamps: what happened and when, CLOCK_MONOTONIC nanoseconds; None = not wanted.
        tensors: what went in and out; None = not wanted.
        closed: it is being written, and what still happens is not told.
    """

    def __init__(self, number: int, *, timestamps: bool, tensors: bool) -> None:
        super().__init__()
        self.id = number
        self.model_name = ""
        self.model_version = ""
        self.request_id = ""
        self.timestamps: list[tuple[str, int]] | None = [] if timestamps else None
        self.tensors: list[TensorRecord] | None = [] if tensors else None
        self.closed = False

    def mark(self, name: str, ns: int) -> None:
        """Something happened."""
        if self.timestamps is not None and not self.closed:
            self.timestamps.append((name, ns))

    def add(self, compute_start_ns: int, input_end_ns: int, output_start_ns: int, compute_end_ns: int) -> None:
        """The model has executed the request."""
        self.mark("COMPUTE_START", compute_start_ns)
        self.mark("COMPUTE_INPUT_END", input_end_ns)
        self.mark("COMPUTE_OUTPUT_START", output_start_ns)
        self.mark("COMPUTE_END", compute_end_ns)

    def keep(self, activity: str, tensors: Sequence[Tensor]) -> None:
        """Tensors as they are now: TENSOR_QUEUE_INPUT or TENSOR_BACKEND_OUTPUT."""
        if self.tensors is not None:
            self.tensors += [
                TensorRecord(activity, tensor.name, _text(tensor), tensor.shape, tensor.datatype.name)
                for tensor in tensors
                if not is_unseen(tensor.data)
            ]


def _text(tensor: Tensor) -> str:
    """The values with commas between them, as C++ streams print them: six digits of floats, strings in quotes."""
    values = to_array(tensor.data, tensor.datatype, tensor.shape).reshape(-1).tolist()
    return ",".join([_value(value) for value in values])


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return f'"{value.decode(errors="replace")}"'
    return f"{value:g}" if isinstance(value, float) else str(int(value))  # type: ignore[call-overload]  # a number
