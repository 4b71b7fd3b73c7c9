"""A backend whose instances have two seats: copied into a model's directory by tests. Its device is a thread.

It adds and subtracts. Parameters of each reply tell of its batch: `gap`, whether the device had nothing to do before;
`followed`, whether the next batch began while this one ran; `rows`. The parameter `do` of a batch's first request makes
it do something else, see `Device`, and the log says when the device begins with it. Model parameters: `seats`, and
`ms`, how long a batch runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest, InstanceSpec, ModelSpec, OutputMemory, Reply, Timing
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import DataType, InferTensor, from_array

#: nothing here takes longer unless it is broken
PATIENCE = 20.0


class Batch:
    """A batch that has begun."""

    def __init__(self, requests: Sequence[BackendRequest]) -> None:
        self.requests = requests
        self.deed = str(requests[0].parameters.get("do", ""))
        self.computed = threading.Event()
        self.error: Exception | None = None
        self.gap = self.followed = self.cancelled = False


class Device:
    """Computes one batch after the other, in the order in which they began."""

    def __init__(self, ms: float) -> None:
        self._ms = ms
        self._begun: deque[Batch] = deque()
        self._changed = threading.Condition()
        #: whether a batch has failed in `begin`
        self.refused = threading.Event()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def add(self, batch: Batch) -> None:
        """Compute a batch when those before it are done."""
        with self._changed:
            self._begun.append(batch)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                gap = not self._begun
                self._changed.wait_for(lambda: self._begun)
                batch = self._begun[0]
            batch.gap = gap
            if batch.deed:
                host.log("INFO", f"device: {batch.deed} {batch.requests[0].id}")
            getattr(self, batch.deed or "compute")(batch)
            with self._changed:
                self._begun.popleft()
                batch.followed = bool(self._begun)
            batch.computed.set()

    def compute(self, batch: Batch) -> None:
        """Take the model's time."""
        time.sleep(self._ms / 1000)

    def until_followed(self, batch: Batch) -> None:
        """Run until the next batch has begun."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._begun) > 1, PATIENCE)

    def until_refused(self, batch: Batch) -> None:
        """Run until another batch has failed in `begin`."""
        self.refused.wait(PATIENCE)

    def exit_when_followed(self, batch: Batch) -> None:
        """End the process once the next batch has begun."""
        self.until_followed(batch)
        os._exit(7)

    def hang(self, batch: Batch) -> None:
        """Never end."""
        threading.Event().wait()

    def fail(self, batch: Batch) -> None:
        """Fail once the next batch has begun."""
        self.until_followed(batch)
        batch.error = ValueError("asked to fail")

    def until_next_is_cancelled(self, batch: Batch) -> None:
        """Run until the client of the next batch has disconnected."""
        self.until_followed(batch)
        host.log("INFO", "device: next has begun")
        end = time.monotonic() + PATIENCE
        while not batch.cancelled and time.monotonic() < end:
            batch.cancelled = len(self._begun) > 1 and self._begun[1].requests[0].is_cancelled()
            time.sleep(0.001)


class DeviceInstance:
    """An instance with a device of its own."""

    def __init__(self, seats: int, ms: float) -> None:
        self.seats = seats
        self._device = Device(ms)
        self._free = threading.Semaphore(2)

    def begin(self, batch: Sequence[BackendRequest], outputs: OutputMemory, timing: Timing) -> Batch:
        """Queue a batch for the device."""
        begun = Batch(batch)
        if begun.deed == "fail_in_begin":
            self._device.refused.set()
            raise InvalidArgument("asked to fail in begin")
        self._free.acquire()
        self._device.add(begun)
        return begun

    def finish(self, begun: Batch) -> list[Reply]:
        """Wait for a batch."""
        begun.computed.wait()
        self._free.release()
        if begun.error is not None:
            raise begun.error
        told = {"gap": begun.gap, "followed": begun.followed, "cancelled": begun.cancelled, "rows": len(begun.requests)}
        return [Reply(_add_sub(one), parameters=dict(told)) for one in begun.requests]

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """With one seat: begin and finish."""
        return self.finish(self.begin(batch, None, timing))  # type: ignore[arg-type]  # not used here

    def is_ready(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to release."""


def _add_sub(request: BackendRequest) -> list[InferTensor]:
    first, second = (tensor.array() for tensor in request.inputs)
    results = {"OUTPUT0": first + second, "OUTPUT1": first - second}
    return [
        InferTensor(name, DataType.INT32, array.shape, from_array(np.ascontiguousarray(array), DataType.INT32))
        for name, array in results.items()
    ]


class Backend:
    """The configuration names everything."""

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration as it is."""
        return spec.config

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[DeviceInstance]:
        """One device each."""
        given = {name: one["string_value"] for name, one in spec.config.get("parameters", {}).items()}
        return [DeviceInstance(int(given.get("seats", "2")), float(given.get("ms", "0"))) for _ in instances]

    def close(self) -> None:
        """Nothing to release."""
