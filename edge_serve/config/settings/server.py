"""The server's settings: one table, the annotated fields of ServerConfig.

A field's name gives the flag (`http_port`: `--http-port`) and the environment variable (EDGE_SERVE_HTTP_PORT), its
value the default, its annotation the group, the way values are written and the help text. Names, syntax and defaults
are Triton's (server src/command_line_parser.cc); the default addresses are the loopback ones, where Triton opens all:
`programs` has the command `tritonserver`, whose defaults are Triton's there too.

Annotations of the tables are values, not texts (no `from __future__ import annotations`): the texts would be compiled
at each start.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import combinations
from typing import Annotated, Any

from edge_serve.config.settings import server_values as values
from edge_serve.config.settings.addresses import overlap
from edge_serve.config.settings.kinds import (
    BOOLEAN,
    COUNT,
    FILLED,
    FLAG,
    LEVEL,
    NAME,
    PATH,
    PATTERN,
    PORT,
    POSITIVE,
    REPOSITORY,
    SECONDS,
    TEXT,
    choice,
    integer,
    number,
)
from edge_serve.config.settings.programs import EDGE_SERVE, Program
from edge_serve.config.settings.table import Alias, BadSetting, Setting, help_text, read_settings
from edge_serve.devices.device import LEAST_COMPUTE_CAPABILITY
from edge_serve.messages.settings import LOG_FORMATS
from edge_serve.records import frozen

_server = partial(Setting, "Server")
_log = partial(Setting, "Logging")
_repository = partial(Setting, "Model Repository")
_worker = partial(Setting, "Workers")
_http = partial(Setting, "HTTP")
_grpc = partial(Setting, "GRPC")
_sagemaker = partial(Setting, "Sagemaker", ignored="edge-serve has no SageMaker endpoint")
_vertex = partial(Setting, "Vertex", ignored="edge-serve has no Vertex AI endpoint")
_metrics = partial(Setting, "Metrics")
_trace = partial(Setting, "Tracing")
_backend = partial(Setting, "Backend")
_agent = partial(Setting, "Repository Agent")
_cache = partial(Setting, "Response Cache")
_rate = partial(Setting, "Rate Limiter")
_memory = partial(Setting, "Memory/Device Management")
_shm = partial(Setting, "Shared Memory")
_access = partial(Setting, "Access")
_limits = partial(Setting, "Limits")

_NO_THREADS = "one event loop serves all connections"
_NO_RESPONSE_POOL = "the sender of a stream waits when 1 MiB of it is unread"
_NO_POOL = "there is no such pool"
_NO_LIBRARIES = "agents are Python packages, not shared libraries"
_NO_EXPORT = (
    "--trace-config=mode=opentelemetry is accepted and ignored: edge-serve exports no traces, and OTEL_* variables "
    "have no effect; for traces in a file use --trace-config=mode=triton and --trace-config=triton,file=<path>"
)


@frozen
class ServerConfig:
    """The server's settings. Fields that are accepted and ignored are here too, for `--help` and the docs.

    Attributes:
        notes: lines for the log: settings that are deprecated or have no effect.
        given: names of the settings that were given, rather than left at their defaults.
    """

    id: Annotated[str, _server(TEXT, "Name of this server, in its metadata.")] = "triton"
    exit_timeout_secs: Annotated[int, _server(COUNT, "Seconds for requests to finish when the server stops.")] = 30

    log_verbose: Annotated[int, _log(LEVEL, "Level of verbose logging; 0 or false = none, true = 1.")] = 0
    log_info: Annotated[bool, _log(BOOLEAN, "Log at info level.")] = True
    log_warning: Annotated[bool, _log(BOOLEAN, "Log at warning level.")] = True
    log_error: Annotated[bool, _log(BOOLEAN, "Log at error level.")] = True
    log_format: Annotated[
        str,
        _log(
            choice(*LOG_FORMATS),
            "default: LMMDD hh:mm:ss.ssssss; ISO8601: YYYY-MM-DDThh:mm:ssZ L; json: one object a line.",
        ),
    ] = "default"
    log_file: Annotated[str, _log(TEXT, "File for the log, in place of standard error.")] = ""

    model_repository: Annotated[
        tuple[str, ...], _repository(REPOSITORY, "Directory of models. A model in two of them is unavailable.", tuple)
    ] = ()
    exit_on_error: Annotated[
        bool,
        _repository(
            BOOLEAN,
            "Exit when a model cannot be loaded at start. One whose files cannot be read is left out; --required-model "
            "makes it count for readiness.",
        ),
    ] = True
    disable_auto_complete_config: Annotated[
        bool, _repository(FLAG, "Demand complete config.pbtxt files; fill in nothing from the models themselves.")
    ] = False
    strict_readiness: Annotated[
        bool, _repository(BOOLEAN, "Report ready only while all required models are ready.")
    ] = True
    required_model: Annotated[
        tuple[str, ...], _repository(NAME, "Model that the server needs to be ready. Not given: all models.", tuple)
    ] = ()
    model_control_mode: Annotated[
        str,
        _repository(
            choice("none", "poll", "explicit"),
            "none: load all models at start; poll: follow changes in the repositories; explicit: load and unload on "
            "request, and at start only the models of --load-model.",
        ),
    ] = "none"
    repository_poll_secs: Annotated[int, _repository(POSITIVE, "Seconds between scans of the repositories.")] = 15
    load_model: Annotated[
        tuple[str, ...], _repository(FILLED, "Model to load at start in explicit mode; * alone = all models.", tuple)
    ] = ()
    model_config_name: Annotated[
        str, _repository(NAME, "Read configs/<name>.pbtxt, if any, instead of config.pbtxt.")
    ] = ""
    swap_drain_secs: Annotated[
        int, _repository(POSITIVE, "Seconds for a replaced or unloaded version to finish its requests and sequences.")
    ] = 300
    swap_queue_size: Annotated[
        int, _repository(COUNT, "Requests that may wait while a model is swapped that fits into memory only once.")
    ] = 256
    memory_admission: Annotated[bool, _repository(BOOLEAN, "Refuse to load models that do not fit into memory.")] = True
    memory_reserve_bytes: Annotated[int, _repository(COUNT, "Bytes of memory that a load leaves free; 0 = 5 %.")] = 0
    model_load_thread_count: Annotated[int, _repository(POSITIVE, "Models loaded at the same time.")] = 4
    model_load_retry_count: Annotated[int, _repository(COUNT, "Further tries to load a model that failed.")] = 0
    model_namespacing: Annotated[
        bool, _repository(BOOLEAN, "Serve models of one name from several repositories, by namespace.")
    ] = False
    enable_peer_access: Annotated[
        bool, _repository(BOOLEAN, "GPUs read each other's memory.", ignored="models pass tensors through host memory")
    ] = True

    worker_heartbeat_timeout_secs: Annotated[
        float, _worker(number(0.1), "Seconds of silence after which a worker process counts as hung and is restarted.")
    ] = 30.0
    state_directory: Annotated[
        str, _server(PATH, "Directory for the record of crashes. Not given: $STATE_DIRECTORY (systemd), else none.")
    ] = ""
    ota_status_file: Annotated[
        str, _server(PATH, "Status file of edge-ota: adds updates to the status, the page and the edge_ota_* metrics.")
    ] = ""
    device_status_file: Annotated[
        str, _server(PATH, "Status file of the device image: adds its versions and faults to the status and the page.")
    ] = ""
    hang_timeout_secs: Annotated[
        float,
        _worker(
            SECONDS,
            "Seconds without a response after which a model that runs a batch counts as hung and its worker is "
            "restarted. 0 = the watchdog's time under systemd (WatchdogSec=), else never.",
        ),
    ] = 0.0
    busy_poll_microseconds: Annotated[
        int,
        _worker(
            COUNT,
            "Longest time for which the server and the worker of a lone client poll for each other before they sleep. "
            "They poll only on idle cores, and never if started on battery or under a CPU quota. 0 = never.",
        ),
    ] = 300
    self_inference_interval_secs: Annotated[
        float,
        _worker(
            SECONDS,
            "Seconds after which the server itself sends an idle model a request: a sample of its golden test or its "
            "model_warmup, or zeros. A model that answered before and fails now, or gives a wrong golden answer, is "
            "restarted. 0 = never.",
        ),
    ] = 0.0
    worker_memory_max_bytes: Annotated[
        int,
        _worker(
            COUNT,
            "Bytes of memory that each worker may have, where the service may divide its control group (Delegate=); "
            "the model parameter EDGE_SERVE_MEMORY_MAX says otherwise. 0 = no limit.",
        ),
    ] = 0
    worker_sandbox: Annotated[
        bool, _worker(BOOLEAN, "Restrict workers to their own model: not the server's files, memory and processes.")
    ] = True
    execution_env_directory: Annotated[
        str,
        _worker(
            PATH,
            "Directory that archives of EXECUTION_ENV_PATH are unpacked into. Not given: environments/ in "
            "$CACHE_DIRECTORY, or in ~/.cache/edge-serve.",
        ),
    ] = ""
    tensor_memory_bytes: Annotated[int, _worker(COUNT, "Bytes for tensors of all models; 0 = a quarter of memory.")] = 0

    allow_http: Annotated[bool, _http(BOOLEAN, "Listen for HTTP requests.")] = True
    http_address: Annotated[str, _http(FILLED, "Address to listen on; :: = every one of IPv4 and IPv6.")] = "127.0.0.1"
    http_port: Annotated[int, _http(PORT, "Port to listen on; 0 = any free one.", door="allow_http")] = 8000
    reuse_http_port: Annotated[bool, _http(BOOLEAN, "Let several servers listen on the port (SO_REUSEPORT).")] = False
    http_unix_socket: Annotated[str, _http(PATH, "UNIX socket to listen on as well.")] = ""
    http_header_forward_pattern: Annotated[
        re.Pattern[str] | None, _http(PATTERN, "Headers that become parameters of the inference request.")
    ] = None
    http_thread_count: Annotated[int, _http(POSITIVE, "Threads for HTTP.", ignored=_NO_THREADS)] = 8
    http_max_input_size: Annotated[
        int,
        _http(
            POSITIVE,
            "Bytes that a JSON part, a tensor in JSON, a raw body, or a decompressed body may have, as in Triton. "
            "Binary tensors do not count: --request-memory-bytes limits all bodies together.",
        ),
    ] = 2**26
    http_max_connections: Annotated[int, _http(POSITIVE, "Connections open at once; further ones get 503.")] = 4096
    http_idle_timeout_secs: Annotated[float, _http(SECONDS, "Seconds a connection may be idle; 0 = no limit.")] = 300.0
    allow_ui: Annotated[bool, _http(BOOLEAN, "Show the status page at /ui, and lead browsers there from /.")] = True
    http_restricted_api: Annotated[
        tuple[values.Restriction, ...],
        _http(
            values.HTTP_RESTRICTION,
            "Operations (comma-separated) that need a header with this value. "
            f"Operations: {', '.join(values.RESTRICTABLE)}.",
            values.combine_restrictions,
        ),
    ] = ()
    http_use_ssl: Annotated[bool, _http(BOOLEAN, "Use TLS.")] = False
    http_use_ssl_mutual: Annotated[
        bool, _http(BOOLEAN, "Use TLS, and refuse clients without a certificate that --http-root-cert signs.")
    ] = False
    http_server_cert: Annotated[
        str, _http(PATH, "File with the server's certificate and what leads to its root (PEM). Read anew when changed.")
    ] = ""
    http_server_key: Annotated[str, _http(PATH, "File with the server's key, without a password (PEM).")] = ""
    http_root_cert: Annotated[
        str, _http(PATH, "CA certificates (PEM) for client certificates; --http-use-ssl-mutual makes these required.")
    ] = ""
    http_health_json: Annotated[
        bool, _http(BOOLEAN, "Add a JSON body to health replies, for KServe's client. Triton's replies have no body.")
    ] = False
    http_cors_origin: Annotated[
        tuple[str, ...],
        _http(values.ORIGIN, "Origin of web pages that may read answers (CORS); * = any origin.", tuple),
    ] = ()

    allow_grpc: Annotated[bool, _grpc(BOOLEAN, "Listen for gRPC requests.")] = True
    grpc_address: Annotated[str, _grpc(FILLED, "Address to listen on; :: = every one of IPv4 and IPv6.")] = "127.0.0.1"
    grpc_port: Annotated[int, _grpc(PORT, "Port to listen on; 0 = any free one.", door="allow_grpc")] = 8001
    reuse_grpc_port: Annotated[bool, _grpc(BOOLEAN, "Let several servers listen on the port (SO_REUSEPORT).")] = False
    grpc_header_forward_pattern: Annotated[
        re.Pattern[str] | None, _grpc(PATTERN, "Metadata that becomes parameters of the inference request.")
    ] = None
    grpc_infer_thread_count: Annotated[int, _grpc(integer(2, 128), "Threads for inference.", ignored=_NO_THREADS)] = 2
    grpc_infer_allocation_pool_size: Annotated[int, _grpc(COUNT, "States kept for reuse.", ignored=_NO_POOL)] = 8
    grpc_max_response_pool_size: Annotated[
        int, _grpc(POSITIVE, "Responses that wait for a slow reader.", ignored=_NO_RESPONSE_POOL)
    ] = 2**31 - 1
    grpc_use_ssl: Annotated[bool, _grpc(BOOLEAN, "Use TLS.")] = False
    grpc_use_ssl_mutual: Annotated[bool, _grpc(BOOLEAN, "Use TLS, and ask for the client's certificate.")] = False
    grpc_server_cert: Annotated[str, _grpc(PATH, "File with the server's certificate (PEM).")] = ""
    grpc_server_key: Annotated[str, _grpc(PATH, "File with the server's key (PEM).")] = ""
    grpc_root_cert: Annotated[str, _grpc(PATH, "File with the certificate that signs clients (PEM).")] = ""
    grpc_infer_response_compression_level: Annotated[
        str, _grpc(choice("none", "low", "medium", "high"), "Compression of inference responses.")
    ] = "none"
    grpc_keepalive_time: Annotated[int, _grpc(COUNT, "Milliseconds of silence before a keepalive ping.")] = 7_200_000
    grpc_keepalive_timeout: Annotated[int, _grpc(COUNT, "Milliseconds to wait for the answer to a ping.")] = 20_000
    grpc_keepalive_permit_without_calls: Annotated[bool, _grpc(BOOLEAN, "Ping without calls in flight too.")] = False
    grpc_http2_max_pings_without_data: Annotated[int, _grpc(COUNT, "Pings without data between; 0 = no end.")] = 2
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int, _grpc(COUNT, "Milliseconds between pings of a client below which a ping counts as bad.")
    ] = 300_000
    grpc_http2_max_ping_strikes: Annotated[int, _grpc(COUNT, "Bad pings before the connection closes; 0 = no end.")] = 2
    grpc_max_connection_age: Annotated[int, _grpc(COUNT, "Milliseconds a connection may exist; 0 = no end.")] = 0
    grpc_max_connection_age_grace: Annotated[int, _grpc(COUNT, "Milliseconds after that age; 0 = no end.")] = 0
    grpc_restricted_protocol: Annotated[
        tuple[values.Restriction, ...],
        _grpc(
            values.GRPC_RESTRICTION,
            f"As --http-restricted-api, with metadata key {values.GRPC_HEADER_PREFIX}<header>.",
            values.combine_restrictions,
        ),
    ] = ()
    grpc_max_connections: Annotated[int, _grpc(POSITIVE, "Connections open at once; further ones are refused.")] = 4096

    allow_sagemaker: Annotated[bool, _sagemaker(BOOLEAN, "Listen for SageMaker requests.")] = False
    sagemaker_port: Annotated[int, _sagemaker(PORT, "Port for SageMaker requests.")] = 8080
    sagemaker_safe_port_range: Annotated[str, _sagemaker(TEXT, "Ports allowed for the other endpoints.")] = ""
    sagemaker_thread_count: Annotated[int, _sagemaker(POSITIVE, "Threads for SageMaker requests.")] = 8
    allow_vertex_ai: Annotated[bool, _vertex(BOOLEAN, "Listen for Vertex AI requests.")] = False
    vertex_ai_port: Annotated[int, _vertex(PORT, "Port for Vertex AI requests.")] = 8080
    vertex_ai_thread_count: Annotated[int, _vertex(POSITIVE, "Threads for Vertex AI requests.")] = 8
    vertex_ai_default_model: Annotated[str, _vertex(TEXT, "Model for requests that name none.")] = ""

    allow_metrics: Annotated[bool, _metrics(BOOLEAN, "Serve Prometheus metrics.")] = True
    allow_gpu_metrics: Annotated[bool, _metrics(BOOLEAN, "Serve metrics of the GPU.")] = True
    allow_cpu_metrics: Annotated[bool, _metrics(BOOLEAN, "Serve metrics of the CPU and the memory.")] = True
    metrics_address: Annotated[str, _metrics(FILLED, "Address to listen on. Not given: --http-address.")] = ""
    metrics_port: Annotated[int, _metrics(PORT, "Port to listen on; 0 = any free one.", door="allow_metrics")] = 8002
    metrics_interval_ms: Annotated[int, _metrics(POSITIVE, "Age in milliseconds a GPU or CPU reading may have.")] = 2000
    metrics_config: Annotated[
        tuple[str, ...],
        _metrics(
            values.METRICS_SETTING,
            "counter_latencies, summary_latencies and histogram_latencies (true or false) choose the latency metrics; "
            "summary_quantiles=<quantile>:<error>,... those of the summaries.",
            tuple,
        ),
    ] = ()
    metrics_use_ssl: Annotated[bool, _metrics(BOOLEAN, "Use TLS, with the files of HTTP.")] = False

    trace_config: Annotated[
        values.TraceConfig,
        _trace(
            values.TRACE_SETTING,
            "rate=<n>, level=OFF|TIMESTAMPS|TENSORS, count=<n>, mode=triton, triton,file=<path>, "
            "triton,log-frequency=<n>. Mode opentelemetry is accepted and ignored: traces go to files only.",
            values.combine_trace,
        ),
    ] = values.NO_TRACE

    backend_directory: Annotated[
        str,
        _backend(
            TEXT,
            "Directory of backend packs and of Triton's python-based backends (docs/packs.md). Shared libraries in it "
            "are not read.",
        ),
    ] = "/opt/tritonserver/backends"
    backend_config: Annotated[
        tuple[values.BackendSetting, ...],
        _backend(values.BACKEND_SETTING, "Setting of one backend, or of all (as default-max-batch-size=<n>).", tuple),
    ] = ()
    repoagent_directory: Annotated[str, _agent(TEXT, "Directory of repository agents.", ignored=_NO_LIBRARIES)] = (
        "/opt/tritonserver/repoagents"
    )

    cache_config: Annotated[
        int | None,
        _cache(values.CACHE_SETTING, "local,size=<bytes> turns the response cache on.", values.combine_cache),
    ] = None
    cache_directory: Annotated[str, _cache(TEXT, "Directory of caches.", ignored="the local cache is built in")] = (
        "/opt/tritonserver/caches"
    )

    rate_limit: Annotated[
        str, _rate(choice("off", "execution_count"), "Whether instance groups' rate_limiter settings count.")
    ] = "off"
    rate_limit_resource: Annotated[
        tuple[values.RateLimitResource, ...],
        _rate(values.RATE_LIMIT_RESOURCE, "Resource that instances share. Not given: the largest request.", tuple),
    ] = ()

    pinned_memory_pool_byte_size: Annotated[
        int, _memory(COUNT, "Bytes of tensor memory that workers may register with GPUs, for faster copies.")
    ] = 2**28
    cuda_memory_pool_byte_size: Annotated[
        tuple[str, ...],
        _memory(TEXT, "<device>:<bytes> of CUDA memory.", tuple, ignored="backends acquire device memory at load"),
    ] = ()
    cuda_virtual_address_size: Annotated[
        tuple[str, ...], _memory(TEXT, "<device>:<bytes> for growable state.", tuple, ignored="states do not grow")
    ] = ()
    min_supported_compute_capability: Annotated[
        float, _memory(number(0), "CUDA compute capability below which a GPU is not used.")
    ] = LEAST_COMPUTE_CAPABILITY
    buffer_manager_thread_count: Annotated[
        int, _memory(COUNT, "Threads for copies.", ignored="tensors are not copied by threads")
    ] = 0
    host_policy: Annotated[
        tuple[str, ...], _memory(TEXT, "<policy>,<setting>=<value>", tuple, ignored="an edge device has one NUMA node")
    ] = ()
    model_load_gpu_limit: Annotated[
        tuple[tuple[int, float], ...],
        _memory(values.GPU_SHARE, "Share of a GPU's memory that may be in use when a model is loaded on it.", tuple),
    ] = ()

    allow_client_shm: Annotated[
        bool, _shm(BOOLEAN, "Let clients register shared memory regions and use them in requests.")
    ] = False

    token_file: Annotated[
        str, _access(PATH, "File of bearer tokens and their roles, written by `edge-serve token`.")
    ] = ""
    certificate_role_file: Annotated[str, _access(PATH, "File of certificates' roles, by subject or fingerprint.")] = ""
    anonymous_role: Annotated[
        str,
        _access(
            choice("none", "health", "read", "infer"),
            "Role of clients without a known token or certificate, if there is a file of either.",
        ),
    ] = "none"
    admin_access: Annotated[
        str,
        _access(
            choice("loopback", "anywhere", "socket"),
            "Where loading and unloading, settings and registering shared memory may be asked for: this device; "
            "anywhere; --admin-socket only, which is the one to choose behind a reverse proxy on this device.",
        ),
    ] = "loopback"
    admin_socket: Annotated[
        str, _access(FILLED, "UNIX socket for administration: the whole HTTP protocol, without tokens (mode 0660).")
    ] = ""
    admin_socket_group: Annotated[str, _access(NAME, "Group that may use --admin-socket.")] = ""

    max_connections_per_address: Annotated[int, _limits(COUNT, "Connections per address, all ports; 0 = no limit.")] = 0
    max_requests_in_flight: Annotated[int, _limits(COUNT, "Requests in flight; more get 503. 0 = no limit.")] = 16_384
    request_memory_bytes: Annotated[int, _limits(COUNT, "Bytes of all large bodies; 0 = a quarter of the memory.")] = 0
    request_memory_wait_secs: Annotated[float, _limits(number(0.1), "Seconds to wait for memory before a 503.")] = 30.0
    min_body_bytes_per_sec: Annotated[
        int, _limits(COUNT, "Speed below which an upload or a response is aborted while others lack memory; 0 = none.")
    ] = 65_536
    tls_handshake_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds that a TLS handshake may take.")] = 10.0
    http_head_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds to receive a whole request head.")] = 20.0
    http_body_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds for each further 1 KiB of a body.")] = 30.0
    http_write_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds that a client may read nothing.")] = 60.0
    http_max_pipelined: Annotated[int, _limits(POSITIVE, "Unanswered requests per connection; more are not read.")] = 16

    notes: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def named_models(self) -> tuple[str, ...] | None:
        """The models of `--load-model` that the start loads; None = all of the repositories."""
        only_named = self.model_control_mode == "explicit" and "*" not in self.load_model
        return self.load_model if only_named else None

    def backend_settings(self, backend: str) -> dict[str, str]:
        """See `settings_of`."""
        return values.settings_of(backend, self.backend_config)


def _table() -> dict[str, Setting]:
    annotations = ServerConfig.__annotations__
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in annotations.items()}
    return {name: found[0] for name, found in metadata.items() if found}


#: every setting by name, in the order of `--help`
SETTINGS: dict[str, Setting] = _table()

#: other spellings by flag
ALIASES: dict[str, Alias] = {
    "--model-store": Alias("model_repository", deprecated=False),
    "--strict-model-config": Alias("disable_auto_complete_config"),
    "--response-cache-byte-size": Alias("cache_config", "local,size={}", exclusive=True),
    "--trace-file": Alias("trace_config", "triton,file={}"),
    "--trace-level": Alias("trace_config", "level={}"),
    "--trace-rate": Alias("trace_config", "rate={}"),
    "--trace-count": Alias("trace_config", "count={}"),
    "--trace-log-frequency": Alias("trace_config", "triton,log-frequency={}"),
}


def parse_argv(argv: Sequence[str], environ: Mapping[str, str], program: Program = EDGE_SERVE) -> ServerConfig:
    """Parse the settings in `argv` (without the program's name) and `environ`, with the defaults of `program`.

    Raises:
        BadSetting: an unknown option, a bad value, or settings that contradict each other. The program then prints the
            message (and `usage()` if it says so) and exits with status 1.
    """
    found, notes = read_settings(SETTINGS, ALIASES, argv, environ)
    notes += values.unread_backend_settings(found.get("backend_config", ()))
    config = ServerConfig(**{**program.defaults, **found}, notes=tuple(notes), given=frozenset(found))
    if not config.metrics_address:
        config = replace(config, metrics_address=_address_of_metrics(config, program))
    if config.trace_config.mode == values.OPENTELEMETRY:
        config = replace(config, trace_config=config.trace_config.without_export(), notes=(*config.notes, _NO_EXPORT))
    _check_repository(config, environ)
    if conflict := address_conflict(config):
        raise BadSetting(conflict)
    return config


def backend_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of packs for commands beside the server."""
    return environ.get("EDGE_SERVE_BACKEND_DIRECTORY") or str(defaults()["backend_directory"])


def backend_settings(environ: Mapping[str, str]) -> tuple[values.BackendSetting, ...]:
    """Return the settings of backends for commands beside the server.

    Raises:
        BadSetting: the variable cannot be read.
    """
    name = "backend_config"
    found, _ = read_settings({name: SETTINGS[name]}, {}, (), environ)
    return tuple(found.get(name, ()))


def _address_of_metrics(config: ServerConfig, program: Program) -> str:
    """Return the address of HTTP, as in Triton; that of a closed door may be none (`--http-address=-47`)."""
    usable = config.allow_http or not config.http_address.startswith("-")
    return config.http_address if usable else defaults(program)["http_address"]


def _check_repository(config: ServerConfig, environ: Mapping[str, str]) -> None:
    if not config.model_repository:
        text = "--model-repository must be specified: the directory that holds the models"
        if "INVOCATION_ID" in environ:  # systemd sets it (systemd.exec(5))
            text += (
                "; systemd reads EDGE_SERVE_MODEL_REPOSITORY from /usr/lib/edge-serve/edge-serve.conf, "
                "/etc/edge-serve/edge-serve.conf and /etc/edge-serve/conf.d/*.conf: are they readable and quoted "
                "right? `edge-serve check-config` says where"
            )
        raise BadSetting(text)
    if config.load_model and config.model_control_mode != "explicit":
        raise BadSetting("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in config.load_model and set(config.load_model) != {"*"}:
        raise BadSetting("Wildcard model name '*' must be the ONLY startup model if specified at all.")


def address_conflict(config: ServerConfig, *, resolve: bool = False) -> str:
    """Return why two services cannot share a port, as port 0 and addresses that do not overlap can; "" = none does.

    Args:
        resolve: see `overlap`.
    """
    services = [
        ("HTTP", config.allow_http, config.http_address, config.http_port),
        ("GRPC", config.allow_grpc, config.grpc_address, config.grpc_port),
        ("metrics", config.allow_metrics, config.metrics_address, config.metrics_port),
    ]
    open_services = [(service, address, port) for service, allowed, address, port in services if allowed and port]
    for (other, its_address, its_port), (service, address, port) in combinations(open_services, 2):
        if port == its_port and address == its_address:
            both = f"{other} requests and {service} requests"
            return f"The server cannot listen to {both} at the same address and port {address}:{port}"
        if port == its_port and overlap(address, its_address, resolve=resolve):
            return (
                f"The server cannot listen to {other} requests at {its_address}:{port} and {service} requests at "
                f"{address}:{port}, because one address includes the other: choose another port for one of them"
            )
    return ""


def defaults(program: Program = EDGE_SERVE) -> dict[str, str]:
    """Return the default of each setting, as it would be written; "" where there is none."""
    own = {field.name: field.default for field in fields(ServerConfig) if field.name in SETTINGS}
    return {name: _written(value) for name, value in {**own, **program.defaults}.items()}


def _written(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None | ():
            return ""
        case values.TraceConfig():
            return f"rate={value.rate}, level={','.join(value.level) or 'OFF'}, count={value.count}, mode={value.mode}"
        case float():
            return f"{value:g}"
    return str(value)


def usage(program: Program = EDGE_SERVE) -> str:
    """Return the text of `--help`."""
    spellings = "".join(
        f"  {flag} = --{alias.name.replace('_', '-')}{'=' + alias.form.format('<value>') if alias.form != '{}' else ''}"
        f"{' (deprecated)' if alias.deprecated else ''}\n"
        for flag, alias in ALIASES.items()
    )
    return (
        f"Usage: {program.name} --model-repository=<path> [options]\n\n"
        "Options are written --name=value or --name value. Each can be given in the environment instead,\n"
        "as EDGE_SERVE_<NAME> (EDGE_SERVE_HTTP_PORT=8000); several values are separated by ';' there.\n\n"
        f"{help_text(SETTINGS, defaults(program))}\nOther spellings:\n{spellings}"
    )
