"""The life of models in a real server: polling, SIGHUP, versions that come and go."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.server.quick_polls import QUICK_POLLS
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, PATIENCE, python_model, running

pytestmark = pytest.mark.slow  # a server for each mode

TIMES_TEN = ADD_SUB.replace("a + b", "(a + b) * 10")
ALL_VERSIONS = ADD_SUB_CONFIG + "version_policy { all {} }\n"


def json_config() -> str:
    """The configuration of an add/sub model in a load request."""
    tensors = [{"name": name, "data_type": "TYPE_INT32", "dims": [16]} for name in ("INPUT0", "INPUT1")]
    results = [{"name": name, "data_type": "TYPE_INT32", "dims": [16]} for name in ("OUTPUT0", "OUTPUT1")]
    return json.dumps({"backend": "python", "max_batch_size": 8, "input": tensors, "output": results})


def first(answer: object) -> int:
    """The first number that an add/sub model answered."""
    document = json.loads(json.dumps(answer))
    return int(document["outputs"][0]["data"][0])


def test_polling_loads_replaces_and_unloads(tmp_path: Path) -> None:
    python_model(tmp_path, "first")
    flags = (f"--model-repository={tmp_path}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(*flags, prefix=QUICK_POLLS) as server:
        python_model(tmp_path, "second")
        python_model(tmp_path, "first", TIMES_TEN)
        server.wait_for_log(r"model second version 1 ready")
        server.wait_for_log(r"(?s)model first version 1 ready.*model first version 1 ready")
        assert first(server.add_sub("first")[1]) == 20
        assert first(server.add_sub("second")[1]) == 2

        python_model(tmp_path, "first", "raise RuntimeError('half an idea')\n")
        server.wait_for_log(r"failed to load 'first' version 1: .*half an idea")
        assert first(server.add_sub("first")[1]) == 20  # what served before goes on

        python_model(tmp_path, "first")
        server.wait_for_log(r"(?s)half an idea.*model first version 1 ready")
        assert first(server.add_sub("first")[1]) == 2

        shutil.rmtree(tmp_path / "second")
        server.wait_for_log(r"model second version 1 unloaded")
        assert server.add_sub("second")[0] == 404
        assert server.get("/v2/health/ready")[0] == 200


def test_a_model_that_hangs_while_it_loads_delays_no_other(tmp_path: Path) -> None:
    """Nor does it keep itself from a repair, or from being removed."""
    python_model(tmp_path, "first")
    hangs = "import time\nprint('asleep', flush=True)\ntime.sleep(9999)\n"
    flags = (f"--model-repository={tmp_path}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(*flags, prefix=QUICK_POLLS) as server:
        python_model(tmp_path, "hanging", hangs)
        server.wait_for_log(r"hanging:1: asleep")
        python_model(tmp_path, "first", TIMES_TEN)
        server.wait_for_log(r"(?s)model first version 1 ready.*model first version 1 ready")
        assert first(server.add_sub("first")[1]) == 20

        python_model(tmp_path, "hanging")
        server.wait_for_log(r"'hanging' version 1: .*the load was stopped: its files have changed meanwhile")
        server.wait_for_log(r"model hanging version 1 ready")
        assert first(server.add_sub("hanging")[1]) == 2

        python_model(tmp_path, "new", hangs)
        server.wait_for_log(r"new:1: asleep")
        shutil.rmtree(tmp_path / "new")
        server.wait_for_log(r"'new' version 1: .*the load was stopped: it is gone from the repository")
        assert server.get("/v2/health/ready")[0] == 200


def test_sighup_looks_once(tmp_path: Path) -> None:
    repository, beside = tmp_path / "repository", tmp_path / "beside"
    directory = python_model(repository, "m", config=ALL_VERSIONS)
    with running(f"--model-repository={repository}") as server:
        workers = server.workers()
        (python_model(beside, "m", TIMES_TEN, version=2) / "2").rename(directory / "2")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log(r"model m version 2 ready")
        assert first(server.add_sub("m")[1]) == 20
        assert first(server.add_sub("m/versions/1")[1]) == 2
        assert server.log().count("model m version 1 ready") == 1  # it did not change, nor did config.pbtxt

        shutil.rmtree(directory / "2")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log(r"model m version 2 unloaded")
        assert first(server.add_sub("m")[1]) == 2
        assert set(workers) <= set(server.workers())


def test_a_model_may_come_with_the_request_alone(tmp_path: Path) -> None:
    config = json_config()
    code = base64.b64encode(ADD_SUB.encode()).decode()
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit") as server:
        load = "/v2/repository/models/m/load"
        assert server.post(load, {"parameters": {"config": config}})[0] == 500  # and no files anywhere
        assert server.post(load, {"parameters": {"config": config, "file:1/model.py": code}})[0] == 200
        assert first(server.add_sub("m")[1]) == 2
        assert server.post("/v2/repository/models/m/unload")[0] == 200
        assert server.post(load)[0] == 500
        assert server.post("/v2/repository/models/%2E%2E/load")[0] == 400
        assert server.post("/v2/repository/models/%2E%2E/unload")[0] == 200  # it is not there, as any other


def test_files_of_a_load_request_stay_as_long_as_they_serve(tmp_path: Path) -> None:
    """On the disk, too: they are not left to the garbage collector."""
    root, scratch = tmp_path / "models", tmp_path / "scratch"
    scratch.mkdir()
    python_model(root, "m", "raise ValueError('no weights')")
    config = json_config()
    good, bad = (base64.b64encode(code.encode()).decode() for code in (ADD_SUB, "raise ValueError('no weights')"))
    flags = (f"--model-repository={root}", "--model-control-mode=explicit")
    with running(*flags, prefix=("env", f"TMPDIR={scratch}")) as server:
        load, unload = "/v2/repository/models/m/load", "/v2/repository/models/m/unload"
        before = set(scratch.iterdir())
        for parameters in (
            {"config": "[", "file:1/model.py": good},
            {"config": config, "file:1/model.py": bad},
            {"config": config, "file:1/other.py": good},
            {"config": config, "file:1/model.py": good, "file:1/model.py/x": good},
        ):
            assert server.post(load, {"parameters": parameters})[0] >= 400
            assert set(scratch.iterdir()) == before, parameters

        assert server.post(load, {"parameters": {"config": config, "file:1/model.py": good}})[0] == 200
        (files,) = set(scratch.iterdir()) - before
        assert first(server.add_sub("m")[1]) == 2
        assert set(scratch.iterdir()) - before == {files}
        assert server.post(unload)[0] == 200
        server.wait_for_log("model m version 1 unloaded")
        assert set(scratch.iterdir()) == before


#: tells when it has a request, waits for `go`, and adds 1 if the files of its load are still there
WAITS = (
    ADD_SUB.replace(
        "        replies = []",
        """        import os, time
        signs = os.environ["TMPDIR"]
        open(f"{signs}/came", "w").close()
        while not os.path.exists(f"{signs}/go"):
            time.sleep(0.01)
        replies = []""",
    ).replace("a + b", "a + b + os.path.exists(self.directory + '/extra')")
    + """
    def initialize(self, args):
        self.directory = args["model_repository"]
"""
)


def test_files_of_a_load_request_stay_until_its_last_version_is_closed(tmp_path: Path) -> None:
    root, scratch = tmp_path / "models", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    config = {**json.loads(json_config()), "version_policy": {"all": {}}}
    files = {"1/model.py": ADD_SUB, "2/model.py": WAITS, "extra": ""}
    sent = {f"file:{path}": base64.b64encode(text.encode()).decode() for path, text in files.items()}
    load, answers = "/v2/repository/models/m/load", list[tuple[int, object]]()
    flags = (f"--model-repository={root}", "--model-control-mode=explicit")
    with running(*flags, prefix=("env", f"TMPDIR={scratch}")) as server:
        assert server.post(load, {"parameters": {"config": json.dumps(config), **sent}})[0] == 200
        asking = threading.Thread(target=lambda: answers.append(server.add_sub("m/versions/2")))
        asking.start()
        end = time.monotonic() + PATIENCE
        while not (scratch / "came").exists():
            assert time.monotonic() < end, server.log()
            time.sleep(0.01)
        config["parameters"] = {"k": {"string_value": "2"}}
        assert server.post(load, {"parameters": {"config": json.dumps(config), **sent}})[0] == 200
        server.wait_for_log("model m version 1 unloaded")
        (scratch / "go").touch()
        asking.join()
        assert first(answers[0][1]) == 3


def test_sighup_changes_nothing_in_explicit_mode(tmp_path: Path) -> None:
    python_model(tmp_path, "m")
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit") as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("SIGHUP: nothing to do")
        assert server.add_sub("m")[0] == 404


def test_a_model_whose_files_were_tampered_with_is_not_loaded(tmp_path: Path) -> None:
    parameters = 'parameters { key: "MD5:1/model.py" value: "%s" }'
    agents = 'model_repository_agents { agents { name: "checksum" ' + parameters + " } }\n"
    right = hashlib.md5(ADD_SUB.encode(), usedforsecurity=False).hexdigest()
    python_model(tmp_path, "m", config=ADD_SUB_CONFIG + agents % right)
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--load-model=m") as server:
        assert server.add_sub("m")[0] == 200
        python_model(tmp_path, "m", TIMES_TEN, ADD_SUB_CONFIG + agents % right)
        status, body = server.post("/v2/repository/models/m/load")
        assert status == 500
        said = "failed to load 'm', failed to poll from model repository: Mismatched MD5 hash for file 1/model.py, "
        assert json.loads(body)["error"].startswith(said)
        server.wait_for_log(rf"'m': Mismatched MD5 hash for file 1/model.py, expect: {right}, got: ")
        assert first(server.add_sub("m")[1]) == 2
