"""The v2 application over a service that records what it is asked, and exchanges that record their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_serve.errors import EdgeServeError, NotFound, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, Parameter
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata
from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.shared_memory import CudaRegionStatus, RegionStatus
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.tensors import Buffer, DataType, InferTensor
from edge_serve.messages.trace import Arrival
from edge_serve.models.control.poller import ModelReload
from edge_serve.protocol.http1.head import HeadParser, MessageLimits, RequestHead
from edge_serve.transport.v2.application import V2Application
from edge_serve.transport.v2.head import V2Settings
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.memory.cuda_regions import CudaRegion
from edge_serve.workers.memory.regions import SharedMemoryRegions

JSON, PLAIN, BINARY = "application/json", "text/plain", "application/octet-stream"
SIGNATURE = Signature(
    "m", "3", "python", 0,
    {"X": TensorSpec("X", DataType.INT32, (-1,))}, {"Y": TensorSpec("Y", DataType.INT32, (-1,))}, required=1,
)  # fmt: skip
NO_MEMORY = memoryview(b"")
DECOUPLED = Signature("d", "1", "python", 0, {}, {}, decoupled=True)


@dataclass
class FakeLease:
    view: memoryview = NO_MEMORY
    offset: int = 0
    arena: object = None
    released: int = 0
    is_ready: bool = True
    error: EdgeServeError | None = None
    later: Callable[[], None] | None = None

    def skip(self, count: int) -> None:
        self.view, self.offset = self.view[count:], self.offset + count

    def when_ready(self, done: Callable[[], None]) -> None:
        if self.is_ready:
            done()
        else:
            self.later = done

    def release(self) -> None:
        self.released += 1


@dataclass
class FakeServed:
    signature: Signature
    arena: Arena | None = None
    held: int = 0

    def acquire(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1


@dataclass
class FakeTicket:
    cancelled: int = 0
    can_hold: bool = False
    held: list[bool] = field(default_factory=list)

    def cancel(self) -> None:
        self.cancelled += 1

    def set_paused(self, paused: bool) -> bool:
        if self.can_hold and paused is not (self.held or [False])[-1]:
            self.held.append(paused)
        return self.can_hold

    def jobs(self) -> tuple[()]:
        return ()


@dataclass
class FakeService:
    """Model `m` echoes X as Y at once, or when `answer` is called if `later`."""

    alive: bool = True
    is_exiting: bool = False
    later: bool = False
    error: EdgeServeError | None = None
    response_lease: FakeLease | None = None
    lease_error: EdgeServeError | None = None
    lookups: list[str] = field(default_factory=list)
    requests: list[InferRequest] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    leases: list[FakeLease] = field(default_factory=list)
    lease_sizes: list[int] = field(default_factory=list)
    client_errors: list[tuple[str, str, int]] = field(default_factory=list)
    loads: list[tuple[str, Any]] = field(default_factory=list)
    control_error: EdgeServeError | None = None
    ticket: FakeTicket = field(default_factory=FakeTicket)
    log: LogSettings = field(default_factory=LogSettings)
    trace_changes: list[tuple[str, TraceChanges]] = field(default_factory=list)
    regions: SharedMemoryRegions = field(default_factory=SharedMemoryRegions)
    allows_shm: bool = True
    document: dict[str, Any] | EdgeServeError = field(
        default_factory=lambda: {"server": {"state": "ready"}, "models": []}
    )

    def check_shm(self) -> None:
        if not self.allows_shm:
            raise Unsupported("no shared memory")

    def system_shm_status(self, name: str) -> Sequence[RegionStatus]:
        return self.regions.status(name)

    def register_system_shm(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.regions.register(name, key, offset, byte_size)

    def unregister_system_shm(self, name: str) -> None:
        self.regions.unregister(name)

    def cuda_shm_status(self, name: str) -> Sequence[CudaRegionStatus]:
        return self.regions.cuda_status(name)

    def register_cuda_shm(self, name: str, handle: bytes, device: int, byte_size: int, done: Any) -> None:
        if self.control_error is None:
            region = CudaRegion(CudaRegionStatus(name, device, byte_size), handle)
            self.regions._regions[name] = region
        done(self.control_error)

    def unregister_cuda_shm(self, name: str) -> None:
        self.check_shm()
        self.regions.unregister_cuda(name)

    def status(self, done: Callable[[dict[str, Any] | EdgeServeError], None]) -> None:
        done(self.document)

    def leave_safe_mode(self) -> list[str]:
        return ["left", "out"]

    def reload(self, names: Sequence[str], unload_first: bool, done: Any) -> None:
        done([ModelReload(name, ("1",), unload_first) for name in names])

    def live(self) -> bool:
        return not self.is_exiting

    def ready(self) -> bool:
        return self.alive

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata("triton", "2", ("x",))

    def model_ready(self, name: str, version: str) -> bool:
        self.lookup(name, version)
        return self.alive

    def model_metadata(self, name: str, version: str) -> ModelMetadata:
        self.lookup(name, version)
        return ModelMetadata(name, (version or "3",), "python", (), ())

    def model_config(self, name: str, version: str) -> Any:
        self.lookup(name, version)
        return {"name": name}

    def model_statistics(self, name: str, version: str) -> Sequence[tuple[str, str, ModelStatistics]]:
        return [(name or "all", version or "1", ModelStatistics())]

    def repository_index(self, ready_only: bool, done: Callable[[list[IndexEntry] | EdgeServeError], None]) -> None:
        done([] if ready_only else [IndexEntry("m", "3", "READY")])

    def load_model(
        self, name: str, parameters: Mapping[str, Parameter | bytes], done: Callable[[EdgeServeError | None], None]
    ) -> None:
        self.loads.append((name, parameters))
        done(self.control_error)

    def unload_model(self, name: str, unload_dependents: bool, done: Callable[[EdgeServeError | None], None]) -> None:
        self.loads.append((name, unload_dependents))
        done(self.control_error)

    def log_settings(self) -> LogSettings:
        return self.log

    def update_log_settings(self, settings: LogSettings) -> None:
        self.log = settings

    def trace_settings(self, model: str) -> TraceSettings:
        return TraceSettings()

    def update_trace_settings(self, model: str, changes: TraceChanges) -> None:
        self.trace_changes.append((model, changes))

    def lookup(self, name: str, version: str) -> FakeServed:
        self.lookups.append(name)
        if name == "broken":
            raise ValueError("a fault of ours")
        if name not in ("m", "d") or version not in ("", "3"):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return FakeServed(SIGNATURE if name == "m" else DECOUPLED)

    def lease(self, name: str, version: str, nbytes: int) -> FakeLease | None:
        if self.lease_error is not None:
            raise self.lease_error
        self.lease_sizes.append(nbytes)
        if name != "m":
            return None
        self.leases.append(FakeLease(memoryview(bytearray(8192)), 4096 * (1 + len(self.leases))))
        return self.leases[-1]

    def count_client_error(self, name: str, version: str, error: EdgeServeError) -> None:
        self.client_errors.append((name, version, error.http_status))

    def infer(
        self,
        served: Any,
        request: InferRequest,
        on_response: Callable[[InferResponse], None],
        arrival: Arrival | None = None,
    ) -> FakeTicket:
        self.requests.append(request)

        def answer() -> None:
            response = InferResponse("m", "3", request.id, error=self.error, lease=self.response_lease)
            if self.error is None:
                (x,) = request.inputs
                response.outputs = [InferTensor("Y", x.datatype, x.shape, x.data)]
            if request.lease is not None:
                request.lease.release()
            on_response(response)

        if self.later:
            self.waiting.append(answer)
        else:
            answer()
        return self.ticket


@dataclass
class FakeExchange:
    head: RequestHead
    body: Buffer = b""
    lease: Lease | None = None
    on_cancelled: Callable[[], None] | None = None
    on_drained: Callable[[], None] | None = None
    status: int = 0
    content: bytes = b""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    on_sent: Callable[[], None] | None = None
    buffers: Sequence[Buffer] = ()
    behind: bool = False
    arrival: Arrival | None = None
    begun_ns: int = 0
    extra: Sequence[tuple[str, str]] = ()

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = JSON,
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        assert self.status == 0, "answered twice"
        self.status, self.buffers, self.content = status, buffers, b"".join(buffers)
        self.content_type, self.headers = content_type, dict(headers)
        self.on_sent = on_sent if self.arrival is None else self.arrival.sending(on_sent)

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        raise AssertionError("this door does not stream")

    def write(self, data: Buffer) -> bool:
        raise AssertionError("this door does not stream")

    def end(self) -> None:
        raise AssertionError("this door does not stream")

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class FixedClock:
    def now_ns(self) -> int:
        return 1_000


PARSER = HeadParser(MessageLimits())


def head_of(method: str, path: str, headers: Mapping[str, str] | None = None, length: int = 0) -> RequestHead:
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in {"Host": "h", **(headers or {})}.items()]
    return PARSER.parse("\r\n".join([*lines, "", ""]).encode("latin-1"))


class Door:
    """The application under test and its service."""

    def __init__(self, **settings: Any) -> None:
        self.service = FakeService()
        self.application = V2Application(
            self.service,
            V2Settings(**settings),
            config_to_json=lambda config: {**config, "made": True},
            clock=FixedClock(),
        )

    def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> FakeExchange:
        exchange = FakeExchange(head_of(method, path, headers, len(body)), body)
        self.application.handle(exchange)
        return exchange

    def infer(self, body: bytes, headers: Mapping[str, str] | None = None, model: str = "m") -> FakeExchange:
        return self.call("POST", f"/v2/models/{model}/infer", body, headers)
