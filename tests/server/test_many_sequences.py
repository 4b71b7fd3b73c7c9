"""Far more sequences than sequence slots, all at once: each gets its own sums, in order, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Running, python_model, running
from tests.server.sequence_models import FACE, SUM

STEPS = 4
IDLE = "max_sequence_idle_microseconds: 60000000"


async def one_sequence(server: Running, model: str, number: int) -> list[int]:
    """Return the sums of one sequence, requested one after the other over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http)
    sums = []
    for i in range(STEPS):
        flags = {"sequence_start": i == 0, "sequence_end": i == STEPS - 1}
        body = json.dumps({
            "parameters": {"sequence_id": number, **flags},
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [number * 10 + i]}],
        }).encode()  # fmt: skip
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await _answer(reader)
        sums.append(answer["outputs"][0]["data"][0])
    writer.close()
    return sums


async def _answer(reader: asyncio.StreamReader) -> Any:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    assert head.startswith(b"http/1.1 200"), body
    return body


def expected(number: int) -> list[int]:
    return [sum(number * 10 + j for j in range(i + 1)) for i in range(STEPS)]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        ("oldest { max_candidate_sequences: 1024 }", 1000),
        ("oldest { max_candidate_sequences: 16 }", 1000),
        ("direct { }", 8 + 500),
    ],
    ids=["oldest", "oldest with a backlog", "direct, 500 in the backlog"],
)
def test_each_of_many_sequences_gets_its_own_sums(tmp_path: Path, strategy: str, count: int) -> None:
    face = FACE.replace("max_batch_size: 4", "max_batch_size: 8")
    python_model(tmp_path, "sums", SUM, f"{face} sequence_batching {{ {IDLE} {strategy} }}")

    async def all_at_once(server: Running) -> list[list[int]]:
        return await asyncio.gather(*(one_sequence(server, "sums", 1 + n) for n in range(count)))

    with running(f"--model-repository={tmp_path}") as server:
        for _ in range(2):  # the ids are free again
            found = asyncio.run(all_at_once(server))
            assert found == [expected(1 + n) for n in range(count)]
        statistics = json.loads(server.get("/v2/models/sums/stats")[1])["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == 2 * STEPS * count
    assert statistics["inference_stats"]["fail"]["count"] == 0
