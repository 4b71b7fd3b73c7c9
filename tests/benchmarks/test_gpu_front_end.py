"""The benchmark of the front end on stand-ins: it runs, and compares equal work."""

from __future__ import annotations

import pytest

from benchmarks import gpu_front_end


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_both_models_are_measured_over_both_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_front_end, "SECONDS", 0.3)

    report = gpu_front_end.run(rounds=1)

    cases = [(row["model"], row["door"]) for row in report.rows]
    assert cases == [(model, door) for model in ("some us", "0.4 ms") for door in ("http", "grpc")]
    for row in report.rows:
        assert row["TensorRT us"] > 0
        assert row["ONNX us"] > 0
        assert row["ratio"] == pytest.approx(row["TensorRT us"] / row["ONNX us"])
