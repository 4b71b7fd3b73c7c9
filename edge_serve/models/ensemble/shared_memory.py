"""Shared memory of clients in ensembles: the member that makes an output writes it there, later steps read it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import InferTensor, Shared, is_unseen
from edge_serve.scheduling.ensemble.plan import EnsemblePlan, EnsembleStep


def refusal(request: InferRequest, plan: EnsemblePlan, signature: Signature) -> InvalidArgument | None:
    """Return the reason why a request with tensors in shared memory cannot be run; None = it can."""
    places = {output.name: output.place for output in request.outputs}
    given = {tensor.name: tensor for tensor in request.inputs}
    read = {tensor for step in plan.steps for tensor in step.inputs.values()} if signature.decoupled else set()
    for name in places or signature.outputs:
        if name not in plan.writers and (places.get(name) is not None or isinstance(given.get(name), Shared)):
            return InvalidArgument(
                f"ensemble '{signature.model_name}' hands its input '{name}' on as an output, which shared memory "
                "cannot be used for; send it as data, and take the output from the reply"
            )
        if places.get(name) is not None and name in read:  # the next response would overwrite it
            return InvalidArgument(
                f"steps of the decoupled ensemble '{signature.model_name}' read its output '{name}', which cannot be "
                "in shared memory; take it from the reply"
            )
    return None


def share(request: InferRequest, top: InferRequest, step: EnsembleStep) -> None:
    """Let a member write the outputs that the client wants in its memory, and read inputs that were written there."""
    places = {output.name: output.place for output in top.outputs if output.place is not None}
    request.outputs = [replace(one, place=places.get(step.outputs[one.name])) for one in request.outputs]
    request.inputs = [_there(tensor, step, places) for tensor in request.inputs]
    request.shared = any(one.place is not None for one in request.outputs) or any(
        isinstance(tensor, Shared) for tensor in request.inputs
    )


def _there(tensor: InferTensor, step: EnsembleStep, places: Mapping[str, Place]) -> InferTensor:
    if not is_unseen(tensor.data) or isinstance(tensor, Shared):
        return tensor
    place = places[step.inputs[tensor.name]]
    return Shared(tensor.name, tensor.datatype, tensor.shape, tensor.data, -1, place.region, place.offset)
