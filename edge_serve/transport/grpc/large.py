"""Decodes large messages that lie in ordinary memory (typed contents, compressed ones) in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from edge_serve.aio.bulk_copy import MOST_AT_ONCE, copy, release_later
from edge_serve.aio.offload import offload
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import InferTensor, Shared
from edge_serve.protocol.grpc.infer import GrpcInferDecoder
from edge_serve.transport.door.body_memory import ClaimedLease
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.v2.infer import InferService
from edge_serve.workers.wire.layout import padded


async def prepare(
    decoder: GrpcInferDecoder[Any], service: InferService, message: Message, forwarded: Mapping[str, str] | None
) -> None:
    """Decode a message in a thread, and copy its tensors into the model's arena if that has room."""
    try:
        request, _, wants_final = await offload(decoder.decode, message.data, forwarded)
    except EdgeServeError as error:
        message.decoded = error
        return
    message.decoded = request, wants_final
    await _move(request, service, message)


async def _move(request: InferRequest, service: InferService, message: Message) -> None:
    loose = [tensor for tensor in request.inputs if type(tensor) is not Shared]
    size = sum(padded(len(tensor.data)) for tensor in loose)
    if size <= MOST_AT_ONCE:
        return
    try:
        room = service.lease(request.model_name, request.model_version, size)
    except EdgeServeError:  # the look-up before `Service.infer` will fail with the same error
        return
    if room is None:
        return
    ready = asyncio.Event()
    room.when_ready(ready.set)
    await ready.wait()
    if room.error is not None:
        room.release()
        return
    moves, placed, position = [], {}, 0
    for tensor in loose:
        target = room.view[position : position + len(tensor.data)]
        moves.append((target, tensor.data))
        placed[tensor.name] = InferTensor(tensor.name, tensor.datatype, tensor.shape, target, room.offset + position)
        position += padded(len(tensor.data))
    try:
        await offload(copy, moves)
    except Exception:
        room.release()
        raise
    request.inputs = [placed.get(tensor.name, tensor) for tensor in request.inputs]
    message.lease = room if message.lease is None else ClaimedLease(room, message.lease)
    unused, message.data = (message.data, moves), b""
    release_later(unused)
