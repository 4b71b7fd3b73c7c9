"""`edge-serve check --record-golden`: records what a loaded model answers as its golden test.

It sends the samples of the golden test that is there, or else the request of `check --infer`: the first sample of the
model's `model_warmup`, or zeros. Tolerances and budgets stay.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from edge_serve.aio.offload import offload
from edge_serve.check.infer import converse, first_request, kill_busy
from edge_serve.errors import Internal
from edge_serve.golden.reader import DIRECTORY, GoldenBudget, GoldenSample
from edge_serve.golden.writer import Recording, write_golden
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from edge_serve.messages.tensors import InferTensor
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.golden import read_limited, request_of
from edge_serve.models.repository.repository import FoundModel
from edge_serve.models.versions.served import Served


async def record(found: FoundModel, registry: Registry, seconds: float) -> str:
    """Record the answers of the highest version; what was done.

    Raises:
        EdgeServeError: the model gives no answer, or the test cannot be written.
    """
    served = registry.lookup(found.name, "")
    test = served.golden
    recordings = []
    if test is None:
        request, _ = await offload(first_request, served, registry)
        recordings.append(await _recorded(served, request, seconds, registry))
    for sample in test.samples if test is not None else ():
        request = await read_limited(request_of, sample, served.signature)
        recordings.append(await _recorded(served, request, seconds, registry, sample))
    await offload(write_golden, found.directory, recordings, test.budget if test is not None else GoldenBudget())
    source = "the samples that were there" if test is not None else "the request of --infer"
    return f"recorded {len(recordings)} samples in {found.name}/{DIRECTORY}/ from version {served.version}: {source}"


async def _recorded(
    served: Served, request: InferRequest, seconds: float, registry: Registry, before: GoldenSample | None = None
) -> Recording:
    """Send a request, and return it with its responses.

    Raises:
        EdgeServeError: the model fails, or does not answer in time; then it is killed.
    """
    name = before.name if before is not None else "first"
    inputs = [replace(tensor) for tensor in request.inputs]  # shapes are changed on the way
    parameters = dict(before.parameters) if before is not None else _parameters(request)
    responses: list[list[InferTensor]] = []

    def keep(response: InferResponse) -> None:
        responses.append([replace(tensor, data=bytes(tensor.data), offset=-1) for tensor in response.outputs])

    try:
        await converse(served, request, keep, seconds)
    except asyncio.TimeoutError:
        await kill_busy(registry, "no answer to record")
        raise Internal(
            f"sample '{name}': the last response did not come within {seconds:g} s (--load-timeout)"
        ) from None
    return Recording(name, parameters, inputs, responses, served.signature.decoupled, before)


def _parameters(request: InferRequest) -> dict[str, Any]:
    """Return what golden.json says of a sequence."""
    if not request.flags:
        return {}
    start, end = bool(request.flags & SEQUENCE_START), bool(request.flags & SEQUENCE_END)
    return {"sequence_id": request.correlation_id, "sequence_start": start, "sequence_end": end}
