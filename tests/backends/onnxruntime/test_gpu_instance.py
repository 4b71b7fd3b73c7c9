"""ONNX models on a stand-in GPU: two batches on their way, memory, and failures. Answers: `test_backend`."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge_serve.backends.base import ArenaMemory, BackendRequest, DeviceLost, InstanceSpec, Timing
from edge_serve.backends.cuda.registered_arena import RegisteredArena
from edge_serve.backends.cuda.tensor_path import PlainOutputs
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.backends.onnxruntime.backend import OnnxRuntimeBackend
from edge_serve.backends.onnxruntime.gpu_instance import OnnxGpuInstance
from edge_serve.backends.onnxruntime.gpu_session import RUNS_PER_WAIT
from edge_serve.backends.onnxruntime.instance import OnnxInstance
from edge_serve.backends.onnxruntime.providers import Provider
from edge_serve.backends.onnxruntime.settings import SessionSettings
from edge_serve.errors import Internal, InvalidArgument, Unavailable
from edge_serve.messages.tensors import Array, DataType, InferTensor
from tests.backends import onnx_models as models
from tests.backends.cuda.counting import CountingCuda
from tests.backends.hosting import RecordingHost, installed, model_spec, request, tensor

NOTHING = {"memory": 0, "streams": 0, "events": 0, "graphs": 0}
CONFIG = {
    "max_batch_size": 8,
    "instance_group": [{"kind": "KIND_GPU"}],
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
}


class Slot:
    """`OutputMemory` of the test's own."""

    inline = 0

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 16, np.uint8)
        self.calls: list[int] = []

    def allocate(self, nbytes: int) -> memoryview:
        self.calls.append(nbytes)
        return self.memory[:nbytes].data


class Scene:
    """A model on the stand-in GPU."""

    def __init__(self, folder: Path, host: CountingCuda) -> None:
        self.folder, self.host = folder / "m", host
        self.backend = OnnxRuntimeBackend(lambda: host)
        self.instances: Sequence[OnnxInstance | OnnxGpuInstance] = []

    def write(self, script: str = "") -> None:
        """Write a model with Y = X, and a script of the stand-in."""
        file = models.identity(self.folder / "1/model.onnx", dims=["N", 4])
        loaded = onnx.load(file)
        loaded.producer_name = script
        onnx.save(loaded, file)

    def open(self, config: dict[str, Any] | None = None, count: int = 1) -> OnnxGpuInstance:
        spec = model_spec(self.folder, config or CONFIG)
        self.instances = self.backend.open(spec, [InstanceSpec(f"m_{i}", "GPU") for i in range(count)])
        assert isinstance(self.instances[0], OnnxGpuInstance)
        return self.instances[0]

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.instances = []
        self.backend.close()


@pytest.fixture
def scene(tmp_path: Path, host: CountingCuda) -> Iterator[Scene]:
    made = Scene(tmp_path, host)
    made.write()
    yield made
    made.close()


def ask(value: int, rows: int = 1) -> BackendRequest:
    return request(tensor("X", np.full((rows, 4), value, np.float32)), outputs=["Y"])


def answers(instance: OnnxGpuInstance, *requests: BackendRequest) -> list[Any]:
    return [reply.outputs[0].array().tolist() for reply in instance.execute(requests, Timing())]


def test_two_batches_are_on_their_way_and_a_third_waits_for_a_seat(scene: Scene) -> None:
    instance = scene.open()
    assert instance.seats == 2
    gate, third = threading.Event(), threading.Event()

    def wait() -> None:
        gate.wait(10)

    scene.host.run(wait, instance._path.compute_stream)

    begun = [instance.begin([ask(value), ask(value + 10, 2)], PlainOutputs(), Timing()) for value in (1, 2)]

    def begin_third() -> None:
        begun.append(instance.begin([ask(3)], PlainOutputs(), Timing()))
        third.set()

    thread = threading.Thread(target=begin_third)
    thread.start()
    assert not third.wait(0.05)
    gate.set()
    for value in (1, 2, 3):
        replies = instance.finish(begun[value - 1])
        third.wait(10)
        assert [reply.outputs[0].array()[0, 0] for reply in replies] == [value, value + 10][: len(replies)]
    thread.join()


def test_outputs_are_views_of_the_replys_slot(scene: Scene) -> None:
    instance, slot = scene.open(), Slot()

    replies = instance.finish(instance.begin([ask(1), ask(2, 3)], slot, timing := Timing()))

    assert slot.calls == [4 * 16]
    addresses = [np.frombuffer(reply.outputs[0].data, np.uint8).ctypes.data for reply in replies]
    assert addresses == [slot.memory.ctypes.data, slot.memory.ctypes.data + 16]
    assert replies[1].outputs[0].array().tolist() == [[2] * 4] * 3
    assert 0 < timing.input_end_ns <= timing.output_start_ns


def test_inputs_are_copied_from_their_own_slots_to_their_place_in_the_batch(scene: Scene) -> None:
    columns = 150_528  # 602 KB
    models.identity(scene.folder / "1/model.onnx", dims=["N", columns])
    config = {
        **CONFIG,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [columns]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [columns]}],
    }
    requests = [request(tensor("X", np.full((1, columns), n, np.float32)), outputs=["Y"]) for n in (1, 2, 3)]
    slots = [np.frombuffer(one.inputs[0].data, np.uint8).ctypes.data for one in requests]
    instance = scene.open(config)
    scene.host.copies.clear()

    replies = instance.execute(requests, Timing())

    assert [reply.outputs[0].array()[0, -1] for reply in replies] == [1, 2, 3]
    inputs = [copy for copy in scene.host.copies if copy.source in slots]
    assert [copy.source for copy in inputs] == slots
    start = inputs[0].target
    assert [(copy.target, copy.nbytes) for copy in inputs] == [(start + n * columns * 4, columns * 4) for n in range(3)]
    # the outputs of the stand-in get to the device, and from there to the host, as one piece
    assert len(scene.host.copies) == len(inputs) + 2


class Arena:
    """Tensor memory of a model, and the slot of a reply in it."""

    inline = 0
    at = 1 << 20

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, 4 << 20))
        self.memory = ArenaMemory(self.view, lambda nbytes: nbytes)

    def allocate(self, nbytes: int) -> memoryview:
        return self.view[self.at : self.at + nbytes]

    def input(self, at: int, array: Array) -> InferTensor:
        data = self.view[at : at + array.nbytes]
        data[:] = array.tobytes()
        return InferTensor("X", DataType.FP32, array.shape, data)


@pytest.mark.parametrize("host", [True], indirect=True)
def test_an_integrated_device_uses_tensors_where_they_lie(scene: Scene) -> None:
    arena, rows = Arena(), [np.full((1, 64), value, np.float32) for value in (1, 2, 3)]
    models.identity(scene.folder / "1/model.onnx", dims=["N", 64])
    tensors = [{"name": name, "data_type": "TYPE_FP32", "dims": [64]} for name in "XY"]
    spec = model_spec(scene.folder, {**CONFIG, "input": tensors[:1], "output": tensors[1:]})
    spec.arena = arena.memory
    scene.instances = scene.backend.open(spec, [InstanceSpec("m_0", "GPU")])
    (instance,) = scene.instances
    assert isinstance(instance, OnnxGpuInstance)

    def ask_for(*places: int) -> tuple[list[Any], int]:
        batch = [request(arena.input(at, row), outputs=["Y"]) for at, row in zip(places, rows, strict=False)]
        before = len(scene.host.copies)
        replies = instance.finish(instance.begin(batch, arena, Timing()))
        return [reply.outputs[0].array()[0, 0] for reply in replies], len(scene.host.copies) - before

    answers, copies = ask_for(0)
    assert (answers, copies > 0) == ([1], True)  # nothing is registered yet
    registered = instance._path._registered
    assert isinstance(registered, RegisteredArena)
    while (grower := registered._grower) is not None:
        grower.join()
    assert ask_for(0) == ([1], 0)
    assert ask_for(256, 512, 768) == ([1, 2, 3], 0)
    answers, copies = ask_for(0, 4096)  # not one after the other
    assert (answers, copies) == ([1, 2], 2)


def test_memory_on_the_device_is_that_of_the_largest_batch_and_stays(scene: Scene) -> None:
    instance = scene.open()
    answers(instance, ask(1)), answers(instance, ask(1))
    before = scene.host.open_handles()
    for rows in (1, 8, 3):
        assert answers(instance, ask(rows, rows)) == [[[rows] * 4] * rows]
    assert scene.host.open_handles() == before


def test_one_run_of_many_waits_so_that_the_library_releases_pinned_memory(scene: Scene) -> None:
    instance = scene.open()
    deferred = []
    for value in range(3 * instance.seats * RUNS_PER_WAIT):
        assert answers(instance, ask(value)) == [[[value] * 4]]
        deferred.append(instance._gpu.session.deferred)

    assert max(deferred) < instance.seats * RUNS_PER_WAIT
    assert deferred.count(0) <= 3 * instance.seats, "the others do not wait"


def test_everything_is_released_at_close(scene: Scene) -> None:
    instance = scene.open(count=2)
    assert answers(instance, ask(5)) == [[[5] * 4]]
    assert scene.host.open_handles()["streams"] == 2 * 2

    del instance
    scene.close()

    assert scene.host.open_handles() == NOTHING


def test_a_load_that_fails_releases_what_it_took(scene: Scene) -> None:
    wrong = {**CONFIG, "output": [{"name": "NOPE", "data_type": "TYPE_FP32", "dims": [4]}]}
    with pytest.raises(InvalidArgument, match="unexpected inference output 'NOPE'"):
        scene.open(wrong)
    (scene.folder / "1/model.onnx").write_bytes(b"nothing")
    with pytest.raises(Internal, match="Protobuf parsing failed"):
        scene.open()
    assert scene.host.open_handles() == NOTHING


def test_a_model_that_is_described_and_not_loaded_leaves_nothing(scene: Scene) -> None:
    backend = OnnxRuntimeBackend(lambda: scene.host)
    backend.complete_config(model_spec(scene.folder, {"instance_group": [{"kind": "KIND_GPU"}]}))
    assert scene.host.open_handles()["streams"] == 2

    del backend

    assert scene.host.open_handles() == NOTHING


def test_the_session_that_completes_the_configuration_is_the_first_instances(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[Provider]] = []
    make = sessions.make

    def record(path: Path, settings: SessionSettings, wanted: list[Provider], name: str) -> sessions.Session:
        made.append(wanted)
        return make(path, settings, wanted, name)

    monkeypatch.setattr(sessions, "make", record)
    spec = model_spec(scene.folder, {"instance_group": [{"kind": "KIND_GPU"}]})

    spec.config = scene.backend.complete_config(spec)
    scene.instances = scene.backend.open(spec, [InstanceSpec("m_0", "GPU"), InstanceSpec("m_1", "GPU")])

    streams = [wanted[0].options["user_compute_stream"] for wanted in made]
    assert len(set(streams)) == len(streams) == 2
    assert spec.config["max_batch_size"] == 4


def test_a_model_with_states_has_one_seat(scene: Scene) -> None:
    state = {"input_name": "X", "output_name": "Y", "data_type": "TYPE_FP32", "dims": [4]}
    config = {**CONFIG, "input": [], "output": [], "sequence_batching": {"state": [state]}}
    assert scene.open(config).seats == 1


# -- failures


def test_a_run_that_the_library_refuses_fails_its_batch_alone(scene: Scene) -> None:
    scene.write("refuse")
    instance = scene.open()
    for _ in range(3):  # a seat that is not released would hang
        with pytest.raises(Internal, match="onnx runtime error 1: Non-zero status code") as caught:
            instance.begin([ask(1)], Slot(), Timing())
        assert not isinstance(caught.value, DeviceLost)
    assert instance.is_ready()


@pytest.mark.parametrize("script", ["lose", "lose later"])
def test_an_error_that_ends_the_use_of_the_device(scene: Scene, script: str) -> None:
    scene.write(script)
    instance = scene.open()
    with pytest.raises(DeviceLost, match="an illegal memory access was encountered"):
        instance.finish(instance.begin([ask(1)], Slot(), Timing()))
    with pytest.raises(DeviceLost):
        instance.begin([ask(1)], Slot(), Timing())
    assert not instance.is_ready()
    instance.close()


def test_a_device_that_is_lost_without_a_word_of_the_library(scene: Scene) -> None:
    scene.write("refuse")
    instance = scene.open()

    def fault() -> None:
        raise ValueError("a kernel that reads where it should not")

    scene.host.run(fault, instance._path.compute_stream)
    with pytest.raises(DeviceLost):
        instance.begin([ask(1)], Slot(), Timing())


def test_a_device_without_memory(scene: Scene) -> None:
    instance = scene.open()
    scene.host.fail("cudaMalloc", 2)
    with pytest.raises(
        Internal, match=r"out of memory; 0\.3 kB were asked for, and .* are free on the device: unload"
    ) as caught:
        instance.begin([ask(1)], Slot(), Timing())
    assert not isinstance(caught.value, DeviceLost)
    assert answers(instance, ask(7)) == [[[7] * 4]]


# -- where the library copies


def test_without_calls_of_cuda_the_library_copies_and_the_log_says_so(scene: Scene) -> None:
    def no_cuda() -> CountingCuda:
        raise Unavailable("CUDA cannot be used: cuda-bindings: not installed")

    recorded, backend = RecordingHost(), OnnxRuntimeBackend(no_cuda)
    with installed(recorded):
        (instance,) = backend.open(model_spec(scene.folder, CONFIG), [InstanceSpec("m_0", "GPU")])
    (reply,) = instance.execute([ask(4)], Timing())

    assert isinstance(instance, OnnxInstance)
    assert reply.outputs[0].array().tolist() == [[4] * 4]
    assert recorded.lines == [
        ("WARNING", "model 'm': ONNX Runtime copies inputs and outputs itself: CUDA cannot be used: cuda-bindings: not "
                    "installed")
    ]  # fmt: skip


def test_strings_are_copied_by_the_library(scene: Scene) -> None:
    models.identity(scene.folder / "1/model.onnx", models.STRING)
    spec = model_spec(scene.folder, {"instance_group": [{"kind": "KIND_GPU"}]})
    spec.config = scene.backend.complete_config(spec)
    (instance,) = scene.backend.open(spec, [InstanceSpec("m_0", "GPU")])

    (reply,) = instance.execute([request(tensor("X", np.array([[b"a"]], object)), outputs=["Y"])], Timing())

    assert isinstance(instance, OnnxInstance)
    assert reply.outputs[0].array().tolist() == [[b"a"]]
    instance.close()
    scene.close()
    assert scene.host.open_handles() == NOTHING
