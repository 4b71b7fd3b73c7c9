"""The interface of a backend: a class that turns a batch into replies, in a worker process.

Worker's side: the standard library and NumPy only. A backend's file name is its name in config.pbtxt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from edge_serve.backends.packs import Pack
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import InferTensor
from edge_serve.records import slotted

#: key of `ModelSpec.backend_config`
DECLARED_NAMES = "declared-names"


class DeviceLost(Internal):
    """This process can use its device no more. The worker answers the batch with this error, ends, and is started
    again.
    """


@slotted
class ArenaMemory:
    """The tensor memory of a model, in its worker.

    Attributes:
        view: all of it, most of which has no pages yet.
        pin: asks the front end never to return the pages of the first bytes while the model is open, so they may be
            registered with a device. Returns for how many bytes it is so, at least those asked for. Raises
            EdgeServeError with the reason if it is not. It waits, so it must not be called for a batch.
        registered: set by a backend: its registration with a device, which the instances of this opening share.
    """

    view: memoryview
    pin: Callable[[int], int]
    registered: Any = None


@slotted
class ModelSpec:
    """The description of a model version for the worker that opens it.

    Attributes:
        model_directory: `<repository>/<model>`.
        version_directory: `<repository>/<model>/<version>`.
        config: the ModelConfig as Triton's JSON (original field names, int64 as numbers).
        backend_config: `--backend-config=<backend>,key=value`, plus the global keys.
        pack: that has the backend; None = the backend is elsewhere.
        arena: set by the worker that opens the model.
    """

    name: str
    version: int
    model_directory: Path
    version_directory: Path
    config: dict[str, Any]
    backend_config: dict[str, str] = field(default_factory=dict)
    pack: Pack | None = None
    arena: ArenaMemory | None = None

    @property
    def declared_names(self) -> list[str]:
        """Return the tensors of config.pbtxt where `check` has a model described, for one that has several names."""
        return self.backend_config.get(DECLARED_NAMES, "").splitlines()

    @property
    def is_python(self) -> bool:
        """Return whether the model runs as a Python model of Triton, each instance in a process of its own."""
        return self.config.get("backend") == "python" or (self.pack is not None and self.pack.is_python_based)


@slotted
class InstanceSpec:
    """One executor of a model: `kind` is CPU, GPU or MODEL."""

    name: str
    kind: str = "CPU"
    device_id: int = 0


@slotted
class BackendRequest:
    """One request of a batch, in the worker.

    Attributes:
        inputs: in the order of the configuration, of a Python model in that of the client (`ModelSpec.is_python`);
            tensors are views of the arena or of the message.
        requested_outputs: names; all outputs of the model when the client listed none, and nothing for a null request.
        is_cancelled: asks whether the client has disconnected; cheap enough to call in a loop.
        send: decoupled models only: one of several replies, and whether it is the last; None only says that none
            follows. Callable from any thread.
        sequence_slot: of its sequence in the instance; -1 = it is part of none, or a null request.
        personal: set by the backend when the model looked at parameters, correlation id or flags.
    """

    id: str
    inputs: list[InferTensor]
    requested_outputs: Sequence[str]
    parameters: dict[str, Parameter]
    correlation_id: int | str
    flags: int
    priority: int
    timeout_us: int
    is_cancelled: Callable[[], bool]
    send: Callable[[Reply | None, bool], None] | None = None
    sequence_slot: int = -1
    personal: bool = False

    @property
    def number(self) -> int:
        """Return the number of its batch, shifted by 16, and its place there; -1 if a model made it. Computed when it
        is asked for."""
        return self.is_cancelled.args[0] if isinstance(self.is_cancelled, partial) else -1


@slotted
class Reply:
    """The answer to one request. Output tensors not asked for are dropped by the worker.

    Attributes:
        answered: `error` is what the model itself answers this request with; its execution counts as a success.
        rescheduled: no answer yet: the model wants the request once more (`iterative_sequence`).
        personal: it may depend on the request's parameters or sequence, which a response cache must know.
        stored: set by the worker: the outputs that were written to a client's shared memory, no more in `outputs`
            (workers/child/memory/shared_request.py).
        dropped: names of outputs that the model returned and that are not in `outputs`, because the request does not
            want them. Some may be misspelt (workers/child/mismatch.py).
    """

    outputs: list[InferTensor] = field(default_factory=list)
    error: EdgeServeError | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    answered: bool = False
    rescheduled: bool = False
    personal: bool = False
    stored: list[list[Any]] | None = None
    dropped: Sequence[str] = ()

    def copy_outputs(self) -> None:
        """Replace the outputs by copies in the memory of the host, because the model may change its arrays.

        Raises:
            EdgeServeError: an output cannot be copied from its device.
        """
        self.outputs = [InferTensor(one.name, one.datatype, one.shape, bytes(one.data)) for one in self.outputs]


@slotted
class Timing:
    """Marks that a backend may set while it executes (CLOCK_MONOTONIC ns); unset ones are filled by the worker."""

    input_end_ns: int = 0
    output_start_ns: int = 0


class BackendInstance(Protocol):
    """One executor, used by one thread at a time.

    One with the attribute `takes_device_memory` set gets inputs that lie in the memory of a GPU as `DeviceData`
    (backends/cuda/device_data.py), and others a copy. Any may return such outputs.

    One that may write to its inputs has the attribute `writes_inputs` set. Then inputs that other requests may read are
    read-only, and the instance copies these. Others must not write to any.
    """

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """One reply per request, in order (empty for a decoupled model). An exception fails the whole batch.

        The outputs are copied before the next call, which may write to their memory.
        """

    def is_ready(self) -> bool:
        """False when the instance is alive and cannot serve."""

    def close(self) -> None:
        """Release everything."""


class OutputMemory(Protocol):
    """Memory for the outputs of one batch that are too large for its reply frame.

    Attributes:
        inline: outputs of one request that are together no larger travel in the frame, from wherever they lie.
    """

    inline: int

    def allocate(self, nbytes: int) -> memoryview:
        """Return writable memory in the reply's slot of the model's arena, on 64 bytes. Outputs whose data are views of
        it are not copied again. Call it once for all outputs: a second call may move to another slot, and then the
        data in the first one are copied. It may ask the front end for a slot, which is a round trip.

        Raises:
            Unavailable: the front end has no memory.
        """


class QueueingInstance(BackendInstance, Protocol):
    """An instance that takes its next batch while one runs.

    Its `execute` is `begin` and `finish` in one. The worker uses it where batches must follow each other, as with
    implicit states.

    Attributes:
        seats: how many batches may have begun and not finished: 2 = one runs, and one is next. With 1 the worker
            calls `execute` alone.
    """

    seats: int

    def begin(self, batch: Sequence[BackendRequest], outputs: OutputMemory, timing: Timing) -> Any:
        """Enqueue the copies and the run of a batch, and return without waiting for them. `finish` gets the result.

        It waits while `seats` batches have begun. An exception fails the batch: then nothing of it may still run or
        write, and `finish` is not called.
        """

    def finish(self, begun: Any) -> list[Reply]:
        """Wait for a batch, and return one reply per request. Called in the order of `begin`, by another thread.

        No later `begin` or `finish` may write to the memory of the outputs, because it may run while they are copied.
        An exception fails the batch: then nothing of it may still run or write.
        """


class Backend(Protocol):
    """One model version in one worker."""

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration with what the model itself tells filled in (auto-completion).

        Raises:
            EdgeServeError: the model's files do not load, or contradict the configuration.
        """

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[BackendInstance]:
        """Load the model. Called again when instances are added to those that serve: what they share is loaded then.

        Raises:
            EdgeServeError: with the reason, for the log and the repository index.
        """

    def close(self) -> None:
        """Release what the instances shared, which are closed."""
