"""Instances on the stand-ins for CUDA and TensorRT, in this process: what runs, what is freed, and what fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import BackendRequest, DeviceLost, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.backends.cuda.api import CudaError
from edge_serve.backends.cuda.tensor_path import PlainOutputs
from edge_serve.backends.tensorrt.backend import TensorRtBackend
from edge_serve.backends.tensorrt.instance import TensorRtInstance
from edge_serve.backends.tensorrt.library import load_library
from edge_serve.errors import EdgeServeError, Internal, Unavailable, Unsupported
from edge_serve.messages.tensors import DataType, InferTensor
from tests.backends.cuda.host import HostCuda
from tests.stand_ins.plans import OPERATIONS, Arrays, plan, tensor

STAND_INS = Path(__file__).parents[2] / "stand_ins"
STAND_IN_MODULES = ("cuda", "pycuda", "tensorrt")
SHAPES = ((1, 4), (2, 4), (8, 4))


@pytest.fixture
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCuda]:
    """Yield the devices of the stand-ins, which are importable in the test. The parameter is TensorRT's version."""
    monkeypatch.setenv("STAND_IN_TENSORRT", getattr(request, "param", "10.3.0"))
    monkeypatch.syspath_prepend(str(STAND_INS))
    forget()
    monkeypatch.setitem(sys.modules, "tensorrt", import_module("tensorrt"))
    yield import_module("cuda.bindings.runtime").host
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in STAND_IN_MODULES]:
        del sys.modules[name]


def spec(folder: Path, content: bytes, **config: Any) -> ModelSpec:
    directory = folder / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.plan").write_bytes(content)
    groups = [{"name": "m_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}]
    return ModelSpec("m", 1, directory.parent, directory, {"name": "m", "instance_group": groups, **config})


def identity(**more: Any) -> bytes:
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    return plan(more.pop("op", "identity"), both, [{"INPUT0": SHAPES}], **more)


def opened(host: HostCuda, model: ModelSpec) -> tuple[TensorRtBackend, TensorRtInstance]:
    backend = TensorRtBackend(partial(load_library, cuda=lambda: host))
    model.config = backend.complete_config(model)
    (instance,) = backend.open(model, [InstanceSpec("m_0_0", "GPU", 0)])
    return backend, instance


def request(array: Any, name: str = "INPUT0", outputs: Sequence[str] = ("OUTPUT0",)) -> BackendRequest:
    data = InferTensor(name, DataType.FP32, array.shape, memoryview(array).cast("B"))
    return BackendRequest("", [data], outputs, {}, 0, 0, 0, 0, lambda: False)


def values(reply: Reply) -> Any:
    return reply.outputs[0].array().copy()


def test_plan_may_be_overwritten_in_place_while_it_loads(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp` and `scp` truncate the file first. A mapping of it would end the process with SIGBUS."""
    model = spec(tmp_path, identity())
    file = model.version_directory / "model.plan"
    runtime = sys.modules["tensorrt"].Runtime
    deserialize = runtime.deserialize_cuda_engine

    def overwrite(self: Any, content: Any) -> Any:
        file.write_bytes(b"")
        try:
            return deserialize(self, content)
        finally:
            file.write_bytes(identity())

    monkeypatch.setattr(runtime, "deserialize_cuda_engine", overwrite)
    _, instance = opened(host, model)
    part = np.ones((2, 4), np.float32)
    assert (values(instance.execute([request(part)], Timing())[0]) == part).all()

    file.write_bytes(identity()[:40])
    with pytest.raises(Internal, match="unable to create TensorRT engine"):
        opened(host, model)


def test_requests_of_a_batch_keep_their_rows(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity()))
    parts = [np.random.default_rng(n).random((n, 4)).astype(np.float32) for n in (1, 3, 2)]
    timing = Timing()

    replies = instance.execute([request(part) for part in parts], timing)

    assert all((values(reply) == part).all() for reply, part in zip(replies, parts, strict=True))
    assert 0 < timing.input_end_ns <= timing.output_start_ns


def test_settings_of_a_model_reach_cuda_and_tensorrt(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`busy_wait_events`, `priority`, `execution_context_allocation_strategy`; one engine for all instances."""
    told: dict[str, set[Any]] = {"blocking": set(), "priority": set(), "strategy": set(), "engines": set()}
    module = sys.modules["tensorrt"]
    create_event, create_stream = host.event_create, host.stream_create
    create_context = module.ICudaEngine.create_execution_context

    def event(**flags: bool) -> int:
        told["blocking"].add(flags["blocking"])
        return create_event(**flags)

    def stream(priority: int = 0) -> int:
        told["priority"].add(priority)
        return create_stream(priority)

    def context(engine: Any, strategy: Any) -> Any:
        told["strategy"].add(strategy.name)
        told["engines"].add(engine)
        return create_context(engine, strategy)

    monkeypatch.setattr(host, "event_create", event)
    monkeypatch.setattr(host, "stream_create", stream)
    monkeypatch.setattr(module.ICudaEngine, "create_execution_context", context)
    config = {
        "optimization": {"priority": "PRIORITY_MAX", "cuda": {"busy_wait_events": True}},
        "parameters": {"execution_context_allocation_strategy": {"string_value": "ON_PROFILE_CHANGE"}},
    }
    backend = TensorRtBackend(partial(load_library, cuda=lambda: host))
    model = spec(tmp_path, identity(), **config)
    model.config = backend.complete_config(model)

    assert len(backend.open(model, [InstanceSpec(f"m_0_{number}", "GPU", 0) for number in range(3)])) == 3
    assert (told["blocking"], told["strategy"], len(told["engines"])) == ({False}, {"ON_PROFILE_CHANGE"}, 1)
    assert host.stream_priority_range()[1] in told["priority"]


@pytest.mark.parametrize("host", ["8.6.1"], indirect=True)
@pytest.mark.parametrize(("rows", "engines"), [(-1, 2), (4, 1)], ids=["dynamic", "static"])
def test_instances_of_8_6_have_engines_of_their_own(host: HostCuda, tmp_path: Path, rows: int, engines: int) -> None:
    """A profile has one context there; without dynamic shapes, instances share the engine."""
    both = [tensor("INPUT0", "INPUT", "FLOAT", (rows, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (rows, 4))]
    profile = {"INPUT0": SHAPES if rows < 0 else ((4, 4),) * 3}
    model = spec(tmp_path, plan("identity", both, [profile], version="8.6.1"))
    backend = TensorRtBackend(partial(load_library, cuda=lambda: host))
    model.config = backend.complete_config(model)
    array = np.random.default_rng(1).random((4, 4)).astype(np.float32)

    instances = backend.open(model, [InstanceSpec(f"m_0_{number}", "GPU", 0) for number in range(2)])

    assert all((values(one.execute([request(array)], Timing())[0]) == array).all() for one in instances)
    assert len({id(one._loaded.engine) for one in instances}) == engines


def test_output_that_no_request_wants_is_not_copied(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity()))
    array = np.ones((1, 4), np.float32)

    wants, wants_none = instance.execute([request(array), request(array, outputs=())], Timing())

    assert [one.name for one in wants.outputs] == ["OUTPUT0"]
    assert wants_none.outputs == []


def test_graph_is_launched_for_its_shapes_and_padded_batches(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = {"batch_size": 4, "input": {"INPUT0": {"dim": ["4"]}}}
    bound = {"batch_size": 3, "input": {"INPUT0": {"dim": ["4"]}}}
    config = {"optimization": {"cuda": {"graphs": True, "graph_spec": [{**graph, "graph_lower_bound": bound}]}}}
    _, instance = opened(host, spec(tmp_path, identity(), **config))
    launched: list[int] = []
    shapes: list[tuple[int, ...]] = []
    launch = host.graph_launch
    context = sys.modules["tensorrt"].IExecutionContext
    set_shape = context.set_input_shape

    def note(graph: int, stream: int) -> None:
        launched.append(graph)
        launch(graph, stream)

    def note_shape(self: Any, name: str, shape: tuple[int, ...]) -> bool:
        shapes.append(shape)
        return bool(set_shape(self, name, shape))

    monkeypatch.setattr(host, "graph_launch", note)
    monkeypatch.setattr(context, "set_input_shape", note_shape)

    for rows in (4, 3, 2):
        array = np.random.default_rng(rows).random((rows, 4)).astype(np.float32)
        (reply,) = instance.execute([request(array)], Timing())
        assert (values(reply) == array).all()

    assert len(launched) == 2, "of 4 and 3 rows; 2 rows run without"
    assert shapes == [(2, 4)], "a graph has the shapes of its capture"


def test_graphs_are_captured_on_inputs_that_are_cleared(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that takes indices from memory that is not cleared reads anywhere, and the device is lost."""
    table = np.arange(30, dtype=np.float32)

    def embed(inputs: Arrays) -> dict[str, Any]:
        if (inputs["INPUT0"].view(np.uint32) >= len(table)).any():
            raise IndexError("the kernel reads at an illegal address")
        return {"OUTPUT0": table[inputs["INPUT0"]]}

    monkeypatch.setitem(OPERATIONS, "embed", embed)
    both = [tensor("INPUT0", "INPUT", "INT32", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    content = plan("embed", both, [{"INPUT0": SHAPES}])

    _, instance = opened(host, spec(tmp_path, content, optimization={"cuda": {"graphs": True}}))

    indices: Any = np.full((1, 4), 29, np.int32)
    asked = replace(request(indices), inputs=[replace(request(indices).inputs[0], datatype=DataType.INT32)])
    assert values(instance.execute([asked], Timing())[0]).tolist() == [[29] * 4]


def test_profiles_of_an_instance_share_the_memory_of_the_largest(host: HostCuda, tmp_path: Path) -> None:
    columns, taken = 1 << 18, []
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, columns)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, columns))]
    profiles = [{"INPUT0": ((1, columns), (1, columns), (rows, columns))} for rows in (1, 8, 4)]
    for names in (["1"], ["0", "1", "2"]):
        model = spec(tmp_path / names[-1], plan("identity", both, profiles), max_batch_size=8)
        model.config["instance_group"][0]["profile"] = names
        before = host.memory_info()[0]
        backend, instance = opened(host, model)
        taken.append((before - host.memory_info()[0]) >> 20)
        for rows in (1, 8, 3):
            array = np.full((rows, columns), rows, np.float32)
            assert (values(instance.execute([request(array)], Timing())[0]) == array).all()
        instance.close()
        backend.close()

    assert taken == [3 * 8] * 2, "MiB: inputs of two batches, and outputs of one"


@pytest.mark.parametrize("graphs", [False, True])
def test_output_with_other_rows_than_its_batch_is_refused(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    """The parts of such an output belong to no request: a client would get rows of another one."""
    monkeypatch.setitem(OPERATIONS, "twice", lambda inputs: {"OUTPUT0": np.repeat(inputs["INPUT0"], 2, axis=0)})
    _, instance = opened(host, spec(tmp_path, identity(op="twice"), optimization={"cuda": {"graphs": graphs}}))

    with pytest.raises(Internal, match="output tensor 'OUTPUT0' in responses: expected batch size of 2 in model"):
        instance.execute([request(np.full((1, 4), value, np.float32)) for value in (1, 2)], Timing())


def test_output_that_is_larger_than_that_of_the_largest_batch_is_refused(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would write behind its buffer."""

    def rest(inputs: Arrays) -> dict[str, Any]:
        rows, columns = inputs["INPUT0"].shape
        return {"OUTPUT0": np.zeros((rows, 128 - columns), np.float32)}

    monkeypatch.setitem(OPERATIONS, "rest", rest)
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, -1)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))]
    content = plan("rest", both, [{"INPUT0": ((1, 1), (1, 1), (8, 120))}])
    _, instance = opened(host, spec(tmp_path, content))

    assert values(instance.execute([request(np.ones((8, 120), np.float32))], Timing())[0]).shape == (8, 8)
    with pytest.raises(Internal, match="tensor 'OUTPUT0' of this batch takes 4064 bytes, and has 256 bytes on the"):
        instance.execute([request(np.ones((8, 1), np.float32))], Timing())
    assert instance.is_ready()


def test_capture_that_fails_costs_the_graph_alone(host: HostCuda, tmp_path: Path) -> None:
    host.fail("cudaStreamBeginCapture", 900)
    _, instance = opened(host, spec(tmp_path, identity(), optimization={"cuda": {"graphs": True}}))
    array = np.ones((1, 4), np.float32)

    (reply,) = instance.execute([request(array)], Timing())

    assert (values(reply) == array).all()


def test_everything_is_freed(host: HostCuda, tmp_path: Path) -> None:
    before = host.open_handles()
    backend, instance = opened(
        host, spec(tmp_path, identity(device_memory=4096), optimization={"cuda": {"graphs": True}})
    )
    instance.execute([request(np.ones((8, 4), np.float32))], Timing())
    assert host.open_handles() != before

    instance.close()
    backend.close()

    assert host.open_handles() == before


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaStreamCreateWithPriority", "cudaStreamSynchronize"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_load_that_fails_frees_what_it_took(host: HostCuda, tmp_path: Path, call: str, after: int) -> None:
    backend = TensorRtBackend(partial(load_library, cuda=lambda: host))
    model = spec(tmp_path, identity())
    model.config = backend.complete_config(model)
    before = host.open_handles()
    host.fail(call, 2, after=after)
    try:
        (instance,) = backend.open(model, [InstanceSpec("m_0_0", "GPU", 0)])
    except EdgeServeError:
        assert host.open_handles() == before
    else:
        with suppress(CudaError):  # the failure may be left for here
            instance.close()


def test_sticky_error_makes_the_instance_not_ready(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity(op="fail")))
    assert instance.is_ready()

    with pytest.raises(DeviceLost, match="illegal memory access"):
        instance.execute([request(np.ones((1, 4), np.float32))], Timing())

    assert not instance.is_ready()
    instance.close()


def test_sticky_error_without_a_word_of_tensorrt_costs_the_device_at_once(host: HostCuda, tmp_path: Path) -> None:
    """A code that TensorRT's text does not tell."""
    _, instance = opened(host, spec(tmp_path, identity()))
    host.fail("launch", 999)

    with pytest.raises(DeviceLost, match=r"unable to enqueue for inference: .*scripted"):
        instance.execute([request(np.ones((1, 4), np.float32))], Timing())

    assert not instance.is_ready()


@pytest.mark.parametrize(("call", "code"), [("launch", 719), ("launch", 999), ("cudaStreamBeginCapture", 719)])
def test_device_that_is_lost_in_a_capture_fails_the_load(host: HostCuda, tmp_path: Path, call: str, code: int) -> None:
    host.fail(call, code, after=2)

    with pytest.raises(Internal) as caught:
        opened(host, spec(tmp_path, identity(), optimization={"cuda": {"graphs": True}}))

    assert isinstance(caught.value, DeviceLost) or getattr(caught.value, "sticky", False)


def test_error_that_is_not_sticky_fails_one_batch(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity()))
    host.fail("cudaMemcpyAsync", 1)
    array = np.ones((1, 4), np.float32)

    with pytest.raises(CudaError):
        instance.execute([request(array)], Timing())

    assert instance.is_ready()
    assert (values(instance.execute([request(array)], Timing())[0]) == array).all()


RAGGED = {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}


def test_requests_of_a_ragged_batch_are_joined_with_an_input_made_from_their_shapes(
    host: HostCuda, tmp_path: Path
) -> None:
    tensors = [
        tensor("INPUT0", "INPUT", "FLOAT", (-1,)),
        tensor("ENDS", "INPUT", "INT32", (-1,)),
        tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 1)),
    ]
    made = {"kind": "BATCH_ACCUMULATED_ELEMENT_COUNT", "target_name": ["ENDS"], "data_type": "TYPE_INT32",
            "source_input": ["INPUT0"]}  # fmt: skip
    output = {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}
    config = {"max_batch_size": 4, "input": [RAGGED], "output": [output], "batch_input": [made]}
    content = plan("segments", tensors, [{"INPUT0": ((1,), (8,), (64,)), "ENDS": ((1,), (2,), (4,))}])
    _, instance = opened(host, spec(tmp_path, content, **config))
    rows = [np.array([row], np.float32) for row in ([1, 2], [3, 4, 5], [6])]

    for batch, sums in ((rows, [3, 12, 6]), (rows[1:2], [12])):
        replies = instance.execute([request(row) for row in batch], Timing())
        assert [values(reply).tolist() for reply in replies] == [[[total]] for total in sums]


def test_output_is_divided_by_the_shapes_of_its_source(host: HostCuda, tmp_path: Path) -> None:
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1,))]
    config = {
        "max_batch_size": 4, "input": [RAGGED],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "batch_output": [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT0"],
                          "source_input": ["INPUT0"]}],
    }  # fmt: skip
    _, instance = opened(host, spec(tmp_path, plan("identity", both, [{"INPUT0": ((1,), (8,), (64,))}]), **config))
    rows = [np.array([row], np.float32) for row in ([1, 2], [3, 4, 5])]

    replies = instance.execute([request(row) for row in rows], Timing())

    assert [values(reply).tolist() for reply in replies] == [row.tolist() for row in rows]


@pytest.mark.parametrize("most", [0, 4])
def test_output_that_its_source_does_not_fill_fails_with_and_without_batches(
    host: HostCuda, tmp_path: Path, most: int
) -> None:
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 1))]
    dims = [4] if most else [-1, 4]
    config = {
        "max_batch_size": most,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": dims}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [*dims[:-1], -1]}],
        "batch_output": [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT0"],
                          "source_input": ["INPUT0"]}],
    }  # fmt: skip
    _, instance = opened(host, spec(tmp_path, plan("rowsum", both, [{"INPUT0": SHAPES}]), **config))

    with pytest.raises(Internal, match=r"^batch output has \d+ elements, expected 8 for shapes"):
        instance.execute([request(np.ones((2, 4), np.float32))], Timing())


@pytest.mark.parametrize("channels", [8, 3])
def test_format_that_is_not_linear_is_served_where_it_pads_nothing(
    host: HostCuda, tmp_path: Path, channels: int
) -> None:
    shape, hwc8 = (-1, channels, 2, 2), {"format": "HWC8", "vectorized_dim": 1, "components": 8}
    both = [tensor(f"{way}0", way, "FLOAT", shape, **hwc8) for way in ("INPUT", "OUTPUT")]
    content = plan("identity", both, [{"INPUT0": ((1, *shape[1:]), (1, *shape[1:]), (4, *shape[1:]))}])
    if channels % 8:
        with pytest.raises(Unsupported, match="input 'INPUT0' for model 'm' has format HWC8, which rounds dimension 1"):
            opened(host, spec(tmp_path, content))
        return
    _, instance = opened(host, spec(tmp_path, content))
    parts = [np.random.default_rng(n).random((n, *shape[1:])).astype(np.float32) for n in (1, 2)]

    replies = instance.execute([request(part) for part in parts], Timing())

    assert all((values(reply) == part).all() for reply, part in zip(replies, parts, strict=True))


def test_library_that_is_missing_says_what_to_install(host: HostCuda) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    with pytest.raises(
        Unavailable, match=r"tensorrt: No module .* tensorrt_lean: .*pip install 'edge-serve\[tensorrt\]'"
    ):
        load_library(missing, lambda: host)


def test_plan_runs_with_the_library_that_the_server_names(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", sys.modules["tensorrt"])
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # it cannot be imported
    model = spec(tmp_path, identity())
    with pytest.raises(Unavailable, match="tensorrt: import of tensorrt halted"):
        opened(host, model)

    model.backend_config = {"library": "tensorrt_rtx"}

    array = np.ones((1, 4), np.float32)
    assert (values(opened(host, model)[1].execute([request(array)], Timing())[0]) == array).all()


def hold(host: HostCuda, instance: TensorRtInstance) -> threading.Event:
    """Let the compute stream wait until the returned event is set."""
    may_end = threading.Event()

    def work() -> None:
        assert may_end.wait(20)

    host.run(work, instance._path.compute_stream)
    return may_end


@pytest.mark.parametrize("cuda", [{}, {"output_copy_stream": True}, {"graphs": True}, {"busy_wait_events": True}])
def test_next_batch_begins_while_one_runs(host: HostCuda, tmp_path: Path, cuda: dict[str, Any]) -> None:
    _, instance = opened(host, spec(tmp_path, identity(), optimization={"cuda": cuda}))
    may_end = hold(host, instance)
    arrays = [np.full((2, 4), value, np.float32) for value in (1, 2)]

    begun = [instance.begin([request(array)], PlainOutputs(), Timing()) for array in arrays]
    may_end.set()

    assert [values(instance.finish(one)[0]).tolist() for one in begun] == [array.tolist() for array in arrays]
    assert instance.seats == 2


def test_engine_whose_outputs_the_data_size_has_one_seat(host: HostCuda, tmp_path: Path) -> None:
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", "INT64", (1, -1))]
    config = {"max_batch_size": 0, "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT64", "dims": [1, -1]}],
              "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]}  # fmt: skip
    model = spec(tmp_path, plan("nonzero", found, [{"INPUT0": ((1,), (8,), (64,))}]), **config)
    _, instance = opened(host, model)

    for array in (np.array([0, 2, 0, 1], np.float32), np.array([1, 0], np.float32)):
        (reply,) = instance.execute([request(array)], Timing())
        assert values(reply).tolist() == [np.flatnonzero(array).tolist()]
    assert instance.seats == 1


SIZE = tensor("SIZE", "INPUT", "INT32", (2,), shape_tensor=True)
SHAPE = tensor("SHAPE", "OUTPUT", "INT64", (2,), shape_tensor=True)
STRETCHED = tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))


def stretch(*inputs: dict[str, Any]) -> bytes:
    """Return a plan that repeats the first column of INPUT0 as often as SIZE says, and tells the shape."""
    profile = {"INPUT0": SHAPES, "SIZE": ((1, 1), (2, 3), (8, 9))}
    return plan("stretched", [*inputs, STRETCHED, SHAPE], [profile])


def sized(array: Any, *values: int) -> BackendRequest:
    """Return a request with a shape tensor before its input."""
    made = request(array, outputs=("OUTPUT0", "SHAPE"))
    numbers: Any = np.array(values, np.int32)
    made.inputs.insert(0, InferTensor("SIZE", DataType.INT32, numbers.shape, memoryview(numbers).cast("B")))
    return made


def test_shape_tensors_of_a_batch(host: HostCuda, tmp_path: Path) -> None:
    """Requests are told apart by the rows of the input that has some, and each gets the values of a shape output."""
    both = (SIZE, tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)))
    before = host.open_handles()
    backend, instance = opened(host, spec(tmp_path, stretch(*both)))
    parts = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) + 100 * n for n in (1, 3)]

    replies = instance.execute([sized(part, 5) for part in parts], Timing())

    for part, reply in zip(parts, replies, strict=True):
        found = {output.name: output.array().tolist() for output in reply.outputs}
        assert found == {"OUTPUT0": [[row[0]] * 5 for row in part.tolist()], "SHAPE": [[5]] * len(part)}
    instance.close()
    backend.close()
    assert host.open_handles() == before


def test_shape_output_without_a_batch(host: HostCuda, tmp_path: Path) -> None:
    both = (tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), SIZE)
    config = {
        "max_batch_size": 0,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1, 4]},
                  {"name": "SIZE", "data_type": "TYPE_INT32", "dims": [2], "is_shape_tensor": True}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1, -1]},
                   {"name": "SHAPE", "data_type": "TYPE_INT64", "dims": [2], "is_shape_tensor": True}],
    }  # fmt: skip
    _, instance = opened(host, spec(tmp_path, stretch(*both), **config))

    (reply,) = instance.execute([sized(np.ones((3, 4), np.float32), 3, 2)], Timing())

    found = {output.name: output.array().tolist() for output in reply.outputs}
    assert found == {"OUTPUT0": [[1, 1]] * 3, "SHAPE": [3, 2]}


def test_shape_output_has_separate_memory_on_an_integrated_device(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's address of the reply's slot is not the host's there, and the host writes it."""
    monkeypatch.setattr(host, "is_integrated", lambda device: True)
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    _, instance = opened(host, spec(tmp_path, plan("measured", [*both, SHAPE], [{"INPUT0": SHAPES}])))
    bound: list[Any] = []

    def bind(*arguments: Any) -> list[int]:
        bound.append(arguments)
        return []

    monkeypatch.setattr(instance._path, "bind_outputs", bind)
    array = np.ones((2, 4), np.float32)

    first, one = instance.execute([request(array, outputs=("OUTPUT0", "SHAPE")), request(array)], Timing())

    assert [output.array().tolist() for output in first.outputs] == [array.tolist(), [[4], [4]]]
    assert (values(one) == array).all()
    assert bound == []
    instance.execute([request(array)], Timing())
    assert len(bound) == 1, "without the shape output it may be written to the slot"


@pytest.mark.parametrize("host", ["10.3.0", "11.4.1"], indirect=True)
def test_shapes_that_contradict_each_other_fail_with_tensorrts_reason(host: HostCuda, tmp_path: Path) -> None:
    """The reason is not left for a later failure."""
    found = [tensor(f"{way}{n}", way, "FLOAT", (-1, -1)) for way in ("INPUT", "OUTPUT") for n in (0, 1)]
    shapes = dict.fromkeys(("INPUT0", "INPUT1"), ((1, 1), (2, 4), (8, 4)))
    content = plan("addsub", found, [shapes], version=sys.modules["tensorrt"].__version__)
    _, instance = opened(host, spec(tmp_path, content))
    inputs = [request(np.ones((1, size), np.float32), f"INPUT{n}").inputs[0] for n, size in enumerate((2, 3))]
    batch = [replace(request(np.ones((1, 4), np.float32)), inputs=inputs)]

    text = r"unable to enqueue for inference.*: .*Error Code 7: .* broadcast dimensions must be conformable"
    with pytest.raises(Internal, match=text):
        instance.execute(batch, Timing())

    assert instance._loaded.library.errors.take().errors == ()
    with pytest.raises(Internal, match=text):  # the seat is free again
        instance.execute(batch, Timing())


def test_error_in_begin_costs_its_batch_and_not_the_one_that_runs(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity()))
    array = np.ones((1, 4), np.float32)
    first = instance.begin([request(array)], PlainOutputs(), Timing())
    host.fail("cudaMemcpyAsync", 1)

    with pytest.raises(CudaError):
        instance.begin([request(array)], PlainOutputs(), Timing())

    assert (values(instance.finish(first)[0]) == array).all()
    for _ in range(3):  # both seats are free again
        assert (values(instance.execute([request(array)], Timing())[0]) == array).all()


def test_sticky_error_fails_both_batches(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity(op="fail")))
    may_end = hold(host, instance)
    begun = [instance.begin([request(np.ones((1, 4), np.float32))], PlainOutputs(), Timing()) for _ in range(2)]
    may_end.set()

    for one in begun:
        with pytest.raises(DeviceLost, match="illegal memory access"):
            instance.finish(one)

    assert not instance.is_ready()


def test_output_for_which_there_is_no_memory_fails_the_batch_and_says_so(host: HostCuda, tmp_path: Path) -> None:
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", "INT64", (1, -1))]
    config = {
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT64", "dims": [1, -1]}],
    }
    content = plan("nonzero", found, [{"INPUT0": ((1,), (8,), (64,))}])
    backend, instance = opened(host, spec(tmp_path, content, **config))
    host.fail("cudaMalloc", 2)

    with pytest.raises(
        EdgeServeError,
        match=r"no memory for 16 bytes of output 'OUTPUT0'.*the device ran out of memory \(1073\.7 MB of 1073\.7 MB "
        r"are free on the device\): unload models",
    ):
        instance.execute([request(np.array([0, 1, 1], np.float32))], Timing())

    (reply,) = instance.execute([request(np.array([0, 1, 1], np.float32))], Timing())
    assert values(reply).tolist() == [[1, 2]]
    instance.close()
    backend.close()


def test_load_without_memory_says_how_much_and_what_helps(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host._devices[0], "total", 16 << 20)
    rows = 1 << 14
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 200)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 200))]
    content = plan("identity", both, [{"INPUT0": ((1, 200), (2, 200), (rows, 200))}])

    with pytest.raises(CudaError) as caught:
        opened(host, spec(tmp_path, content))

    assert caught.value.message == (
        "cudaMalloc failed with cudaErrorMemoryAllocation (2): out of memory; 13.1 MB were asked for, and 3.7 MB of "
        "16.8 MB are free on the device: unload models, lower count in instance_group, build the engine for smaller "
        "shapes, or set the parameter execution_context_allocation_strategy to ON_PROFILE_CHANGE"
    )


def test_context_without_memory_says_how_much_is_free(host: HostCuda, tmp_path: Path) -> None:
    with pytest.raises(
        EdgeServeError, match=r"ran out of memory \(1073\.7 MB of 1073\.7 MB are free on the device\): un"
    ):
        opened(host, spec(tmp_path, identity(device_memory=2 << 30)))


def test_run_without_pinned_memory_says_how_much_and_what_helps(host: HostCuda, tmp_path: Path) -> None:
    _, instance = opened(host, spec(tmp_path, identity()))
    host.fail("cudaHostAlloc", 2)

    with pytest.raises(
        CudaError,
        match=r"cudaHostAlloc failed with cudaErrorMemoryAllocation \(2\): out of memory; 4\.1 kB were asked for, and "
        r"\d+\.\d MB are available on the host: unload models",
    ):
        instance.execute([request(np.ones((1, 4), np.float32))], Timing())


def test_plan_runs_over_pycuda_without_graphs(host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edge_serve.backends.cuda.pycuda", raising=False)
    module = import_module("edge_serve.backends.cuda.pycuda")
    monkeypatch.setattr(module, "_libcuda", lambda: module.driver.libcuda)
    model = spec(tmp_path, identity(), optimization={"priority": "PRIORITY_MAX", "cuda": {"graphs": True}})
    lines: list[str] = []
    monkeypatch.setattr("edge_serve.backends.host.log", lambda level, text: lines.append(text))
    before = host.open_handles()
    backend = TensorRtBackend(partial(load_library, cuda=module.PyCuda))
    model.config = backend.complete_config(model)
    (instance,) = backend.open(model, [InstanceSpec("m_0_0", "GPU", 0)])
    array = np.arange(12, dtype=np.float32).reshape(3, 4)

    for rows in (1, 3):
        (reply,) = instance.execute([request(array[:rows])], Timing())
        assert (values(reply) == array[:rows]).all()

    assert host.open_handles()["graphs"] == 0
    assert lines == [
        "model 'm': optimization.cuda.graphs has no effect with PyCUDA, which has no CUDA graphs: pip install "
        "'edge-serve[cuda]'"
    ]
    instance.close()
    backend.close()
    assert host.open_handles() == before
