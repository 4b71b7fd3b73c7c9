"""Ten thousand bad requests of every kind: each is answered with a clear error, and nothing is left of any."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.bad_requests import broken_framing, good_binary, good_inputs, mutations, refused
from tests.server.raw_http import Answer, Client, infer_json, request
from tests.server.running import PATIENCE, Running, python_model, running
from tests.server.traces import Traces

TEXT = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for text in inputs]
"""
TEXT_CONFIG = (
    'input [{ name: "IN" data_type: TYPE_STRING dims: [1] }] output [{ name: "OUT" data_type: TYPE_STRING dims: [1] }]'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "m")
    python_model(root, "spare")
    python_model(root, "text", TEXT, f'backend: "python" {TEXT_CONFIG}')
    flags = ("--model-control-mode=explicit", "--load-model=m", "--load-model=text", f"--http-max-input-size={1 << 20}")
    required = ("--required-model=m", "--required-model=text")  # `spare` fails to load again and again
    with running(f"--model-repository={root}", *flags, *required) as started:
        yield started


def check_refusal(answer: Answer, sent: bytes) -> None:
    assert 400 <= answer.status < 600, sent[:300]
    assert answer.error, sent[:300]
    assert b"Traceback" not in answer.body
    assert b'File "' not in answer.body
    assert b"its log says why" not in answer.body, sent[:300]


def test_each_kind_is_refused_and_the_connection_stays_open(server: Running) -> None:
    with Client(server.http) as client:
        for sent in refused():
            answer = client.ask(sent)
            check_refusal(answer, sent)
            if answer.closes:  # the body was not welcome
                client.reopen(server.http)
            assert client.ask(infer_json("m", good_inputs())).status == 200, sent[:300]


def test_broken_framing_is_refused_and_ends_the_connection(server: Running) -> None:
    for sent in broken_framing():
        with Client(server.http) as client:
            answer = client.ask(sent)
            check_refusal(answer, sent)
            assert answer.closes, sent[:300]
            assert client.is_closed()


def test_no_bad_request_holds_the_server_up(server: Running) -> None:
    """The costliest of each size: the server answers others meanwhile, at worst a little late."""
    deep = infer_json("m", [{**good_inputs()[0], "shape": [2**63 - 1] * 50_000}])
    for sent in (deep, request("POST", "/v2/models/m/infer", b"[" * 1_000_000), infer_json("m", [7] * 300_000)):
        with Client(server.http) as client:
            started = time.monotonic()
            check_refusal(client.ask(sent), sent)
            assert time.monotonic() - started < 1, sent[:300]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_bad_requests_leave_nothing_behind(server: Running) -> None:
    slow_kinds = (b"no_such_backend", b"H4sI")
    well_framed = [sent for sent in refused() if not any(kind in sent for kind in slow_kinds)]
    broken = broken_framing()
    _bad_requests(server, well_framed, broken, 1_000, seed=1)  # what is remembered on purpose is there now
    before = Traces.at_rest(server)

    _bad_requests(server, well_framed, broken, 10_000, seed=2)

    after = before.settled(server)
    assert before.pids == after.pids
    assert before.files == after.files
    assert before.worker_files == after.worker_files
    assert after.shared_memory <= before.shared_memory
    assert after.tensor_memory == 0
    assert after.resident < before.resident + 16 * 2**20
    assert "Traceback" not in server.log()
    assert " failed; the next try follows in" not in server.log()
    assert server.get("/v2/health/ready")[0] == 200
    assert server.add_sub("m")[0] == 200


def _bad_requests(server: Running, well_framed: list[bytes], broken: list[bytes], count: int, seed: int) -> None:
    """Over one connection that is kept, and over fresh ones; whole, cut in the middle, and torn down."""
    dice = random.Random(seed)
    with Client(server.http) as kept:
        for sent in itertools.islice(mutations(seed), count):
            _bad_request(server, kept, dice, sent, well_framed, broken)


def _bad_request(
    server: Running, kept: Client, dice: random.Random, changed: bytes, well_framed: list[bytes], broken: list[bytes]
) -> None:
    kind = dice.randrange(6)
    if kind == 5:
        _cut(server, dice, changed)
    elif kind == 4:
        with Client(server.http) as client:
            client.send(changed)
            client.finish()
            for answer in client.rest():
                assert answer.status == 200 or answer.error
    elif kind == 3:
        with Client(server.http) as client:
            sent = dice.choice(broken)
            check_refusal(client.ask(sent), sent)
    else:
        sent = dice.choice(well_framed)
        answer = kept.ask(sent)
        check_refusal(answer, sent)
        if answer.closes:
            kept.reopen(server.http)


def _cut(server: Running, dice: random.Random, sent: bytes) -> None:
    """A client that stops in the middle: waits a moment, hangs up, or is torn down."""
    whole = dice.choice((sent, good_binary(), infer_json("m", good_inputs()), _large(dice)))
    client = Client(server.http)
    client.send(whole[: dice.randrange(len(whole))])
    if dice.random() < 0.5:
        client.reset()
    else:
        client.close()


def _large(dice: random.Random) -> bytes:
    """A body that is received straight into tensor memory."""
    text = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":90000}}]}'
    body = text + dice.randbytes(90_000)
    return request("POST", "/v2/models/text/infer", body, f"Inference-Header-Content-Length: {len(text)}")


def test_a_client_may_say_everything_a_byte_at_a_time(server: Running) -> None:
    sent = good_binary()
    with Client(server.http) as client:
        for i in range(len(sent)):
            client.send(sent[i : i + 1])
        assert client.answer().status == 200


def test_the_log_stays_readable(server: Running, tmp_path: Path) -> None:
    """Bytes of a client start no line of the log, and do not fill it."""
    end = time.monotonic() + PATIENCE
    with Client(server.http) as client:
        client.ask(request("POST", "/v2/repository/models/x%0aE1121%20forged/load", b"{}"))
        client.ask(request("POST", f"/v2/repository/models/{'y' * 4000}/load", b"{}"))
    while "yyyy" not in server.log():
        assert time.monotonic() < end
    assert "\nE1121 forged" not in server.log()
