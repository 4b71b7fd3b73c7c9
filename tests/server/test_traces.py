"""Traces of a running server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.running import python_model, running


def test_requests_are_traced_while_it_is_asked_for(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    file = tmp_path / "trace.json"
    with running(f"--model-repository={tmp_path / 'models'}", f"--trace-config=triton,file={file}") as server:
        server.add_sub("m")
        asked = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "2", "trace_count": "1"}
        status, body = server.post("/v2/models/m/trace/setting", asked)
        assert (status, json.loads(body)["trace_level"]) == (200, ["TIMESTAMPS", "TENSORS"])
        for value in range(5):
            assert server.add_sub("m", value)[0] == 200
        assert json.loads(server.get("/v2/models/m/trace/setting")[1])["trace_count"] == "0"

    entries = json.loads((tmp_path / "trace.json.0").read_text())
    assert entries[2] == {"id": 1, "model_name": "m", "model_version": 1}
    stamps = [stamp for entry in entries for stamp in entry.get("timestamps", ())]
    assert [stamp["name"] for stamp in stamps] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    times = [stamp["ns"] for stamp in stamps]
    assert times == sorted(times)
    tensors = [(entry["activity"], entry["tensor"]) for entry in entries if "activity" in entry]
    assert [(activity, tensor["name"], tensor["data"][:5]) for activity, tensor in tensors] == [
        ("TENSOR_QUEUE_INPUT", "INPUT0", "1,1,1"),
        ("TENSOR_QUEUE_INPUT", "INPUT1", "1,1,1"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", "2,2,2"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT1", "0,0,0"),
    ]
