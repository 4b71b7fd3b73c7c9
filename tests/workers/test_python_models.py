"""Models of the python backend: a process for each instance, and their code in its main thread."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import InstanceSpec, Reply
from edge_serve.errors import Internal
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.front.bls_broker import Answer
from edge_serve.workers.front.process import Process
from edge_serve.workers.front.workers import Hooks, ProcessLimits, Workers
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.frames import BUSY_BEAT
from tests.stories import played
from tests.workers.harness import Recorder, run, serving, spec, values

MODEL = """
import os, pathlib, signal, sys, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [3]})
        return config

    def initialize(self, args):
        assert threading.current_thread() is threading.main_thread()
        assert sys.argv == [""]
        self.directory = pathlib.Path(args["model_repository"])
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def execute(self, requests):
        main = threading.current_thread() is threading.main_thread()
        answers = []
        for request in requests:
            (value,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            answer = np.array([value, os.getpid(), main], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return answers

    def finalize(self):
        (self.directory / f"finalized-{os.getpid()}").touch()
"""

CONFIG = {"name": "echo", "backend": "python"}
FACE = (("input", ["IN"]), ("output", ["OUT", "SAME"]))


@played
async def test_each_instance_has_its_own_process_and_main_thread(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(MODEL)
    workers, arena, listener = Workers(), Arena("m", Budget(1 << 20)), Recorder()
    completed = await workers.describe(spec(tmp_path, CONFIG), "python")
    assert [entry["name"] for entry in completed["input"]] == ["IN"]
    instances = [InstanceSpec("echo_0_0"), InstanceSpec("echo_0_1")]
    model = await workers.open(spec(tmp_path, completed), "python", instances, listener, arena)
    pids = model.pids()
    assert len(set(pids)) == 2
    for instance in range(2):
        for sent in pids:
            os.kill(sent, signal.SIGINT)
            os.kill(sent, signal.SIGTERM)
        data = (41 + instance).to_bytes(4, "little")
        model.execute(
            instance, instance, [InferRequest("echo", inputs=[InferTensor("IN", DataType.INT32, (1,), data)])]
        )
        assert values((await listener.reply(instance)).replies[0]) == [41 + instance, pids[instance], 1]
    assert not await model.refusal(5)
    os.kill(pids[1], signal.SIGKILL)
    assert (await listener.lost(1)).message.startswith(
        "Failed to process the request(s) for model instance 'echo_0_1', message: Stub process 'echo_0_1' is not "
        "healthy. Its worker was ended by SIGKILL (the machine may be out of memory"
    )
    await listener.back(1)
    pids = model.pids()
    await model.close()
    assert {path.name for path in tmp_path.iterdir()} == {"1", "backend.py", *(f"finalized-{pid}" for pid in pids)}
    assert workers.workers() == 0
    arena.close()


@played
async def test_an_idle_worker_sends_no_heartbeats_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the load, in the main thread, ends when the model closes: the model runs there."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(MODEL)
    workers, arena, received = Workers(), Arena("m", Budget(1 << 20)), list[int]()
    made, instances = spec(tmp_path, CONFIG), [InstanceSpec("echo_0")]
    model = await workers.open(made, "python", instances, Recorder(), arena)
    monkeypatch.setattr(Process, "_note_sign", lambda process: received.append(process.pid))
    await asyncio.sleep(5 * BUSY_BEAT)
    assert len(received) <= 1, "the last one may have been on its way"
    await model.close()
    await workers.stop()
    arena.close()


#: answers with the first and the last value of the request before, which it keeps
KEEPS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    kept = None

    def execute(self, requests):
        answers = []
        for request in requests:
            answer = np.array([-1, -1] if self.kept is None else self.kept[[0, -1]], np.int32)
            self.kept = request.inputs()[0].as_numpy()[1:]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return answers
"""
#: answers with its input, and whether that lies in the arena
PASSES_ON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    {execute}(self, requests):
        answers = []
        for request in requests:
            value = request.inputs()[0].as_numpy()
            if value[0] == 1:
                raise ValueError("the first one fails")
            answer = pb_utils.Tensor("OUT", np.array([lent(value.ctypes.data)], np.int32))
            answers.append(pb_utils.InferenceResponse([answer, pb_utils.Tensor("SAME", value[:])]))
        return answers

def lent(address):
    for line in open("/proc/self/maps"):
        first, end = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < end:
            return "edge-serve:" in line
"""


async def answers_to_large_requests(directory: Path, code: str) -> list[Reply]:
    """Return the replies to four requests of 100000 equal numbers, 1 to 4, which get the same slot."""
    (directory / "1").mkdir()
    (directory / "1" / "model.py").write_text(code)
    face = {key: [{"name": name, "data_type": "TYPE_INT32", "dims": [-1]} for name in names] for key, names in FACE}
    replies = []
    async with serving(directory, CONFIG | face, backend="python") as served:
        for number in range(1, 5):
            data = np.full(100_000, number, np.int32).tobytes()
            inputs = [InferTensor("IN", DataType.INT32, (100_000,), data)]
            answer = await served.ask(InferRequest("echo", inputs=inputs))
            for tensor in answer.replies[0].outputs:
                tensor.data = bytes(tensor.data)
            if answer.lease is not None:
                answer.lease.release()
            replies += answer.replies
    return replies


def test_a_large_input_that_a_model_keeps_does_not_change(tmp_path: Path) -> None:
    replies = run(answers_to_large_requests(tmp_path, KEEPS))
    assert [values(reply) for reply in replies] == [[-1, -1], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("execute", ["def execute", "async def execute"])
def test_large_inputs_are_not_copied_for_a_model_that_keeps_none(tmp_path: Path, execute: str) -> None:
    replies = run(answers_to_large_requests(tmp_path, PASSES_ON.replace("{execute}", execute)))
    assert replies[0].error is not None
    assert [values(reply) for reply in replies[1:]] == [[True]] * 3
    assert [values(reply, 1)[-1] for reply in replies[1:]] == [2, 3, 4]


#: answers with the numbers of its inputs, in the order in which it has them
LISTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers(request))]) for request in requests]

def numbers(request):
    return np.array([int(tensor.name()) for tensor in request.inputs()], np.int32)
"""


@played
async def test_a_model_gets_its_inputs_in_the_order_of_the_client(tmp_path: Path) -> None:
    """A model may take `request.inputs()[0]`."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(LISTS)
    face = {
        key: [{"name": name, "data_type": "TYPE_INT32", "dims": [-1]} for name in names]
        for key, names in (("input", ["1", "2", "3"]), ("output", ["OUT"]))
    }
    async with serving(tmp_path, CONFIG | face, backend="python") as served:
        for order in ("312", "123", "231", "312"):
            inputs = [InferTensor(name, DataType.INT32, (1,), bytes(4)) for name in order]
            reply = await served.ask(InferRequest("echo", inputs=inputs))
            assert values(reply.replies[0]) == [int(name) for name in order]


@played
async def test_questions_about_health_share_one_is_ready_and_one_that_hangs_delays_nothing(tmp_path: Path) -> None:
    for name, deed in (("hangs", "threading.Event().wait()"), ("slow", "return not threading.Event().wait(0.5)")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(f"{MODEL}    def is_ready(self):\n        {deed}\n")
    workers, arena, listener = Workers(ProcessLimits(close=1)), Arena("m", Budget(1 << 20)), Recorder()
    hangs, slow = [
        await workers.open(
            spec(tmp_path / name, await workers.describe(spec(tmp_path / name, CONFIG), "python")),
            "python", [InstanceSpec(name)], listener, arena,
        )
        for name in ("hangs", "slow")
    ]  # fmt: skip
    threads = Path(f"/proc/{hangs.pids()[0]}/task")
    assert await hangs.refusal(0.05)
    before = len(list(threads.iterdir()))
    answers = await asyncio.gather(*(hangs.refusal(0.2) for _ in range(20)), *(slow.refusal(20) for _ in range(3)))
    assert answers == ["its worker did not answer within 0.2 s whether it is ready"] * 20 + [""] * 3
    assert len(list(threads.iterdir())) == before
    one = InferTensor("IN", DataType.INT32, (1,), (41).to_bytes(4, "little"))
    hangs.execute(0, 1, [InferRequest("echo", inputs=[one])])
    assert values((await listener.reply()).replies[0])[0] == 41
    await asyncio.gather(hangs.close(), slow.close())
    await workers.stop()
    arena.close()


ASKS_ALWAYS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        pb_utils.load_model("auto_complete_config")
        return config

    def initialize(self, args):
        pb_utils.load_model("initialize")

    def execute(self, requests):
        return []

    def finalize(self):
        pb_utils.load_model("finalize")
"""


def test_a_question_says_whether_a_load_waits_for_the_answer(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def control(question: dict[str, Any], answer: Answer, loading: bool) -> None:
        asked.append((question["model_name"], loading))
        answer({})

    async def work() -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "model.py").write_text(ASKS_ALWAYS)
        workers, arena, listener = Workers(hooks=Hooks(control=control)), Arena("m", Budget(1 << 20)), Recorder()
        made = spec(tmp_path, CONFIG)
        await workers.describe(made, "python")
        opened = await workers.open(made, "python", [InstanceSpec("echo_0")], listener, arena)
        os.kill(opened.pids()[0], signal.SIGKILL)
        await listener.lost()
        await listener.back()
        await opened.close()
        await workers.stop()
        arena.close()

    run(work())
    assert asked == [("auto_complete_config", True), ("initialize", True), ("initialize", False), ("finalize", False)]


@pytest.mark.parametrize("method", ["auto_complete_config(config)", "initialize(self, args)"])
def test_a_load_that_hangs_is_reported_with_the_line_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    code = f"import subprocess\nclass TritonPythonModel:\n  def {method}:\n    subprocess.run(['sleep', '60'])\n"
    static = code.replace("  def auto", "  @staticmethod\n  def auto")

    async def work() -> str:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "model.py").write_text(static + "  def execute(self, requests): return []\n")
        workers, arena = Workers(ProcessLimits(load=1.5, slow_load=0.7, silence=0.6)), Arena("m", Budget(1 << 20))
        made = spec(tmp_path, CONFIG)
        describing = workers.describe(made, "python")
        opening = workers.open(made, "python", [InstanceSpec("echo_0")], Recorder(), arena)
        hangs, unused = (describing, opening) if "config" in method else (opening, describing)
        unused.close()
        with pytest.raises(Internal) as caught:
            await hangs
        arena.close()
        return caught.value.message

    message = run(work())

    line = static[: static.index("subprocess.run")].count("\n") + 1
    place = f"in {method.partition('(')[0]}, {tmp_path}/1/model.py line {line}"
    assert message == f"model 'echo' did not load within 1.5 s: it was {place}"
    (record,) = (one for one in caplog.records if "has been loading" in one.message)
    assert record.message == f"model echo has been loading for 1 s: it is {place}; its limit is 2 s"
    assert record.levelname == "WARNING"
