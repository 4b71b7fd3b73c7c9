"""The command `tritonserver`: Triton's defaults, and the command lines that integrators run.

tests/server/test_tritonserver.py starts servers with them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_serve.config.settings.programs import EDGE_SERVE, TRITONSERVER, program_of
from edge_serve.config.settings.server import SETTINGS, ServerConfig, defaults, parse_argv, usage
from edge_serve.config.settings.table import BadSetting, flag_of

KEEPALIVE = (
    "--grpc-keepalive-time=10000 --grpc-keepalive-timeout=10000 --grpc-keepalive-permit-without-calls=True "
    "--grpc-http2-max-pings-without-data=0 --grpc-http2-min-recv-ping-interval-without-data=5000 "
    "--grpc-http2-max-ping-strikes=0 --grpc-max-connection-age=10000 --grpc-max-connection-age-grace=10000"
)
#: who runs it -> the arguments; the name of the program is `tritonserver` in all of them
COMMAND_LINES = {
    "kserve": "--model-store=/mnt/models --grpc-port=9000 --http-port=8080 --allow-grpc=true --allow-http=true",
    "modelmesh": "--model-repository=/mnt/models --model-control-mode=explicit --strict-model-config=false "
    f"--strict-readiness=false --allow-http=true --allow-sagemaker=false {KEEPALIVE}",
    "helm": "--model-store=/mnt/models --model-control-mode=poll --repository-poll-secs=5",
    "deployment": "--model-repository=/mnt/models --disable-auto-complete-config --strict-model-config=false",
    "docker": "--model-repository=/mnt/models",
    "model_analyzer": "--model-repository /mnt/models --model-control-mode explicit --http-port 8000 --grpc-port 8001 "
    "--metrics-port 8002 --metrics-interval-ms 1000",
}


def _parse(arguments: str, **environ: str) -> ServerConfig:
    return parse_argv(arguments.split(), environ, TRITONSERVER)


@pytest.mark.parametrize("arguments", COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_command_lines_of_integrators_are_understood(arguments: str) -> None:
    config = _parse(arguments)

    assert config.model_repository == ("/mnt/models",)
    assert {config.http_address, config.grpc_address, config.metrics_address} == {"0.0.0.0"}
    assert [note for note in config.notes if not note.startswith("--strict-model-config is deprecated")] == []


def test_kserve_gets_its_ports_and_modelmesh_its_keepalive() -> None:
    assert (_parse(COMMAND_LINES["kserve"]).grpc_port, _parse(COMMAND_LINES["kserve"]).http_port) == (9000, 8080)
    mesh = _parse(COMMAND_LINES["modelmesh"])
    assert (mesh.grpc_keepalive_time, mesh.grpc_keepalive_permit_without_calls) == (10_000, True)
    assert (mesh.disable_auto_complete_config, mesh.strict_readiness) == (False, False)
    assert _parse(COMMAND_LINES["deployment"]).disable_auto_complete_config


def test_only_the_addresses_differ_between_the_two_commands() -> None:
    ours, tritons = defaults(EDGE_SERVE), defaults(TRITONSERVER)

    assert {name: tritons[name] for name in ours if tritons[name] != ours[name]} == {
        "http_address": "0.0.0.0",
        "grpc_address": "0.0.0.0",
    }
    assert (tritons["model_control_mode"], tritons["exit_on_error"], tritons["strict_readiness"]) == (
        "none",
        "true",
        "true",
    )


def test_given_settings_override_the_defaults_of_the_program() -> None:
    config = _parse("--model-repository=/m --http-address=127.0.0.1", EDGE_SERVE_GRPC_ADDRESS="::1")

    assert (config.http_address, config.grpc_address, config.metrics_address) == ("127.0.0.1", "::1", "127.0.0.1")
    assert config.given == {"model_repository", "http_address", "grpc_address"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/bin/tritonserver", "tritonserver"),
        ("tritonserver", "tritonserver"),
        ("/usr/bin/edge-serve", "edge-serve"),
        ("/opt/tritonserver/edge_serve/__main__.py", "edge-serve"),
        ("", "edge-serve"),
    ],
)
def test_the_name_of_the_command_chooses(path: str, name: str) -> None:
    assert program_of(path).name == name


def test_help_has_the_name_and_the_defaults_of_the_command() -> None:
    text = usage(TRITONSERVER)

    assert text.startswith("Usage: tritonserver --model-repository=<path> [options]")
    assert text.count("Default: 0.0.0.0.") == 2
    assert "Default: 127.0.0.1." not in text


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--allow-sagemaker=true", "no SageMaker endpoint"),
        ("--allow-vertex-ai=true", "no Vertex AI endpoint"),
        ("--sagemaker-port=8081", "no SageMaker endpoint"),
        ("--cuda-memory-pool-byte-size=0:67108864", "backends acquire device memory at load"),
        ("--grpc-infer-allocation-pool-size=1", "no such pool"),
        ("--host-policy=gpu_0,numa-node=0", "one NUMA node"),
        ("--repoagent-directory=/x", "not shared libraries"),
        ("--cache-directory=/x", "built in"),
        ("--backend-config=python,shm-default-byte-size=16777216", "backend 'python' reads no settings"),
        ("--backend-config=onnxruntime,colour=red", "backend 'onnxruntime' reads default-max-batch-size, enable-"),
        ("--trace-config=mode=opentelemetry", "exports no traces"),
    ],
)
def test_a_flag_without_effect_is_accepted_with_one_line(argument: str, reason: str) -> None:
    (note,) = _parse(f"--model-repository=/m {argument}").notes

    assert "is accepted and ignored" in note
    assert reason in note


@pytest.mark.parametrize(
    "argument",
    [
        "--allow-sagemaker=false",
        "--allow-vertex-ai=0",
        "--enable-peer-access=false",
        "--backend-config=onnxruntime,default-max-batch-size=8",
        "--backend-config=tensorrt,library=tensorrt_lean",
        "--backend-config=mine,key=value",
        "--backend-config=default-max-batch-size=8",
    ],
)
def test_a_setting_with_the_requested_effect_gets_no_note(argument: str) -> None:
    assert _parse(f"--model-repository=/m {argument}").notes == ()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("s3://bucket/models", "aws s3 sync s3://bucket/models models"),
        ("s3://https://minio:9000/bucket", "aws s3 sync"),
        ("gs://bucket/models", "gcloud storage rsync --recursive gs://bucket/models models"),
        ("as://account/container/models", "rclone copy"),
    ],
)
def test_cloud_storage_is_refused_with_what_to_do(url: str, advice: str) -> None:
    with pytest.raises(BadSetting) as caught:
        _parse(f"--model-repository={url}")
    message = caught.value.message
    assert message.startswith(f"Bad option \"--model-repository\": found '{url}', expected a directory of this device")
    assert advice in message
    assert "then give --model-repository=models" in message


def test_a_directory_may_have_any_other_name() -> None:
    assert _parse("--model-repository=s3:/models").model_repository == ("s3:/models",)


def test_a_repository_whose_name_is_not_utf_8_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"found '/srv/caf\\udce9', expected a path in UTF-8: rename the directory"):
        _parse("--model-repository=/srv/caf\udce9")


def test_the_page_about_migrating_names_every_flag_without_effect() -> None:
    page = (Path(__file__).parents[3] / "docs/migrating_from_triton.md").read_text()
    table = page.partition("## Know which flags have no effect")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(--[a-z0-9-]+)`", table))

    assert named == {flag_of(name) for name, setting in SETTINGS.items() if setting.ignored}
