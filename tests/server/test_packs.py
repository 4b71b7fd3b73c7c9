"""Backend packs in a running server: interpreters of their own, shared workers, replacement, and broken packs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_serve.commands.check import run as check
from tests.server.running import PATIENCE, Running, python_model, running
from tests.workers.venvs import make_environment

pytestmark = pytest.mark.slow  # a server for each pack

#: tells the process and the environment that a model runs in, beside twice its input
BACKEND = """
import os, sys
import numpy as np
import clash
from edge_serve.backends.base import Reply
from edge_serve.tensors import DataType, Tensor, from_array
from .factor import FACTOR

class Backend:
    def complete_config(self, spec):
        return {
            **spec.config,
            "max_batch_size": 8,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [
                {"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]},
                {"name": "WHERE", "data_type": "TYPE_STRING", "dims": [1]},
            ],
        }

    def open(self, spec, instances):
        return [Instance() for _ in instances]

    def close(self):
        pass

class Instance:
    def execute(self, batch, timing):
        return [self.one(request) for request in batch]

    def one(self, request):
        y = request.inputs[0].array() * FACTOR
        where = np.full((len(y), 1), f"{os.getpid()} {clash.__version__} {sys.prefix}".encode(), object)
        return Reply([
            Tensor("Y", DataType.FP32, y.shape, from_array(y, DataType.FP32)),
            Tensor("WHERE", DataType.BYTES, where.shape, from_array(where, DataType.BYTES)),
        ])

    def is_ready(self):
        return True

    def close(self):
        pass
"""
#: as Triton's vllm_backend: its inputs and policy are its own, its engine is a library of the environment, it imports a
#: package beside it, and it answers from another thread
PYTHON_BASED = """
import json, os, threading
import numpy as np
import triton_python_backend_utils as pb_utils
from vllm import Engine
from utils.words import decoded

class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_model_transaction_policy(dict(decoupled=True))
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.config)
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.engine = Engine(**json.load(file))
        self.loud = "LOUD" in self.config["parameters"]

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        text = decoded(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0])
        for word in self.engine.generate(text.upper() if self.loud else text):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([word], object))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STAND_IN = """
class Engine:
    def __init__(self, model, words):
        self.model, self.words = model, words

    def generate(self, text):
        yield from (f"{self.model}:{text}{number}" for number in range(self.words))
"""


def make_pack(root: Path, name: str, clash: str, factor: int = 2) -> Path:
    """Write a pack with an environment, as its installer would; its directory."""
    directory = root / name
    make_environment(directory / "venv", clash=clash)
    (directory / "backend.py").write_text(BACKEND)
    (directory / "factor.py").write_text(f"FACTOR = {factor}\n")
    (directory / "pack.json").write_text(json.dumps({"name": name, "version": clash}))
    return directory


def make_python_based(root: Path) -> None:
    """Write a python-based backend with a stand-in for its library in its environment."""
    directory = root / "vllm"
    make_environment(directory / "venv")
    (site,) = directory.glob("venv/lib/python*/site-packages")
    (site / "vllm.py").write_text(STAND_IN)
    (directory / "utils").mkdir()
    (directory / "utils/words.py").write_text("def decoded(word):\n    return word.decode()\n")
    (directory / "model.py").write_text(PYTHON_BASED)
    (directory / "pack.json").write_text("{}")


def make_model(root: Path, name: str, config: str) -> Path:
    """Write a model whose file no backend reads; its directory."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    return root / name


def ask(server: Running, model: str) -> tuple[list[float], str, str, str]:
    """Return a model's answer: Y, its process, the version of clash, and the prefix of its interpreter."""
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}]}
    status, answer = server.post(f"/v2/models/{model}/infer", body)
    assert status == 200, answer
    y, where = json.loads(answer)["outputs"]
    return y["data"], *where["data"][0].split(" ")


def index(server: Running) -> dict[str, Any]:
    status, body = server.post("/v2/repository/index")
    assert status == 200
    return {entry["name"]: entry for entry in json.loads(body)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository and a backend directory with two packs whose libraries clash, and a python-based backend."""
    root = tmp_path_factory.mktemp("packs")
    backends, models = root / "backends", root / "models"
    make_pack(backends, "first", "1.0")
    make_pack(backends, "second", "2.0", factor=3)
    make_python_based(backends)
    for name in ("a", "b"):
        make_model(models, name, 'backend: "first"')
    make_model(
        models, "alone", 'backend: "first" parameters { key: "EDGE_SERVE_WORKER" value { string_value: "own" } }'
    )
    make_model(models, "c", 'backend: "second"')
    for name, extra in (("chat", ""), ("loud", ' parameters { key: "LOUD" value { string_value: "1" } }')):
        model = make_model(models, name, f'backend: "vllm"{extra}')
        (model / "1/model.json").write_text('{"model": "tiny", "words": 3}')
    python_model(models, "add")
    return root


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Running]:
    arguments = (f"--model-repository={place / 'models'}", f"--backend-directory={place / 'backends'}")
    with running(*arguments) as started:
        yield started


def test_each_pack_has_its_own_libraries(server: Running, place: Path) -> None:
    y, _, clash, prefix = ask(server, "a")
    assert (y, clash, prefix) == ([2, 6], "1.0", str(place / "backends/first/venv"))
    y, _, clash, prefix = ask(server, "c")
    assert (y, clash, prefix) == ([3, 9], "2.0", str(place / "backends/second/venv"))
    assert server.add_sub("add")[0] == 200


def test_models_of_one_pack_share_a_worker_and_packs_do_not(server: Running) -> None:
    workers = {name: ask(server, name)[1] for name in ("a", "b", "alone", "c")}
    assert workers["a"] == workers["b"]
    assert len(set(workers.values())) == 3


def test_a_python_based_backend_completes_its_configuration_and_streams(server: Running) -> None:
    status, body = server.get("/v2/models/chat/config")
    config = json.loads(body)
    assert status == 200
    assert (config["backend"], config["runtime"], config["max_batch_size"]) == ("vllm", "model.py", 0)
    assert config["model_transaction_policy"] == {"decoupled": True}
    status, body = server.post("/v2/models/chat/generate_stream", {"text_input": "hi"})
    assert status == 200
    assert re.findall(r'"text_output":"([^"]*)"', body.decode()) == ["tiny:hi0", "tiny:hi1", "tiny:hi2"]
    status, body = server.post("/v2/models/loud/generate_stream", {"text_input": "hi"})
    assert re.findall(r'"text_output":"([^"]*)"', body.decode()) == ["tiny:HI0", "tiny:HI1", "tiny:HI2"]


def test_a_worker_of_a_pack_that_dies_is_started_again(server: Running) -> None:
    _, pid, *_ = ask(server, "c")
    os.kill(int(pid), signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while True:
        status, answer = server.post(
            "/v2/models/c/infer", {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        )
        if status == 200:
            break
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    assert ask(server, "c")[1] != pid


def test_check_finds_the_packs(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--backend-directory={place / 'backends'}", "--infer", "--model=a", "--model=chat"]
    assert check([*arguments, str(place / "models")]) == 0
    out = capfd.readouterr().out
    assert re.search(r"^ok\s+a ", out, re.MULTILINE)
    assert re.search(r"^ok\s+chat ", out, re.MULTILINE)
    assert "2 of 2 models answer as their configuration says" in out


def test_a_replaced_pack_serves_the_models_that_are_loaded_after_it(tmp_path: Path) -> None:
    make_pack(tmp_path / "backends", "first", "1.0")
    for name in ("old", "new"):
        make_model(tmp_path / "models", name, 'backend: "first"')
    arguments = ("--model-control-mode=explicit", "--load-model=old", "--exit-on-error=false")
    with running(
        f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}", *arguments
    ) as server:
        assert ask(server, "old")[0] == [2, 6]
        (tmp_path / "backends/first").rename(tmp_path / "before")
        make_pack(tmp_path / "backends", "first", "3.0", factor=5)
        assert server.post("/v2/repository/models/new/load")[0] == 200
        assert (ask(server, "new")[0], ask(server, "new")[2]) == ([5, 15], "3.0")
        assert ask(server, "old")[0] == [2, 6]
        assert server.post("/v2/repository/models/old/load")[0] == 200  # a changed pack is a change of the model
        assert ask(server, "old")[0] == [5, 15]
        assert server.post("/v2/repository/models/old/load")[0] == 200
        server.wait_for_log("model old is unchanged, nothing to load")  # a thread writes the log
        assert server.log().count("model old is unchanged, nothing to load") == 1


def _without_numpy(pack: Path) -> None:
    (numpy,) = pack.glob("venv/lib/python*/site-packages/numpy")
    numpy.unlink()


def _without_library(pack: Path) -> None:
    (clash,) = pack.glob("venv/lib/python*/site-packages/clash")
    shutil.rmtree(clash)


def _without_python(pack: Path) -> None:
    for python in (pack / "venv/bin").glob("python*"):
        python.unlink()
        python.symlink_to("/nowhere/python3.9")


def _not_executable(pack: Path) -> None:
    (pack / "venv/bin/python").unlink()
    (pack / "venv/bin/python").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))
    (pack / "venv/bin/python").chmod(0o755)


def _killed(pack: Path) -> None:
    (pack / "backend.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGILL)\ntime.sleep(20)\n")


BROKEN = {
    "numpy": (_without_numpy, r"has no NumPy that can be imported \(ModuleNotFoundError.*: install it again"),
    "interpreter": (_without_python, r"is a link to '/nowhere/python3.9', which does not lead to a Python"),
    "processor": (_not_executable, r"cannot be started: .*Exec format error"),
    "manifest": (lambda pack: (pack / "pack.json").unlink(), "is half installed, it has no pack.json"),
    "machine": (lambda pack: (pack / "pack.json").write_text('{"architectures": ["riscv64"]}'), "is for riscv64, and"),
    "library": (_without_library, "needs the module 'clash', which .*/library/venv/bin/python lacks: install it again"),
    "instruction": (_killed, r"was ended by SIGILL \(a library needs an instruction that this processor lacks"),
}  # fmt: skip


def test_broken_packs_say_why_and_the_other_models_are_served(tmp_path: Path) -> None:
    for name, (breaks, _) in BROKEN.items():
        breaks(make_pack(tmp_path / "backends", name, "1.0"))
        make_model(tmp_path / "models", f"m_{name}", f'backend: "{name}"')
    make_model(tmp_path / "models", "absent", 'backend: "fil"')
    make_pack(tmp_path / "backends", "first", "1.0")
    make_model(tmp_path / "models", "good", 'backend: "first"')
    with running(
        f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}",
        "--exit-on-error=false",
    ) as server:  # fmt: skip
        reasons = {name: entry.get("reason", "") for name, entry in index(server).items()}
        for name, (_, said) in BROKEN.items():
            assert re.search(said, reasons[f"m_{name}"]), (name, reasons[f"m_{name}"])
        assert "edge-serve pack install fil" in reasons["absent"]
        assert ask(server, "good")[0] == [2, 6]


def test_a_model_of_tensorflow_is_served_by_the_pack_that_is_there(tmp_path: Path) -> None:
    make_pack(tmp_path / "backends", "openvino", "1.0")
    model = make_model(tmp_path / "models", "graph", 'platform: "tensorflow_graphdef"')
    (model / "1/model.graphdef").touch()
    with running(f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}") as server:
        assert ask(server, "graph")[0] == [2, 6]
        assert server.log().count("model graph: backend 'tensorflow' is served by the pack 'openvino'") == 1
        assert json.loads(server.get("/v2/models/graph/config")[1])["platform"] == "tensorflow_graphdef"


def test_an_interpreter_of_the_server_runs_a_pack_without_one(tmp_path: Path) -> None:
    directory = tmp_path / "backends/plain"
    directory.mkdir(parents=True)
    (directory / "backend.py").write_text(BACKEND.replace("import clash\n", "").replace("clash.__version__", "'none'"))
    (directory / "factor.py").write_text("FACTOR = 7\n")
    make_model(tmp_path / "models", "m", 'backend: "plain"')
    with running(f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}") as server:
        y, _, clash, prefix = ask(server, "m")
        assert (y, clash, prefix) == ([7, 21], "none", sys.prefix)
