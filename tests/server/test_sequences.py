"""Sequences on the running server: slots, delays, time-outs, clients that go away, and what clients do wrong."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw_http import reset_on_close
from tests.server.running import Running, running
from tests.server.sequence_models import CONTROLS, SUM, sequence_model, step

EXPIRED = "timeout of the corresponding sequence has been expired"


def no_start(model: str, sequence: int | str) -> str:
    return (
        f"inference request for sequence {sequence} to model '{model}' must specify the START flag on the first "
        "request of the sequence"
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root: Path = tmp_path_factory.mktemp("models")
    long = "max_sequence_idle_microseconds: 60000000"
    sequence_model(root, "direct", SUM, f"{long} direct {{ }} {CONTROLS}")
    sequence_model(root, "oldest", SUM, f"{long} oldest {{ max_candidate_sequences: 64 preserve_ordering: true }}")
    sequence_model(
        root, "full", SUM, f"{long} direct {{ minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 400000 }}"
    )
    one_seat = "oldest { max_candidate_sequences: 1 }"
    sequence_model(root, "short", SUM, f"max_sequence_idle_microseconds: 200000 {one_seat}")
    sequence_model(root, "narrow", SUM, f"{long} {one_seat}")
    sequence_model(root, "gone", SUM, f"{long} {one_seat}")
    sequence_model(root, "busy", SUM, f"max_sequence_idle_microseconds: 5000 {one_seat}")
    with running(f"--model-repository={root}") as started:
        yield started


def together(server: Running, *calls: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """Answers to calls of `step` that are made at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result() for made in [pool.submit(step, server, *call) for call in calls]]


# ---- slots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_sequences_side_by_side_do_not_mix(server: Running, model: str) -> None:
    def client(number: int) -> list[int]:
        found = []
        for i in range(5):
            flags = "start" * (i == 0) + "end" * (i == 4)
            status, answer = step(server, model, 1000 + number, number * 10 + i, flags)
            assert status == 200, answer
            found.append(answer[0])
        return found

    with ThreadPoolExecutor(40) as pool:
        results = list(pool.map(client, range(40)))

    assert results == [[sum(n * 10 + j for j in range(i + 1)) for i in range(5)] for n in range(40)]


def test_minimum_slot_utilization_waits_for_others_up_to_its_limit(server: Running) -> None:
    begun = time.monotonic()
    assert step(server, "full", 1, 5, "start") == (200, [5, 1])
    assert time.monotonic() - begun >= 0.4

    begun = time.monotonic()
    answers = together(server, ("full", 1, 6), ("full", 2, 7, "start"))
    assert [status for status, _ in answers] == [200, 200]
    assert [answer[1] for _, answer in answers] == [2, 2], "they are executed together"
    assert time.monotonic() - begun < 0.4


def test_an_idle_sequence_loses_its_slot_to_one_that_waits(server: Running) -> None:
    assert step(server, "short", 1, 5, "start")[0] == 200

    assert step(server, "short", 2, 7, "start") == (200, [7, 1])  # waits for the only sequence slot
    assert step(server, "short", 1, 1) == (400, no_start("short", 1))
    assert step(server, "short", 2, 1, "end") == (200, [8, 1])


def test_a_sequence_leaves_the_backlog_when_its_time_is_up(server: Running) -> None:
    assert step(server, "narrow", 1, 5, "start")[0] == 200

    assert step(server, "narrow", 2, 7, "start", timeout=20_000) == (503, EXPIRED)
    assert step(server, "narrow", 2, 1) == (400, no_start("narrow", 2))
    assert step(server, "narrow", 1, 1, "end") == (200, [6, 1])
    assert step(server, "narrow", 2, 1, "start end") == (200, [1, 1])


def test_a_client_that_disconnects_cancels_its_sequence_in_the_backlog(server: Running) -> None:
    assert step(server, "gone", 1, 5, "start")[0] == 200
    with waiting(server, "gone", 2):
        until(lambda: pending(server, "gone") == 1)
    until(lambda: pending(server, "gone") == 0)

    status, text = step(server, "gone", 2, 1)
    assert status != 200, text
    assert step(server, "gone", 1, 1, "end") == (200, [6, 1])
    assert step(server, "gone", 2, 1, "start end") == (200, [1, 1])


@contextlib.contextmanager
def waiting(server: Running, model: str, sequence: int) -> Iterator[None]:
    """A client that has sent the start of a sequence; it goes away at the end."""
    inputs = [{"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [1]}]
    parameters = {"sequence_id": sequence, "sequence_start": True}
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http)) as sock:
        reset_on_close(sock)
        sock.sendall(head.encode() + body)
        yield


def pending(server: Running, model: str) -> int:
    text = server.get("/metrics", server.metrics)[1].decode()
    (line,) = (
        line for line in text.splitlines() if line.startswith(f'nv_inference_pending_request_count{{model="{model}"')
    )
    return int(line.split()[-1])


def until(happened: Any) -> None:
    end = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end, "it does not happen"


# ---- what clients do wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_a_sequence_must_start(server: Running, model: str) -> None:
    assert step(server, model, 42, 1) == (400, no_start(model, 42))
    assert step(server, model, 42, 1, "end") == (400, no_start(model, 42))


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_nothing_follows_an_end(server: Running, model: str) -> None:
    assert step(server, model, 43, 1, "start end") == (200, [1, 1])
    assert step(server, model, 43, 1, "end") == (400, no_start(model, 43))


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_a_second_start_restarts_the_sequence(server: Running, model: str) -> None:
    assert step(server, model, 44, 5, "start") == (200, [5, 1])
    assert step(server, model, 44, 7, "start") == (200, [7, 1])
    assert step(server, model, 44, 1, "end") == (200, [8, 1])
    server.wait_for_log(f"START received for open sequence 44 of model '{model}'")


@pytest.mark.parametrize(
    ("sequence", "status", "text"),
    [
        (0, 400, "must specify a non-zero or non-empty correlation ID"),
        ("", 400, "must specify a non-zero or non-empty correlation ID"),
        ("x" * 10_000, 501, "string correlation ID cannot be longer than 128 characters"),
        (-1, 500, "Unable to parse 'sequence_id'"),
        (1.5, 500, "Unable to parse 'sequence_id'"),
        (1 << 70, 500, "Unable to parse 'sequence_id'"),
        ([1], 500, "Unable to parse 'sequence_id'"),
    ],
    ids=["zero", "empty", "10 kB", "negative", "fraction", "huge", "list"],
)
def test_an_id_that_is_none_is_refused_as_triton_does(server: Running, sequence: Any, status: int, text: str) -> None:
    answer = step(server, "oldest", sequence, 1, "start end")

    assert answer[0] == status
    assert text in answer[1]
    assert len(answer[1]) < 1000


def test_a_sequence_has_one_row(server: Running) -> None:
    inputs = [{"name": "IN", "shape": [2, 1], "datatype": "INT32", "data": [1, 2]}]
    parameters = {"sequence_id": 9, "sequence_start": True}

    status, body = server.post("/v2/models/direct/infer", {"inputs": inputs, "parameters": parameters})

    assert status == 400
    assert json.loads(body)["error"] == (
        "inference request to model 'direct' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_anything_in_any_order_is_answered(server: Running) -> None:
    """Starts, ends and nothing at all, on few ids, from several clients, some with short time-outs."""
    answers: list[int] = []

    def client(number: int) -> None:
        for i in range(40):
            flags = ("", "start", "end", "start end")[(i * 7 + number) % 4]
            more = {"timeout": 1000} if i % 5 == 0 else {}
            answers.append(step(server, "busy", 1 + (i * number) % 3, 1, flags, **more)[0])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 200
    assert set(answers) <= {200, 400, 503}
    assert pending(server, "busy") == 0
