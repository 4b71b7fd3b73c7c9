"""The response cache of a running server: the bytes that clients get, and what is counted."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.server.bls_models import SELF, model
from tests.server.running import Running, python_model, running

COUNTS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.runs = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.runs += 1
            if x.size and x.flat[0] == -1:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no")))
                continue
            if x.size and x.flat[0] == -2:
                x = x * json.loads(request.parameters()).get("factor", 1)
            runs = pb_utils.Tensor("RUNS", np.array([self.runs], np.int32))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1), runs]))
        return responses
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "RUNS" data_type: TYPE_INT32 dims: [ 1 ] }
response_cache { enable: true }
"""

ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Z" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "R" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step { model_name: "plain" model_version: -1 input_map { key: "X" value: "X" }
  output_map { key: "Y" value: "Z" } output_map { key: "RUNS" value: "R" } } }
response_cache { enable: true }
"""


def ask(server: Running, model: str, *values: int, **fields: Any) -> tuple[int, Any]:
    inputs = [{"name": "X", "datatype": "INT32", "shape": [len(values)], "data": values}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})
    return status, json.loads(body)


def output(answer: Any, name: str) -> Any:
    return next(one["data"] for one in answer["outputs"] if one["name"] == name)


def runs(server: Running, model: str, *values: int, **fields: Any) -> int:
    return int(output(ask(server, model, *values, **fields)[1], "RUNS")[0])


def large(server: Running, value: int) -> tuple[int, bool]:
    """A request whose tensors lie in the model's memory: which run answered, and whether rightly."""
    x = np.full(100_000, value, np.int32)
    head = {
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [x.size], "parameters": {"binary_data_size": x.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    connection = http.client.HTTPConnection(server.url, timeout=30)
    connection.request(
        "POST", "/v2/models/m/infer", text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}
    )
    answer = connection.getresponse()
    body, size = answer.read(), int(answer.headers["Inference-Header-Content-Length"])
    connection.close()
    parts, at = {}, size
    for one in json.loads(body[:size])["outputs"]:
        nbytes = one["parameters"]["binary_data_size"]
        parts[one["name"]] = np.frombuffer(body[at : at + nbytes], np.int32)
        at += nbytes
    return int(parts["RUNS"][0]), bool((parts["Y"] == value + 1).all())


def test_answers_are_given_again_and_always_right(tmp_path: Path) -> None:
    python_model(tmp_path, "m", COUNTS, CONFIG)
    python_model(tmp_path, "plain", COUNTS, CONFIG.replace("true", "false"))
    python_model(tmp_path, "e", "", ENSEMBLE)
    summaries, histograms = (f"--metrics-config={kind}_latencies=true" for kind in ("summary", "histogram"))
    flags = ("--cache-config=local,size=8000000", summaries, histograms, "--load-model=*")
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit", *flags) as server:
        assert [runs(server, "m", 1), runs(server, "m", 2), runs(server, "m", 1)] == [1, 2, 1]
        assert [runs(server, "plain", 1), runs(server, "plain", 1)] == [1, 2]
        assert [ask(server, "e", 5)[1]["outputs"] for _ in range(2)] == [ask(server, "e", 5)[1]["outputs"]] * 2
        assert runs(server, "plain", 9) == 4  # the ensemble ran its member once

        assert [ask(server, "m", -1)[0] for _ in range(2)] == [500, 500]
        assert runs(server, "m", 3) == 5
        factors = [output(ask(server, "m", -2, parameters={"factor": f})[1], "Y") for f in (2, 3, 2)]
        assert factors == [[-3], [-5], [-3]]
        assert runs(server, "m", 1, parameters={"factor": 9}) == 1

        first = [large(server, value) for value in (10, 20, 30)]
        assert [large(server, value) for value in (30, 10, 20)] == [first[2], first[0], first[1]]
        assert all(right for _, right in first)

        counts = json.loads(server.get("/v2/models/m/stats")[1])["model_stats"][0]
        stats = counts["inference_stats"]
        assert (stats["cache_hit"]["count"], stats["cache_miss"]["count"], counts["execution_count"]) == (6, 10, 10)
        page = server.get("/metrics", server.metrics)[1].decode()
        assert 'nv_cache_num_hits_per_model{model="m",version="1"} 6' in page
        assert 'nv_cache_num_misses_per_model{model="m",version="1"} 10' in page
        assert 'nv_cache_hit_summary_per_model_count{model="m",version="1"} 6' in page
        assert 'nv_cache_num_hits_per_model{model="plain"' not in page
        for name, requests in (("m", 16), ("plain", 4), ("e", 3)):
            assert f'nv_inference_first_response_histogram_ms_count{{model="{name}",version="1"}} {requests}\n' in page
        assert "\nnv_cache_num_hits 8\n" in page
        assert "\nnv_cache_num_lookups 19\n" in page

        assert server.post("/v2/repository/models/m/unload")[0] == 200
        assert server.post("/v2/repository/models/m/load")[0] == 200
        assert runs(server, "m", 1) == 1
        assert runs(server, "m", 2) == 2


def test_a_server_without_a_cache_runs_every_request(tmp_path: Path) -> None:
    python_model(tmp_path, "m", COUNTS, CONFIG)
    with running(f"--model-repository={tmp_path}") as server:
        assert [runs(server, "m", 1), runs(server, "m", 1)] == [1, 2]
        assert "nv_cache" not in server.get("/metrics", server.metrics)[1].decode()


def test_a_circle_of_calls_is_still_seen_behind_cache_and_limiter(tmp_path: Path) -> None:
    model(tmp_path, "nested", SELF, instances=2, more="response_cache { enable: true }")
    flags = ("--cache-config=local,size=100000", "--rate-limit=execution_count")
    with running(f"--model-repository={tmp_path}", *flags) as server:
        status, body = ask(server, "nested", 5)

    assert status == 200, body
    assert "every instance of 'nested' waits" in output(body, "TEXT")[0]
