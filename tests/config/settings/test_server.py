"""config/settings/server.py and what it reads argv with: Triton's syntax, precedence, and refusals."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from deploy.settings import page
from edge_serve.config.settings.server import ALIASES, SETTINGS, ServerConfig, defaults, parse_argv, usage
from edge_serve.config.settings.server_values import (
    BackendSetting,
    RateLimitResource,
    Restriction,
    TraceConfig,
)
from edge_serve.config.settings.table import BadSetting, flag_of, variable_of

REPOSITORY = "--model-repository=/models"


def _parse(*argv: str, **environ: str) -> ServerConfig:
    return parse_argv([REPOSITORY, *argv], environ)


def _refusal(*argv: str, **environ: str) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        _parse(*argv, **environ)
    assert "\n" not in caught.value.message
    return caught.value


def test_defaults() -> None:
    config = _parse()

    assert config.model_repository == ("/models",)
    assert (config.http_address, config.http_port, config.metrics_port) == ("127.0.0.1", 8000, 8002)
    assert (config.id, config.exit_timeout_secs, config.model_control_mode) == ("triton", 30, "none")
    assert (config.http_max_input_size, config.allow_client_shm) == (67108864, False)
    assert config.trace_config == TraceConfig((), 1000, -1, 0, "", "triton")
    assert config.notes == ()


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--http-port=9000"], "http_port", 9000),
        (["--http-port", "9000"], "http_port", 9000),
        (["--http-port=1", "--http-port=2"], "http_port", 2),
        (["--strict-readiness=false"], "strict_readiness", False),
        (["--strict-readiness", "OFF"], "strict_readiness", False),
        (["--allow-client-shm=1"], "allow_client_shm", True),
        (["--disable-auto-complete-config"], "disable_auto_complete_config", True),
        (["--disable-auto-complete-config=false"], "disable_auto_complete_config", False),
        (["--model-control-mode=EXPLICIT"], "model_control_mode", "explicit"),
        (["--log-format=iso8601"], "log_format", "ISO8601"),
        (["--id="], "id", ""),
        (["--id=a=b"], "id", "a=b"),
        (["--model-repository", "/b"], "model_repository", ("/models", "/b")),
        (["--model-store=/b"], "model_repository", ("/models", "/b")),
        (["--required-model=a", "--required-model=b"], "required_model", ("a", "b")),
        (["--worker-heartbeat-timeout-secs=1.5"], "worker_heartbeat_timeout_secs", 1.5),
        (["--metrics-config=counter_latencies=false"], "metrics_config", ("counter_latencies=false",)),
        (["--backend-config=python,shm-size=1"], "backend_config", (BackendSetting("python", "shm-size", "1"),)),
        (["--backend-config=a=b=c,d"], "backend_config", (BackendSetting("", "a", "b=c,d"),)),
        (["--rate-limit-resource=R:4"], "rate_limit_resource", (RateLimitResource("R", 4),)),
        (["--rate-limit-resource=R:4:1"], "rate_limit_resource", (RateLimitResource("R", 4, 1),)),
        (["--cache-config=local,size=100"], "cache_config", 100),
        (["--response-cache-byte-size=100"], "cache_config", 100),
        (["--model-load-gpu-limit=0:0.5"], "model_load_gpu_limit", ((0, 0.5),)),
        (
            ["--http-restricted-api=metadata,health:Key=a=b"],
            "http_restricted_api",
            (Restriction(("metadata", "health"), "Key", "a=b"),),
        ),
        (
            ["--grpc-restricted-protocol=health:k=v"],
            "grpc_restricted_protocol",
            (Restriction(("health",), "triton-grpc-protocol-k", "v"),),
        ),
    ],
)
def test_values(argv: list[str], name: str, value: object) -> None:
    assert getattr(_parse(*argv), name) == value


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--trace-config=level=TIMESTAMPS"], TraceConfig(level=("TIMESTAMPS",))),
        (
            ["--trace-config=level=TENSORS", "--trace-config=level=timestamps"],
            TraceConfig(level=("TENSORS", "TIMESTAMPS")),
        ),
        (["--trace-config=level=TIMESTAMPS", "--trace-config=level=OFF"], TraceConfig()),
        (
            ["--trace-config=rate=5", "--trace-config=count=7", "--trace-config", "triton,file=/t,x"],
            TraceConfig(rate=5, count=7, file="/t,x"),
        ),
        (["--trace-config=triton,log-frequency=3"], TraceConfig(log_frequency=3)),
        (
            ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=x", "--trace-config=level=TENSORS"],
            TraceConfig(),
        ),
        (["--trace-rate=3", "--trace-config=rate=9"], TraceConfig(rate=9)),
        (["--trace-config=rate=9", "--trace-rate=3"], TraceConfig(rate=9)),
        (
            ["--trace-file=/t", "--trace-level=max", "--trace-count=1", "--trace-log-frequency=2"],
            TraceConfig(level=("TIMESTAMPS",), count=1, log_frequency=2, file="/t"),
        ),
    ],
)
def test_trace(argv: list[str], found: TraceConfig) -> None:
    assert _parse(*argv).trace_config == found


def test_header_patterns_match_in_any_case() -> None:
    for text in ("x-fwd-.*", "(?i)x-fwd-.*"):
        pattern = _parse(f"--http-header-forward-pattern={text}").http_header_forward_pattern
        assert pattern
        assert pattern.fullmatch("X-Fwd-A")


def test_a_header_pattern_may_ask_for_exact_case() -> None:
    pattern = _parse("--grpc-header-forward-pattern=(?-i)x-fwd-.*").grpc_header_forward_pattern
    assert pattern
    assert pattern.fullmatch("x-fwd-a")
    assert not pattern.fullmatch("X-Fwd-A")


def test_metrics_follow_the_http_address() -> None:
    assert _parse("--http-address=0.0.0.0").metrics_address == "0.0.0.0"
    assert _parse("--http-address=0.0.0.0", "--metrics-address=::1").metrics_address == "::1"


def test_settings_of_a_backend_go_before_those_of_all() -> None:
    argv = ("python,a=1", "a=2", "b=3", "onnxruntime,b=4")
    config = _parse(*(f"--backend-config={setting}" for setting in argv))

    assert config.backend_settings("python") == {"a": "1", "b": "3"}
    assert config.backend_settings("onnxruntime") == {"a": "2", "b": "4"}


def test_argv_before_environment_before_default() -> None:
    environ = {"EDGE_SERVE_HTTP_PORT": "9000", "EDGE_SERVE_REQUIRED_MODEL": "a;b", "EDGE_SERVE_LOG_INFO": "false"}
    config = _parse("--http-port=9001", **environ)

    assert (config.http_port, config.required_model, config.log_info) == (9001, ("a", "b"), False)
    assert _parse("--required-model=c", **environ).required_model == ("c",)
    assert parse_argv([], {"EDGE_SERVE_MODEL_REPOSITORY": "/a;/b"}).model_repository == ("/a", "/b")


def test_environment_of_others_is_none_of_our_business() -> None:
    assert _parse(HTTP_PORT="1", EDGESERVE_HTTP_PORT="2", EDGE_SERVE_CHECK_MADE="3") == _parse()


def test_unknown_variables_are_reported_with_the_nearest_name() -> None:
    config = _parse(EDGE_SERVE_HTPP_PORT="9000", EDGE_SERVE_QQQ="1", EDGE_SERVE_MEMORY_MAX="1")

    assert config.http_port == 8000
    assert config.notes == (
        "environment variable EDGE_SERVE_HTPP_PORT is unknown and has no effect: did you mean EDGE_SERVE_HTTP_PORT?",
        "environment variable EDGE_SERVE_MEMORY_MAX is unknown and has no effect: it is a parameter of a model's "
        "config.pbtxt",
        "environment variable EDGE_SERVE_QQQ is unknown and has no effect: correct or remove it",
    )


def test_many_unknown_variables_are_counted() -> None:
    notes = _parse(**{f"EDGE_SERVE_Q{number}": "" for number in range(50)}).notes

    assert len(notes) == 21
    assert notes[-1] == "30 more environment variables EDGE_SERVE_* are unknown"


@pytest.mark.parametrize("argv", [["--log-verbose=true"], ["--log-verbose", "TRUE"], ["--log-verbose=1"]])
def test_log_verbose_takes_a_boolean_as_triton_does(argv: list[str]) -> None:
    assert _parse(*argv).log_verbose == 1
    assert _parse("--log-verbose=false").log_verbose == 0


@pytest.mark.parametrize("door", ["http", "grpc", "metrics"])
@pytest.mark.parametrize("port", ["-47", "70000"])
def test_the_port_of_a_closed_door_is_not_checked(door: str, port: str) -> None:
    config = _parse(f"--{door}-port", port, f"--allow-{door}", "0")

    assert getattr(config, f"{door}_port") == getattr(_parse(), f"{door}_port")
    (note,) = config.notes
    assert note.startswith(f'Bad option "--{door}-port": found {port}')
    assert note.endswith(f"it has no effect, because --allow-{door}=false")
    assert f"found {port}" in _refusal(f"--{door}-port={port}").message
    assert "found many" in _refusal(f"--{door}-port=many", f"--allow-{door}=0").message.replace("'", "")


def test_metrics_do_not_take_an_address_that_is_none() -> None:
    config = _parse("--http-address", "-47", "--allow-http", "0")

    assert config.metrics_address == "127.0.0.1"
    assert _parse("--http-address", "0.0.0.0", "--allow-http", "0").metrics_address == "0.0.0.0"


def test_opentelemetry_tracing_logs_that_traces_are_lost() -> None:
    (note,) = _parse("--trace-config=mode=opentelemetry").notes

    assert "mode=opentelemetry is accepted and ignored: edge-serve exports no traces" in note
    assert "--trace-config=triton,file=<path>" in note
    assert _parse("--trace-config=opentelemetry,url=x").notes == ()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--http-port=abc"], "Bad option \"--http-port\": found 'abc', expected an integer"),
        (["--http-port=65536"], 'Bad option "--http-port": found 65536, expected at most 65535'),
        (["--http-port=1_0"], "expected an integer"),
        (["--http-max-input-size=0"], "expected at least 1"),
        (["--strict-readiness=maybe"], "found 'maybe', expected true or false"),
        (["--model-control-mode=sometimes"], "found 'sometimes', expected one of none, poll, explicit"),
        (["--worker-heartbeat-timeout-secs=nan"], "expected at least 0.1"),
        (["--worker-heartbeat-timeout-secs=x"], "expected a number"),
        (["--model-config-name=a b"], "expected a name"),
        (["--http-header-forward-pattern=("], "expected a regular expression"),
        (["--http-header-forward-pattern=a{99999999999}"], "expected a regular expression: the repetition number"),
        (["--http-header-forward-pattern=" + "(" * 5000 + ")" * 5000], "expected a regular expression: maximum"),
        (["--http-restricted-api=nope:k=v"], "unknown restricted api 'nope', expected one of health, metadata"),
        (["--http-restricted-api=health"], "expected <apis>:<header>=<value>"),
        (
            ["--http-restricted-api=health:k=v", "--http-restricted-api=metadata,health:q=w"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (["--cache-config=nope,size=1000000"], "unknown cache 'nope', expected local"),
        (["--cache-config=size=1000000"], "No cache specified"),
        (["--cache-config=local,colour=red"], "unknown setting 'colour' of cache 'local'"),
        (["--cache-config=local,size=big"], "cache size: found 'big'"),
        (
            ["--response-cache-byte-size=5", "--cache-config=local,size=3"],
            "Incompatible flags --response-cache-byte-size and --cache-config both provided",
        ),
        (["--backend-config=,a=b"], "expected [<backend>,]<setting>=<value>"),
        (["--backend-config=a"], "expected [<backend>,]<setting>=<value>"),
        (["--metrics-config=colour=red"], "with one of counter_latencies"),
        (["--rate-limit-resource=R"], "expected <resource_name>:<count>"),
        (["--rate-limit-resource=R:1:2:3"], "expected <resource_name>:<count>"),
        (["--rate-limit-resource=R:x"], "expected <resource_name>:<count>"),
        (["--model-load-gpu-limit=0:2"], "expected <device_id>:<fraction>"),
        (["--trace-config=rate"], "expected [<mode>,]<setting>=<value>"),
        (["--trace-config=rate=x"], "trace rate: found 'x', expected an integer of at least 0"),
        (["--trace-config=count=-2"], "at least -1"),
        (["--trace-config=level=LOUD"], "trace level: found 'LOUD'"),
        (["--trace-config=colour=red"], "unknown trace setting 'colour'"),
        (["--trace-config=zipkin,file=x"], "unknown trace mode 'zipkin'"),
        (["--load-model=a"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            ["--http-port=8002"],
            "The server cannot listen to HTTP requests and metrics requests at the same address and port "
            "127.0.0.1:8002",
        ),
        (
            ["--http-address=0.0.0.0", "--http-port=8055", "--metrics-address=127.0.0.1", "--metrics-port=8055"],
            "The server cannot listen to HTTP requests at 0.0.0.0:8055 and metrics requests at 127.0.0.1:8055, "
            "because one address includes the other: choose another port for one of them",
        ),
        (["--http-address=::1", "--grpc-port=8000", "--grpc-address=::"], "GRPC requests at :::8000, because one"),
        (["--http-address=0", "--grpc-port=8000", "--grpc-address=127.0.0.1"], "at 0:8000 and GRPC requests at 127.0"),
        (["--http-address=127.1", "--grpc-port=8000", "--grpc-address=127.0.0.1"], "at 127.1:8000 and GRPC requests"),
    ],
)
def test_bad_values_are_one_clear_line(argv: list[str], said: str) -> None:
    error = _refusal(*argv)

    assert said in error.message
    assert not error.show_usage


@pytest.mark.parametrize(
    "addresses",
    [
        ("0.0.0.0", "ip6-localhost"),  # which addresses it has, only the resolver of the machine knows
        ("0.0.0.0", "::1"),
        ("0:0:0:0:0:0:0:0", "127.0.0.1"),  # the spelling `::` alone accepts IPv4 as well
        ("127.0.0.1", "127.0.0.2"),
    ],
)
def test_addresses_that_need_not_overlap_may_share_a_port(addresses: tuple[str, str]) -> None:
    http, metrics = addresses
    config = _parse(f"--http-address={http}", f"--metrics-address={metrics}", "--metrics-port=8000")

    assert (config.http_address, config.metrics_address, config.metrics_port) == (http, metrics, 8000)


def test_the_beginning_of_one_option_is_enough() -> None:
    config = _parse("--log-warn=false", "--model-control=explicit", "--strict-model=false")

    assert (config.log_warning, config.model_control_mode) == (False, "explicit")


def test_bad_environment_names_its_variable() -> None:
    assert _refusal(EDGE_SERVE_HTTP_PORT="abc").message == (
        "Bad environment variable \"EDGE_SERVE_HTTP_PORT\": found 'abc', expected an integer"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--htp-port=1"], "unrecognized option '--htp-port', did you mean '--http-port'?"),
        (["--http_port=1"], "unrecognized option '--http_port', did you mean '--http-port'?"),
        (["--zzz"], "unrecognized option '--zzz'"),
        (["-v"], "Unexpected argument: -v"),
        (["models"], "Unexpected argument: models"),
        (["/"], "Unexpected argument: /; it is a directory: did you mean '--model-repository=/'?"),
        (["--"], "Unexpected argument: --"),
        (["--http-port"], "option '--http-port' requires an argument"),
        (["--strict-model-config"], "option '--strict-model-config' requires an argument"),
        (["--notes=x"], "unrecognized option '--notes'"),
        (["--http-p"], "option '--http-port' requires an argument"),
        (["--log=x"], "unrecognized option '--log'"),
    ],
)
def test_unknown_options_ask_for_the_usage(argv: list[str], said: str) -> None:
    error = _refusal(*argv)

    assert error.message.startswith(said)
    assert error.show_usage


def test_repository_is_required() -> None:
    with pytest.raises(BadSetting, match="--model-repository must be specified") as caught:
        parse_argv([], {})
    assert "/etc" not in caught.value.message


def test_under_systemd_a_missing_repository_names_the_files_that_should_set_it() -> None:
    with pytest.raises(BadSetting, match=r"/etc/edge-serve/edge-serve\.conf .* readable and quoted right\?"):
        parse_argv([], {"INVOCATION_ID": "0123"})


def test_one_port_is_enough_for_each() -> None:
    assert _parse("--http-port=0", "--metrics-port=0").metrics_port == 0
    assert _parse("--http-port=8002", "--allow-metrics=false").http_port == 8002
    assert _parse("--http-port=8002", "--metrics-address=::1").http_port == 8002


def test_ignored_and_deprecated_settings_are_reported() -> None:
    config = _parse("--http-thread-count=4", "--strict-model-config=true", "--allow-sagemaker=true")

    assert config.disable_auto_complete_config
    assert config.notes == (
        "--strict-model-config is deprecated, use --disable-auto-complete-config=true",
        "--http-thread-count is accepted and ignored: one event loop serves all connections",
        "--allow-sagemaker is accepted and ignored: edge-serve has no SageMaker endpoint",
    )


def test_ignored_settings_are_still_checked() -> None:
    assert "expected an integer" in _refusal("--http-thread-count=many").message


#: every option of Triton's server (src/command_line_parser.cc)
TRITON_OPTIONS = """
id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-store model-repository
exit-on-error disable-auto-complete-config strict-readiness model-control-mode repository-poll-secs load-model
model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access allow-http
http-address http-port reuse-http-port http-header-forward-pattern http-thread-count http-max-input-size
http-restricted-api allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern
grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual
grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time
grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
grpc-max-connection-age-grace grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range
sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config
cache-config cache-directory rate-limit rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size
cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count host-policy
model-load-gpu-limit allow-client-shm backend-directory backend-config repoagent-directory strict-model-config
response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency
"""


@pytest.mark.parametrize("option", TRITON_OPTIONS.split())
def test_every_option_of_triton_is_known(option: str) -> None:
    assert f"--{option}" in [flag_of(name) for name in SETTINGS] + list(ALIASES)


def test_every_field_is_a_setting() -> None:
    assert {field.name for field in fields(ServerConfig)} == {*SETTINGS, "notes", "given"}


@pytest.mark.parametrize("name", [name for name, text in defaults().items() if text and name != "trace_config"])
def test_a_default_can_be_written(name: str) -> None:
    argv = [f"{flag_of(name)}={defaults()[name]}"]

    assert getattr(_parse(*argv), name) == getattr(_parse(), name)


def test_help_shows_every_setting_in_100_columns() -> None:
    text = usage()

    assert max(map(len, text.splitlines())) <= 100
    for name in SETTINGS:
        assert re.search(rf"^  {flag_of(name)}( <.*>)?$", text, re.MULTILINE)
    assert "--strict-model-config = --disable-auto-complete-config (deprecated)" in text


def test_docs_page_shows_every_setting() -> None:
    text = page()

    for name in SETTINGS:
        assert f"`{flag_of(name)}`" in text
        assert f"`{variable_of(name)}`" in text
