"""A change of `instance_group` alone adds and removes instances of a model that serves: the others stay, nothing fails.

The scenes are those of Triton's qa/L0_model_update.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.server.load import ADDS_UP, ADDS_UP_CONFIG, Client, Load, adds_up_body, busy
from tests.server.quick_polls import QUICK_POLLS
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, PATIENCE, Running, python_model, running
from tests.server.test_namespaces import ensemble

pytestmark = pytest.mark.slow  # load while instances come and go

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")

#: each instance says when it begins and when it ends
SAYS = ADD_SUB.replace(
    "    def execute(self, requests):",
    """    def initialize(self, args):
        self.name = args["model_instance_name"]
        pb_utils.Logger.log_info(f"hello from {self.name} of {args['model_config'].count('count')}")

    def finalize(self):
        print(f"farewell from {self.name}", flush=True)

    def execute(self, requests):""",
    1,
)


@dataclass
class Since(Running):
    """A server that serves many tests; its log begins with the test."""

    begin: int = 0

    def log(self) -> str:
        return super().log()[self.begin :]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A server that loads models on request, and its repository."""
    root = tmp_path_factory.mktemp("models")
    with running(f"--model-repository={root}", "--model-control-mode=explicit") as server:
        yield server, root


@pytest.fixture
def root(shared: tuple[Running, Path]) -> Path:
    return shared[1]


@pytest.fixture
def server(shared: tuple[Running, Path]) -> Iterator[Running]:
    """The shared server without models."""
    made, root = shared
    yield Since(made.process, made.log_path, made.http, made.metrics, len(made.log()))
    for entry in json.loads(made.post("/v2/repository/index", {"ready": True})[1]):
        made.post(f"/v2/repository/models/{entry['name']}/unload")
    for model in root.iterdir():
        shutil.rmtree(model)
    until(lambda: made.workers() == [], made)


def load_python(server: Running, root: Path, code: str, config: str) -> None:
    """Write the Python model "m" and load it."""
    python_model(root, "m", code, config)
    assert update(server, root, "m", config) == (200, "")


def of_count(count: int, config: str = ADD_SUB_CONFIG, more: str = "") -> str:
    return f"{config}instance_group [ {{ count: {count} kind: KIND_CPU {more} }} ]\n"


def update(server: Running, root: Path, model: str, config: str) -> tuple[int, str]:
    """Write a configuration and load the model; status and error."""
    (root / model / "config.pbtxt").write_text(config)
    status, body = server.post(f"/v2/repository/models/{model}/load")
    return status, json.loads(body)["error"] if body else ""


def said(server: Running, word: str) -> list[str]:
    """The instances that said `hello` or `farewell`, in the order in which they did."""
    return [
        line.rpartition(f"{word} from ")[2].split()[0] for line in server.log().splitlines() if f"{word} from" in line
    ]


def revision(server: Running) -> int:
    """The revision of the model "m" in the status document."""
    (row,) = json.loads(server.get("/edge-serve/status")[1])["models"]
    return int(row["revision"])


def until(condition: Callable[[], bool], server: Running) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, server.log()
        time.sleep(0.02)


@pytest.mark.parametrize(
    "batcher",
    ["", "dynamic_batching { max_queue_delay_microseconds: 500 }\n"],
    ids=["no batcher", "dynamic batcher"],
)
def test_instances_come_and_go_under_load_and_no_request_fails(server: Running, root: Path, batcher: str) -> None:
    base = ADD_SUB_CONFIG + batcher
    load_python(server, root, SAYS, of_count(2, base))
    load, first = Load(), server.workers()
    revisions = {revision(server)}

    def change() -> None:
        for count in (3, 1, 2):
            assert update(server, root, "m", of_count(count, base)) == (200, "")
            assert len(server.workers()) == count, "the load answers when the others have left"
            revisions.add(revision(server))

    busy(load, [partial(load.add_sub, server.http, "m") for _ in range(4)], change)

    assert load.failures[:3] == []
    assert load.answered > 20
    assert len(revisions) == 4, "the status page asks for the new configuration"
    assert sorted(said(server, "hello")) == ["m_0_0", "m_0_1", "m_0_1", "m_0_2"]
    assert len(said(server, "farewell")) == 2
    assert len({*first, *server.workers()}) == 3, "the first instance still serves"
    row = json.loads(server.get("/v2/models/m/stats")[1])["model_stats"][0]
    assert row["inference_stats"]["success"]["count"] == load.answered
    assert json.loads(server.get("/v2/models/m/config")[1])["instance_group"][0]["count"] == 2


def test_an_instance_that_does_not_come_changes_nothing(server: Running, root: Path) -> None:
    code = SAYS.replace(
        "        self.name =", "        assert '_2' not in args['model_instance_name'], 'no third'\n        self.name ="
    )
    load_python(server, root, code, of_count(1))
    workers = server.workers()
    status, error = update(server, root, "m", of_count(3))
    assert (status, "version 1 is at READY state" in error, "no third" in error) == (400, True, True)
    assert server.add_sub("m")[0] == 200
    assert server.workers() == workers
    assert update(server, root, "m", of_count(2)) == (200, "")
    assert set(workers) < set(server.workers())


def test_a_change_beyond_instances_reloads_the_model(server: Running, root: Path) -> None:
    load_python(server, root, SAYS, of_count(1))
    for config, hellos in (
        (of_count(1, more='name: "other"'), 1),
        (of_count(1, more="rate_limiter { priority: 2 }"), 2),  # another instance, as in Triton
        (of_count(2, ADD_SUB_CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")), 4),
    ):
        assert update(server, root, "m", config) == (200, "")
        assert len(said(server, "hello")) == hellos
        assert server.add_sub("m")[0] == 200


def test_a_busy_model_gets_a_new_instance_while_its_request_runs(server: Running, root: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"        import os, time\n        while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    load_python(server, root, SAYS.replace("        replies = []", f"{wait}        replies = []"), of_count(1))
    load = Load()

    def change() -> None:
        busy_count = 'nv_inference_pending_request_count{model="m",version="1"} 1'
        until(lambda: busy_count in server.get("/metrics", server.metrics)[1].decode(), server)  # one runs, one waits
        assert update(server, root, "m", of_count(2)) == (200, "")
        assert load.answered == 0
        gate.touch()

    busy(load, [partial(load.add_sub, server.http, "m") for _ in range(2)], change)
    assert load.failures == []


STRATEGIES = {
    # one seat: the model knows no null requests
    "direct": ADDS_UP_CONFIG.replace("oldest { max_candidate_sequences: 64 }", "direct { }").replace(
        "size: 64", "size: 1"
    ),
    "oldest": ADDS_UP_CONFIG,
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_go_on_in_the_instances_that_leave(server: Running, root: Path, strategy: str) -> None:
    config = STRATEGIES[strategy]
    load_python(server, root, ADDS_UP, of_count(3, config))
    client = Client(server.http)

    def send(number: int, value: int, **flags: bool) -> object:
        status, answer = client.infer("m", adds_up_body(number, value, **flags))
        return answer["outputs"][0]["data"][0] if status == 200 else (status, answer)

    assert [send(number, 1, start=True) for number in (1, 2)] == [1, 1]
    # none of the three stays: one has no sequence and leaves at once
    assert update(server, root, "m", of_count(1, config, "rate_limiter { priority: 2 }")) == (200, "")
    until(lambda: len(server.workers()) == 3, server)
    assert [send(1, 1), send(2, 1), send(3, 5, start=True), send(3, 5)] == [2, 2, 5, 10]
    assert len(server.workers()) == 3
    assert [send(1, 1, end=True), send(2, 1, end=True)] == [3, 3]
    until(lambda: len(server.workers()) == 1, server)
    assert [send(3, 5, end=True), send(1, 7, start=True, end=True)] == [15, 7]
    client.close()


def test_sequences_that_do_not_end_are_cut_off_after_the_limit(tmp_path: Path) -> None:
    python_model(tmp_path, "m", ADDS_UP, of_count(1, ADDS_UP_CONFIG))
    with running(f"--model-repository={tmp_path}", *EXPLICIT, "--swap-drain-secs=1") as server:
        client = Client(server.http)
        client.infer("m", adds_up_body(1, 1, start=True))
        assert update(server, tmp_path, "m", of_count(1, ADDS_UP_CONFIG, "rate_limiter { priority: 2 }")) == (200, "")
        server.wait_for_log("an instance that was removed still has work after 1 s")
        until(lambda: len(server.workers()) == 1, server)
        status, answer = client.infer("m", adds_up_body(1, 1))
        assert (status, "must specify the START flag" in answer["error"]) == (400, True)
        assert client.infer("m", adds_up_body(1, 1, start=True, end=True))[0] == 200
        client.close()


def test_a_model_is_unloaded_while_an_instance_of_it_leaves(tmp_path: Path) -> None:
    python_model(tmp_path, "m", ADDS_UP, of_count(1, ADDS_UP_CONFIG))
    with running(f"--model-repository={tmp_path}", *EXPLICIT) as server:
        client = Client(server.http)
        client.infer("m", adds_up_body(1, 1, start=True))
        assert update(server, tmp_path, "m", of_count(1, ADDS_UP_CONFIG, "rate_limiter { priority: 2 }")) == (200, "")
        assert server.post("/v2/repository/models/m/unload")[0] == 200
        assert server.workers() == []
        client.close()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


def test_an_added_instance_comes_back_when_its_worker_dies(server: Running, root: Path) -> None:
    load_python(server, root, SAYS, of_count(1))
    (first,) = server.workers()
    assert update(server, root, "m", of_count(2)) == (200, "")
    (second,) = set(server.workers()) - {first}
    os.kill(second, signal.SIGKILL)
    until(lambda: len(server.workers()) == 2 and second not in server.workers(), server)
    server.wait_for_log("model m is back")
    until(lambda: server.get("/v2/models/m/ready")[0] == 200, server)
    assert update(server, root, "m", of_count(1)) == (200, "")
    assert server.workers() == [first]


def test_instances_of_a_compiled_model_come_and_go_within_their_worker(server: Running, root: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "model_repository/simple", root / "simple")
    base = (root / "simple/config.pbtxt").read_text()
    assert update(server, root, "simple", base) == (200, "")
    workers, load = server.workers(), Load()

    def change() -> None:
        for count in (3, 2, 4, 1):
            assert update(server, root, "simple", of_count(count, base)) == (200, "")
            assert server.add_sub("simple")[0] == 200
        server.post("/v2/repository/models/simple/load")

    busy(load, [partial(load.add_sub, server.http, "simple") for _ in range(4)], change)

    assert load.failures[:3] == []
    assert server.workers() == workers
    assert server.log().count("model simple version 1 ready") == 1
    assert update(server, root, "simple", of_count(3, base)) == (200, "")
    os.kill(workers[0], signal.SIGKILL)
    server.wait_for_log("(?s)model simple is back.*model simple is back")
    until(lambda: server.get("/v2/models/simple/ready")[0] == 200, server)
    assert server.add_sub("simple")[0] == 200
    assert update(server, root, "simple", of_count(1, base)) == (200, "")
    assert server.add_sub("simple")[0] == 200


def test_an_ensemble_runs_while_the_instances_of_a_member_change(server: Running, root: Path) -> None:
    load_python(server, root, SAYS, of_count(1))
    ensemble(root, "pipeline", "m")
    assert server.post("/v2/repository/models/pipeline/load")[0] == 200
    assert server.add_sub("pipeline")[0] == 200
    assert update(server, root, "m", of_count(2)) == (200, "")
    assert server.add_sub("pipeline")[0] == 200
    assert server.log().count("model pipeline version 1 ready") == 1
    stats = json.loads(server.get("/v2/models/pipeline/stats")[1])["model_stats"][0]
    assert stats["inference_count"] == 2


def test_a_model_with_a_response_cache_and_one_in_poll_mode_change_too(tmp_path: Path) -> None:
    base = ADD_SUB_CONFIG + "response_cache { enable: true }\n"
    python_model(tmp_path, "m", SAYS, of_count(1, base))
    flags = ("--cache-config=local,size=1048576", "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(f"--model-repository={tmp_path}", *flags, prefix=QUICK_POLLS) as server:
        assert server.add_sub("m")[0] == 200
        (tmp_path / "m" / "config.pbtxt").write_text(of_count(2, base))
        server.wait_for_log("model m version 1: 1 instances added, 0 removed")
        assert [server.add_sub("m", value)[0] for value in (1, 2, 3)] == [200, 200, 200]
        (row,) = json.loads(server.get("/v2/models/m/stats")[1])["model_stats"]
        assert row["inference_stats"]["cache_hit"]["count"] == 1
        assert said(server, "hello") == ["m_0_0", "m_0_1"]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_no_step_of_a_sequence_is_lost_while_instances_come_and_go(server: Running, root: Path, strategy: str) -> None:
    config = STRATEGIES[strategy]
    load_python(server, root, ADDS_UP, of_count(2, config))
    load = Load()

    def change() -> None:
        for count in (1, 3, 1):
            assert update(server, root, "m", of_count(count, config)) == (200, "")
            load.wait_for_answers(50)

    busy(load, [partial(load.adds_up, server.http, "m", number, 20) for number in range(1, 7)], change)

    assert load.failures[:3] == []
    assert load.sequences >= 6
    until(lambda: len(server.workers()) == 1, server)
