"""Repeated mistakes of clients and models cost a few lines of the log and no lasting memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.running import python_model, running
from tests.server.sequence_models import SUM, sequence_model, step

#: has as many series as `MORE` says, which outlive the model's object
METRICS = """
import sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("seen_total", "Requests.", pb_utils.MetricFamily.COUNTER)
        self.metrics = sys.kept = [self.family.Metric({"model": args["model_name"], "n": str(n)}) for n in range(MORE)]

    def execute(self, requests):
        self.metrics[0].increment(len(requests))
        tensors = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        pairs = [[pb_utils.Tensor("OUTPUT0", tensor), pb_utils.Tensor("OUTPUT1", tensor)] for tensor in tensors]
        return [pb_utils.InferenceResponse(pair) for pair in pairs]
"""


def test_traces_that_cannot_be_written_cost_one_line(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    file = tmp_path / "later" / "trace.json"
    flags = (f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")
    with running(f"--model-repository={tmp_path / 'models'}", *flags) as server:
        for _ in range(50):
            assert server.add_sub("m")[0] == 200
        server.wait_for_log("traces are lost")
        file.parent.mkdir()
        server.add_sub("m")
        server.wait_for_log(r"traces are written to '.*' again; (49|50) were lost")
        assert server.log().count("traces are lost") == 1


@pytest.mark.slow
def test_a_client_that_starts_its_sequence_again_does_not_flood_the_log(tmp_path: Path) -> None:
    sequence_model(tmp_path, "m", SUM, "oldest { max_candidate_sequences: 4 }")
    with running(f"--model-repository={tmp_path}") as server:
        for value in range(600):
            assert step(server, "m", 44, value, "start")[0] == 200
        server.wait_for_log(r"\d+ more like this suppressed: START received for open sequence 44 of model 'm'")
        assert server.log().count("START received for open sequence") < 400


def test_metrics_of_a_model_go_with_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        python_model(tmp_path, name, METRICS.replace("MORE", "3"))
    with running(
        f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--load-model=a", "--load-model=b"
    ) as server:
        server.add_sub("a")

        def series(model: str) -> list[str]:
            page = server.get("/metrics", server.metrics)[1].decode()
            return [line for line in page.splitlines() if line.startswith("seen_total{") and f'model="{model}"' in line]

        assert 'seen_total{model="a",n="0"} 1' in series("a")
        assert server.post("/v2/repository/models/a/unload")[0] == 200
        assert series("a") == []
        assert len(series("b")) == 3


@pytest.mark.slow
def test_too_many_metrics_are_logged_once(tmp_path: Path) -> None:
    python_model(tmp_path, "a", METRICS.replace("MORE", "10_050"))
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--load-model=a") as server:
        server.wait_for_log(r"^W.*custom metrics: 10000 series are the most")
        assert server.post("/v2/repository/models/a/unload")[0] == 200
        server.wait_for_log(r"custom metrics have room again; \d+ updates of new series were ignored")
        assert server.log().count("series are the most") == 1
