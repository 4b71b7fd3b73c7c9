"""The facts in the status document, as plain values from the rooms of the server (observe/status/document.py)."""

from __future__ import annotations

from dataclasses import field

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.records import frozen

#: a model whose oldest batch has run for longer is called busy, and shown in red
BUSY_SECONDS = 10.0


@frozen
class WorkerFacts:
    """A worker process.

    Attributes:
        models: (name, version) of what lives in it.
        lost: its process has died and the next one is not there yet.
    """

    label: str
    pid: int
    restarts: int = 0
    models: tuple[tuple[str, str], ...] = ()
    lost: bool = False


@frozen
class ModelFacts:
    """A version that serves.

    Attributes:
        complete: every instance has its worker; healthy: and the model says that it is ready.
        instances: how many executors; 0 = an ensemble.
        in_flight: requests accepted and not yet answered.
        oldest_batch_seconds: age of the oldest batch that runs; None = none does.
        refusal: why it is not healthy although it is complete.
        namespace: the path of its repository, with `--model-namespacing`.
        revision: differs after each load, and after each change of its instances.
        gpu_memory_bytes: memory of GPUs that its load took; 0 = none, or unknown.
    """

    name: str
    version: str
    backend: str
    statistics: ModelStatistics
    load_seconds: float
    memory_bytes: int
    pids: tuple[int, ...] = ()
    instances: int = 0
    max_batch_size: int = 0
    decoupled: bool = False
    complete: bool = True
    healthy: bool = True
    in_flight: int = 0
    oldest_batch_seconds: float | None = None
    refusal: str = ""
    gpu_memory_bytes: int = 0
    namespace: str = ""
    revision: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """The namespace, name, and version, which no other version has."""
        return self.namespace, self.name, self.version


@frozen
class Temperature:
    """A sensor of the machine, degrees Celsius."""

    name: str
    celsius: float


@frozen
class ProcessReading:
    """Memory and age of a process; None: could not be read.

    Attributes:
        pss_bytes: resident memory with what is shared divided among those who share it.
    """

    rss_bytes: int | None = None
    pss_bytes: int | None = None
    uptime_seconds: float | None = None


@frozen
class SystemEntry:
    """A system that the device image can start. `state` is good, trying, or bad."""

    version: str
    state: str


@frozen
class SystemFault:
    """A fault below the server. `since` is a time in ISO 8601; `help` says what to do."""

    code: str
    text: str
    since: str = ""
    help: str = ""


@frozen
class SystemFacts:
    """The state of the device image that the server runs on.

    Attributes:
        problem: why the image's status file cannot be read; "" = it can.
        fingerprint: of the device's key. version, slot: of the system that runs.
        provisioned: the device has settings of its own.
    """

    problem: str = ""
    name: str = ""
    addresses: tuple[str, ...] = ()
    fingerprint: str = ""
    version: str = ""
    slot: str = ""
    provisioned: bool = False
    entries: tuple[SystemEntry, ...] = ()
    faults: tuple[SystemFault, ...] = ()


@frozen
class ServerFacts:
    """The process as a whole.

    Attributes:
        required: names of the models without which the server is not ready; none = all that were asked for.
        lacking: (name, why) of the required models that are not ready.
        safe_mode: why models were left out; "" = they were not.
        unanswered: the models that have requests to answer, while the server stops; "" = none, or it does not stop.
        unreadable: why the model repositories could not be read; "" = they could.
        explicit: clients may load and unload models.
        doors: name -> where it listens.
    """

    name: str
    started: bool
    stopping: bool
    ready: bool
    uptime_seconds: float
    pid: int
    host: str
    protocol: str
    required: tuple[str, ...] = ()
    lacking: tuple[tuple[str, str], ...] = ()
    safe_mode: str = ""
    unanswered: str = ""
    unreadable: str = ""
    explicit: bool = False
    doors: dict[str, list[str]] = field(default_factory=dict)
