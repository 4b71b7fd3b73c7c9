"""Shape keys: requests may share a batch if their keys are equal.

Rules: triton-inference-server/core src/backend_model.cc (SetConfiguredScheduler) and src/scheduler_utils.cc
(RequiredEqualInputs). Inputs with variable dimensions must agree in shape unless `allow_ragged_batch`; shape tensors
must agree in their values too; with optional inputs the same ones must be given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import InferTensor, is_unseen

ShapeKey = Callable[[InferRequest], Hashable]


def shape_key_for(signature: Signature) -> ShapeKey | None:
    """Return the function that computes the keys for a model; None if all its requests may share a batch."""
    if signature.max_batch_size <= 1:
        return None
    specs = signature.inputs.values()
    parts: dict[str, Callable[[InferTensor], Hashable]] = {}
    for spec in specs:
        if spec.is_shape_tensor:
            parts[spec.name] = _values
        elif -1 in spec.dims and not spec.allow_ragged_batch:
            parts[spec.name] = _item_shape
    if any(spec.optional for spec in specs):
        return lambda request: frozenset(
            (tensor.name, parts.get(tensor.name, _given)(tensor)) for tensor in request.inputs
        )
    if not parts:
        return None
    return lambda request: frozenset(
        (tensor.name, parts[tensor.name](tensor)) for tensor in request.inputs if tensor.name in parts
    )


def _given(tensor: InferTensor) -> Hashable:
    return None


def _item_shape(tensor: InferTensor) -> Hashable:
    return tensor.shape[1:]


def _values(tensor: InferTensor) -> Hashable:
    if is_unseen(tensor.data):  # the front end cannot read the values, so the request shares no batch
        return tensor.shape, object()
    return tensor.shape, bytes(tensor.data)  # of one request, without a batch dimension
