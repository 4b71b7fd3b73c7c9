"""Two batches on their way on a real GPU: no request gets another's rows."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.server.running import running
from tests.server.test_onnx_gpu import infer_http, write

CLIENTS, REQUESTS = 32, 60


@pytest.mark.timeout(300)
def test_each_request_gets_its_own_rows(tmp_path: Path) -> None:
    """Inputs of very unequal size: the copies of a batch overlap the run of the one before."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is not installed")
    write(tmp_path, "batched", "max_batch_size: 16\n")
    wrong: list[tuple[int, int]] = []
    with running(f"--model-repository={tmp_path}") as server:

        def ask(client: int) -> None:
            for step in range(REQUESTS):
                columns = (4, 150_000, 9_000)[step % 3]
                array = np.full((1, columns), client * REQUESTS + step, np.float32)
                if not (infer_http(server, "batched", array) == array).all():
                    wrong.append((client, step))

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        page = server.get("/metrics", server.metrics)[1].decode()
    assert wrong == []
    counts = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith("nv_inference_exec_count{")]
    assert float(counts[0]) < CLIENTS * REQUESTS
