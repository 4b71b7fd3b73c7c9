"""Triton's own load generator against a server: every way it can ask is answered, and nothing fails.

Slow because it may have to be fetched (benchmarks/README.md says what it needs); skipped where it cannot be had.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks import peer
from tests.server.running import ADD_SUB_CONFIG, Running, python_model, running

REQUESTS = 400

DECOUPLED = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def program() -> list[str]:
    try:
        return peer.perf_analyzer()
    except peer.NoPeerError as why:
        pytest.skip(f"perf_analyzer: {why}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "add_sub")
    transaction = "model_transaction_policy { decoupled: true }\n"
    python_model(
        root, "decoupled", DECOUPLED, ADD_SUB_CONFIG.replace("max_batch_size: 8", "max_batch_size: 8\n" + transaction)
    )
    with running(
        f"--model-repository={root}", "--allow-grpc=true", "--grpc-port=0", "--allow-client-shm=true"
    ) as started:
        yield started


@pytest.mark.parametrize(
    ("protocol", "model", "flags"),
    [
        ("http", "add_sub", ()),
        ("http", "add_sub", ("--shared-memory", "system")),
        ("http", "add_sub", ("-b", "8")),
        ("grpc", "add_sub", ()),
        ("grpc", "add_sub", ("--shared-memory", "system")),
        ("grpc", "add_sub", ("--streaming",)),
        ("grpc", "add_sub", ("--streaming", "--shared-memory", "system")),
        ("grpc", "add_sub", ("--grpc-compression-algorithm", "gzip")),
        ("grpc", "decoupled", ("--streaming",)),
    ],
)
def test_every_answer_comes(
    program: list[str], server: Running, protocol: str, model: str, flags: tuple[str, ...]
) -> None:
    grpc = server.wait_for_log(r"gRPC on (127\.0\.0\.1:\d+)")[1]
    command = [
        *program, "-m", model, "-u", grpc if protocol == "grpc" else server.url, "-i", protocol, "--async",
        "--concurrency-range", "4", "--request-count", str(REQUESTS), *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    count = re.search(r"Request count: (\d+)", done.stdout)
    assert count is not None, said
    assert int(count[1]) >= REQUESTS, said
    status, body = server.get(f"/v2/models/{model}/stats")
    failed = json.loads(body)["model_stats"][0]["inference_stats"]["fail"]
    assert (status, failed["count"]) == (200, 0), said
