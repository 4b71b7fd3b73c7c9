"""The instances of a model that live in one worker, and what is sent and said of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.errors import Unavailable
from edge_serve.records import entity
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.link import Link


@entity
class ModelPlacement:
    """The instances of an opened model that live in one worker.

    Attributes:
        instances: their numbers within the model; `specs` belong to them.
        channels: by instance number; empty while the worker is away.
        beside: a placement of the same model in the same worker, which shares what the backend has loaded for it.
    """

    spec: ModelSpec
    backend: str
    link: Link
    instances: list[int]
    specs: list[InstanceSpec]
    channels: dict[int, Channel]
    number: int = 0
    lost: bool = False
    beside: ModelPlacement | None = None


def socket_pairs(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Make a socket pair for each instance: our end, and the worker's.

    Raises:
        Unavailable: the machine has no descriptors left.
    """
    pairs: list[tuple[socket.socket, socket.socket]] = []
    try:
        while len(pairs) < count:
            pairs.append(socket.socketpair())
    except OSError as error:
        for pair in pairs:
            for end in pair:
                end.close()
        raise Unavailable(f"no descriptors for {count} instances: {error.strerror}") from error
    return pairs


def lost_text(is_python: bool, instance: str, reason: str) -> str:
    """Return the error of a lost instance; for a Python model in Triton's words (python_be.cc, stub_launcher.cc)."""
    if not is_python:
        return f"the worker of '{instance}' {reason}; it is being restarted"
    return (
        f"Failed to process the request(s) for model instance '{instance}', message: Stub process '{instance}' is not "
        f"healthy. Its worker {reason}; it is being restarted."
    )


def as_json(spec: ModelSpec) -> dict[str, Any]:
    """Return a model's description as questions to a worker have it."""
    return {
        "name": spec.name,
        "version": spec.version,
        "model_directory": str(spec.model_directory),
        "version_directory": str(spec.version_directory),
        "config": spec.config,
        "backend_config": spec.backend_config,
        "pack": spec.pack.as_json() if spec.pack is not None else None,
    }


def seats_in(answer: dict[str, Any], instances: int) -> list[int] | None:
    """Return how many batches each instance takes at once, from the answer to OPEN; None = it breaks the protocol."""
    seats = answer.get("seats", [1] * instances)
    is_right = type(seats) is list and len(seats) == instances and all(type(one) is int and one > 0 for one in seats)
    return seats if is_right else None


def open_question(placement: ModelPlacement, channels: Sequence[int], in_main: bool) -> dict[str, Any]:
    """Return the content of an OPEN frame; `channels` has the number of each instance's channel."""
    return {
        "model": placement.number,
        "spec": as_json(placement.spec),
        "backend": placement.backend,
        "in_main": in_main,
        "beside": placement.beside.number if placement.beside is not None and placement.beside.channels else 0,
        "instances": [
            {"name": spec.name, "kind": spec.kind, "device_id": spec.device_id, "channel": number}
            for spec, number in zip(placement.specs, channels, strict=True)
        ],
    }
