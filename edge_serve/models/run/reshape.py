"""`reshape`: converts between the client's and the model's shape of a tensor (ModelTensorReshape of
model_config.proto)."""

from __future__ import annotations

from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Shape, element_count


def reshape_inputs(request: InferRequest, signature: Signature) -> None:
    """Give each input the shape that the model expects."""
    batch = 1 if signature.max_batch_size else 0
    for tensor in request.inputs:
        spec = signature.inputs.get(tensor.name)
        if spec is not None and spec.reshape is not None:
            tensor.shape = converted(tensor.shape, spec.dims, spec.reshape, batch)


def reshape_outputs(response: InferResponse, signature: Signature) -> None:
    """Give each output the shape that the configuration promises to clients."""
    batch = 1 if signature.max_batch_size else 0
    for tensor in response.outputs:
        spec = signature.outputs.get(tensor.name)
        if spec is not None and spec.reshape is not None:
            tensor.shape = converted(tensor.shape, spec.reshape, spec.dims, batch)


def converted(shape: Shape, before: Shape, after: Shape, batch: int) -> Shape:
    """Convert `shape`, which follows `before` after `batch` leading dimensions, so that it follows `after`.

    Variable dimensions are carried over in order. With one variable dimension on each side the sizes around them may
    differ, and the remainder is computed. A shape that does not follow `before` is returned as it is: the model
    returned another shape than configured, and the client receives that shape.
    """
    inner = shape[batch:]
    if len(inner) != len(before):
        return shape
    variable = [size for size, dim in zip(inner, before, strict=True) if dim < 0]
    if after.count(-1) != len(variable):
        return shape
    if len(variable) == 1:
        fixed = element_count([dim for dim in after if dim > 0])
        variable = [element_count(inner) // fixed] if fixed else variable
    values = iter(variable)
    return shape[:batch] + tuple(next(values) if dim < 0 else dim for dim in after)
