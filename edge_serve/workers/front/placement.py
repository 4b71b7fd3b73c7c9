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
class InstanceRecord:
    """One instance of a placement.

    Attributes:
        number: within the model; no other instance has or had it.
        channel: None while the worker is away, and while it opens the instance.
        closing: it was removed, and gets no batch any more. A worker that has it, or opens it now, has yet to close it.
    """

    number: int
    spec: InstanceSpec
    channel: Channel | None = None
    closing: bool = False


@entity
class ModelPlacement:
    """The instances of an opened model that live in one worker. They are opened together, and lost together.

    Attributes:
        instances: by number.
        number: how control frames of the worker name the placement; another one each time that it is opened.
        is_open: whether the worker has it.
        beside: a placement of the same model in the same worker, which shares what the backend has loaded for it.
        trouble: why its load in a restarted worker has not ended within its limit; "" = it has.
    """

    spec: ModelSpec
    backend: str
    link: Link
    instances: dict[int, InstanceRecord]
    number: int = 0
    is_open: bool = False
    beside: ModelPlacement | None = None
    trouble: str = ""

    def channels(self) -> list[Channel]:
        """Return the channels of the instances that the worker has, closing ones included."""
        return [one.channel for one in self.instances.values() if one.channel is not None]

    def serving(self) -> list[InstanceRecord]:
        """Return the instances that were not removed."""
        return [one for one in self.instances.values() if not one.closing]

    def remove_closing(self) -> list[InstanceRecord]:
        """Remove the closing instances, which a worker had that is gone. Return the others, which are to be opened."""
        for number in [one.number for one in self.instances.values() if one.closing]:
            del self.instances[number]
        return list(self.instances.values())

    def take_channels(self) -> list[tuple[InstanceRecord, Channel]]:
        """Return the channels, for the caller to close: the worker does not have the placement any more."""
        taken = [(one, one.channel) for one in self.instances.values() if one.channel is not None]
        for one, _ in taken:
            one.channel = None
        self.is_open = False
        return taken


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


def open_question(
    placement: ModelPlacement, instances: Sequence[InstanceRecord], channels: Sequence[int], in_main: bool
) -> dict[str, Any]:
    """Return the content of an OPEN frame; `channels` has the number of each instance's channel."""
    return {
        "model": placement.number,
        "spec": as_json(placement.spec),
        "backend": placement.backend,
        "in_main": in_main,
        "beside": placement.beside.number if placement.beside is not None and placement.beside.is_open else 0,
        "instances": [
            {"name": one.spec.name, "kind": one.spec.kind, "device_id": one.spec.device_id, "channel": number}
            for one, number in zip(instances, channels, strict=True)
        ],
    }
