"""OpenVINO alone: `python bare_openvino.py MODEL VALUES.npy`, run with the interpreter of the pack.

For each line `SECONDS STREAMS THREADS` of standard input it prints one JSON line: the seconds of each inference of each
thread, of one compiled model with so many streams.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np
import openvino as ov


def measure(core: ov.Core, path: str, values: np.ndarray, seconds: float, streams: int, threads: int) -> list[float]:
    """Return the seconds of each inference, without those of the first fifth."""
    properties = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": streams}
    compiled = core.compile_model(core.read_model(path), "CPU", properties)
    taken: list[list[float]] = [[] for _ in range(threads)]
    end = time.perf_counter() + seconds

    def loop(mine: list[float]) -> None:
        request = compiled.create_infer_request()
        while (start := time.perf_counter()) < end:
            request.set_input_tensor(0, ov.Tensor(values, shared_memory=True))
            request.start_async()
            request.wait()
            request.get_output_tensor(0).data.copy()
            mine.append(time.perf_counter() - start)

    workers = [threading.Thread(target=loop, args=(mine,)) for mine in taken]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [second for mine in taken for second in mine[len(mine) // 5 :]]


def main() -> None:
    """Answer each line of standard input."""
    core, values = ov.Core(), np.load(sys.argv[2])
    for line in sys.stdin:
        seconds, streams, threads = line.split()
        print(json.dumps(measure(core, sys.argv[1], values, float(seconds), int(streams), int(threads))), flush=True)


if __name__ == "__main__":
    main()
