"""What a module `tensorrt` does for the backend, also where its caller errs. `python -m tests.nvinfer.checks` runs all.

The process has the bindings or the Python stand-in on its path, and prints JSON: each check with "" or its traceback,
and the names of the module.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import traceback

import numpy as np
import tensorrt as trt

from edge_serve.backends.cuda.api import CudaError
from edge_serve.backends.tensorrt.engine import Range, read_engine
from tests.nvinfer.library import living
from tests.nvinfer.names import collect
from tests.nvinfer.session import (
    BATCHED,
    INDEX,
    KINDS,
    MAJOR,
    VERSION,
    WIDE,
    Allocator,
    Log,
    Session,
    addsub,
    host,
    single,
    tensors,
)
from tests.stand_ins.plans import plan, tensor


def a_batch_of_each_type_has_the_right_numbers() -> None:
    for dtype, kind in KINDS.items():
        session = Session(addsub(dtype))
        first = np.arange(8).reshape(2, 4).astype(kind) * np.array(3, kind)
        second = np.full((2, 4), 2, kind)
        session.set("INPUT0", first)
        session.set("INPUT1", second)
        outputs = [session.output(f"OUTPUT{n}", kind) for n in (0, 1)]
        session.run()
        assert (outputs[0]() == first + second).all(), dtype
        assert (outputs[1]() == first - second).all(), dtype
        session.close()


def half_precision_rounds_as_numpy_does() -> None:
    session = Session(addsub("HALF"))
    values = np.array([65504, 2049, 1e-7, 0.1, np.inf, -6e-8, 1 / 3, 1024.5] * 4, np.float16).reshape(8, 4)
    other = values[::-1].copy()
    session.set("INPUT0", values)
    session.set("INPUT1", other)
    outputs = [session.output(f"OUTPUT{n}", "f2") for n in (0, 1)]
    session.run()
    with np.errstate(all="ignore"):
        assert np.array_equal(outputs[0](), values + other, equal_nan=True)
        assert np.array_equal(outputs[1](), values - other, equal_nan=True)
    session.close()


def other_operations_have_the_right_numbers() -> None:
    array = np.arange(12, dtype="f4").reshape(3, 4)
    rows = Session(single("rowsum", tensors()[0], tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 1)), BATCHED))
    rows.set("INPUT0", array)
    output = rows.output("OUTPUT0")
    rows.run()
    assert output().tolist() == [[6], [22], [38]]
    rows.close()
    same = Session(single("identity", tensors()[0], tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4)), BATCHED))
    same.set("INPUT0", array)
    output = same.output("OUTPUT0")
    same.run()
    assert (output() == array).all()
    same.close()


def the_engine_describes_itself() -> None:
    session = Session(addsub("HALF", name="net", device_memory=4096))
    engine = session.engine
    assert (engine.name, engine.num_io_tensors, engine.num_optimization_profiles) == ("net", 4, 2)
    assert [engine.get_tensor_name(n) for n in range(4)] == ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]
    assert engine.get_tensor_mode("INPUT0") == trt.TensorIOMode.INPUT
    assert engine.get_tensor_mode("OUTPUT0") == trt.TensorIOMode.OUTPUT
    assert engine.get_tensor_mode("?") == trt.TensorIOMode.NONE
    assert engine.get_tensor_dtype("INPUT0") == trt.DataType.HALF
    assert engine.get_tensor_location("INPUT0") == trt.TensorLocation.DEVICE
    assert engine.get_tensor_format("INPUT0") == trt.TensorFormat.LINEAR
    assert tuple(engine.get_tensor_shape("INPUT0")) == (-1, 4)
    assert [tuple(dims) for dims in engine.get_tensor_profile_shape("INPUT0", 1)] == list(WIDE)
    assert (engine.get_tensor_vectorized_dim("INPUT0"), engine.get_tensor_components_per_element("INPUT0")) == (-1, -1)
    sizes = [name for name in ("device_memory_size", "device_memory_size_v2") if name in dir(engine)]
    assert sizes == {8: ["device_memory_size"], 10: ["device_memory_size", "device_memory_size_v2"]}.get(MAJOR, sizes)
    assert getattr(engine, sizes[-1]) == 4096
    session.close()


def profiles_have_shapes_of_their_own() -> None:
    session = Session(addsub())
    assert not session.context.set_input_shape("INPUT0", (9, 4))
    assert "Static dimension mismatch while setting input shape" in session.log.last
    assert session.context.set_optimization_profile_async(1, session.stream)
    assert session.context.set_input_shape("INPUT0", [9, 4])
    assert session.context.active_optimization_profile == 1
    if MAJOR > 10:  # up to 10.12 the bindings raise without the GIL, which ends the process
        refused = ""
        try:
            session.context.set_optimization_profile_async(2, session.stream)
        except RuntimeError as error:
            refused = str(error)
        assert "Error in set optimization profile async" in refused
    session.close()


def a_profile_of_8_6_has_one_context() -> None:
    session = Session(addsub())
    other = session.engine.create_execution_context()
    if MAJOR >= 10:
        assert other.active_optimization_profile == 0
        assert other.set_optimization_profile_async(0, session.stream)
    else:  # to choose profile 0, too, is refused, which ends the process in the bindings
        assert other.active_optimization_profile == -1
        assert not other.set_input_shape("INPUT0", (1, 4))
        assert other.set_optimization_profile_async(1, session.stream)
        assert session.engine.create_execution_context().active_optimization_profile == -1
    session.close()


def inputs_without_a_shape_are_named() -> None:
    session = Session(addsub())
    assert session.context.infer_shapes() == ["INPUT0", "INPUT1"]
    assert tuple(session.context.get_tensor_shape("OUTPUT0")) == (-1, 4)
    session.context.set_input_shape("INPUT0", (2, 4))
    assert session.context.infer_shapes() == ["INPUT1"]
    assert not session.context.execute_async_v3(session.stream)
    assert "enqueueV3: Error Code 3: API Usage Error (Parameter check failed" in session.log.last
    session.context.set_input_shape("INPUT1", (2, 4))
    assert tuple(session.context.get_tensor_shape("OUTPUT0")) == (2, 4)
    session.close()


def an_output_of_shapes_that_contradict_each_other_has_none() -> None:
    session = Session(addsub())
    for name, rows in (("INPUT0", 2), ("INPUT1", 3)):
        assert session.context.set_input_shape(name, (rows, 4))
    refused = ""
    try:
        tuple(session.context.get_tensor_shape("OUTPUT0"))
    except (ValueError, RuntimeError) as error:
        refused = f"{type(error).__name__}: {error}"
    assert "getTensorShape: Error Code 7: Internal Error" in session.log.last
    if MAJOR >= 11:
        assert refused == "RuntimeError: Could not get shape for tensor 'OUTPUT0'. Is the tensor name correct?"
    else:
        assert refused == "ValueError: __len__() should return >= 0"
    assert not session.context.execute_async_v3(session.stream)
    session.close()


def nonzero() -> Session:
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1, -1)), tensor("OUTPUT0", "OUTPUT", INDEX[0], (2, -1))]
    return Session(plan("nonzero", found, [{"INPUT0": ((1, 1), (4, 4), (8, 8))}], version=VERSION))


def an_allocator_takes_an_output_whose_size_the_data_decide() -> None:
    session, allocator = nonzero(), Allocator()
    array = np.array([[0, 3, 0], [5, 0, 7]], "f4")
    session.set("INPUT0", array)
    assert tuple(session.context.get_tensor_shape("OUTPUT0")) == (2, -1)
    assert session.context.set_output_allocator("OUTPUT0", allocator)
    session.run()
    assert (allocator.shape, allocator.streams) == ((2, 3), [session.stream if MAJOR >= 10 else 0])
    assert session.get(allocator.pointer, allocator.shape, INDEX[1]).tolist() == np.argwhere(array).T.tolist()
    host.free(allocator.pointer)
    session.close()


def an_allocator_without_memory_fails_the_run() -> None:
    session, allocator = nonzero(), Allocator(has_memory=False)
    session.set("INPUT0", np.ones((2, 2), "f4"))
    session.context.set_output_allocator("OUTPUT0", allocator)
    assert not session.context.execute_async_v3(session.stream)
    assert "returned nullptr for tensor OUTPUT0" in session.log.last
    session.close()


def shape_tensors_are_read_from_host_memory() -> None:
    size = tensor("SIZE", "INPUT", "INT32", (2,), shape_tensor=True)
    session = Session(single("sized", size, tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1)), ((1, 1), (2, 2), (8, 9))))
    assert session.engine.is_shape_inference_io("SIZE")
    assert session.engine.get_tensor_location("SIZE") == trt.TensorLocation.HOST
    if MAJOR >= 10:
        assert session.engine.get_tensor_profile_values(0, "SIZE") == [[1, 1], [2, 2], [8, 9]]
    else:  # as many values as the tensor has dimensions
        assert session.engine.get_profile_shape_input(0, "SIZE") == [[1], [2], [8]]
    values = np.array([3, 2], np.int32)
    session.context.set_tensor_address("SIZE", values.ctypes.data)
    assert tuple(session.context.get_tensor_shape("OUTPUT0")) == (3, 2)
    output = session.output("OUTPUT0")
    session.run()
    assert output().tolist() == [[0, 0]] * 3
    session.close()


def a_shape_output_is_written_to_host_memory() -> None:
    size = tensor("SIZE", "INPUT", "INT32", (2,), shape_tensor=True)
    outputs = [
        tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1)),
        tensor("SHAPE", "OUTPUT", INDEX[0], (2,), shape_tensor=True),
    ]
    session = Session(plan("sized", [size, *outputs], [{"SIZE": ((1, 1), (2, 2), (8, 9))}], version=VERSION))
    assert session.engine.is_shape_inference_io("SHAPE")
    assert session.engine.get_tensor_location("SHAPE") == trt.TensorLocation.HOST
    values, found = np.array([3, 2], np.int32), np.zeros(2, INDEX[1])
    session.context.set_tensor_address("SIZE", values.ctypes.data)
    session.context.set_tensor_address("SHAPE", found.ctypes.data)
    assert tuple(session.context.get_tensor_shape("SHAPE")) == (2,)
    output = session.output("OUTPUT0")
    session.run()
    assert found.tolist() == [3, 2]
    assert output().shape == (3, 2)
    session.close()


def ranges_of_shape_tensors_are_those_of_the_profile() -> None:
    shapes = [tensor(name, "INPUT", "INT32", (1,), shape_tensor=True) for name in ("OTHER", "SIZE")]
    low, high = ((1,), (2,), (3,)), ((4,), (5,), (6,))
    profiles = [{"OTHER": low, "SIZE": high}, {"OTHER": high, "SIZE": low}]
    output = tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1,))
    session = Session(plan("sized", [*shapes, output], profiles, version=VERSION))
    found = [profile.values for profile in read_engine(session.engine).profiles]
    if MAJOR >= 10:
        assert found == [{name: Range(*ranges) for name, ranges in profile.items()} for profile in profiles]
    else:  # that of 8.6 exchanges the numbers of the profile and of the tensor
        assert found == [{"OTHER": Range(*low)}, {"SIZE": Range(*low)}]
    session.close()


def inputs_may_be_written_again_after_their_event() -> None:
    session, event = Session(addsub(milliseconds=1)), host.event_create()
    array = np.ones((1, 4), "f4")
    session.set("INPUT0", array)
    session.set("INPUT1", array)
    output = session.output("OUTPUT0")
    session.output("OUTPUT1")
    session.context.set_input_consumed_event(event)
    session.run()
    host.event_synchronize(event)
    assert output().tolist() == [[2] * 4]
    host.event_destroy(event)
    session.close()


def a_captured_run_repeats() -> None:
    session = Session(addsub())
    first = np.ones((1, 4), "f4")
    session.set("INPUT0", first)
    session.set("INPUT1", first)
    output = session.output("OUTPUT0")
    session.output("OUTPUT1")
    session.run()  # lazy work of the first run would be captured too
    assert output().tolist() == [[2] * 4]
    for value, before in ((2, 2), (3, 3)):
        write = first * value
        host.memcpy_async(session.memory[0], write.ctypes.data, write.nbytes, session.stream)
        host.stream_synchronize(session.stream)
        if value == 2:
            host.begin_capture(session.stream)
            session.run()
            graph = host.end_capture(session.stream)
        assert output().tolist() == [[before] * 4], "nothing has run yet"
        host.graph_launch(graph, session.stream)
        assert output().tolist() == [[value + 1] * 4]
    host.graph_destroy(graph)
    session.close()


def the_inspector_tells_the_layers() -> None:
    session = Session(addsub())
    inspector = session.engine.create_engine_inspector()
    told = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    assert told["Bindings"] == ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]
    assert json.loads(inspector.get_layer_information(0, trt.LayerInformationFormat.JSON)) == told["Layers"][0]
    assert session.engine.num_layers == 1
    session.close()


def plans_that_do_not_fit_are_none_with_a_text() -> None:
    log = Log()
    runtime = trt.Runtime(log)
    for content, text in {
        b"abc": "Magic tag does not match",
        addsub()[:40]: "unexpected end of archive",
        addsub(version="7.2.3"): f"expecting library version {VERSION} got 7.2.3, please rebuild",
        addsub(capability="9.0"): "expecting compute 8.7 got compute 9.0, please rebuild",
        addsub(version_compatible=True): "Plan has host code, but engine_host_code_allowed is false",
    }.items():
        assert runtime.deserialize_cuda_engine(content) is None, text
        assert text in log.last, log.last
    runtime.engine_host_code_allowed = True
    runtime.DLA_core = 1
    assert runtime.deserialize_cuda_engine(addsub(version_compatible=True)) is not None, log.last
    assert (runtime.DLA_core, runtime.num_DLA_cores) == (1, 2)


def a_context_without_memory_is_none() -> None:
    log = Log()
    engine = trt.Runtime(log).deserialize_cuda_engine(addsub(device_memory=1 << 40))
    strategies = [trt.ExecutionContextAllocationStrategy.STATIC] if MAJOR >= 10 else []
    assert engine.create_execution_context(*strategies) is None
    assert "OutOfMemory" in log.last


def objects_are_deleted_with_their_last_reference() -> None:
    gc.collect()
    used = getattr(host, "open_handles", host.memory_info)
    before = used()
    session = Session(addsub(device_memory=4096))
    engine = session.engine
    session.close()
    del session  # the engine keeps its runtime
    assert engine.num_io_tensors == 4
    del engine
    gc.collect()
    assert used() == before
    assert living(VERSION) == 0


def a_device_that_is_lost_refuses_every_run() -> None:
    session = Session(addsub(op="fail"))
    array = np.ones((1, 4), "f4")
    session.set("INPUT0", array)
    session.set("INPUT1", array)
    for name in ("OUTPUT0", "OUTPUT1"):
        session.output(name)
    session.run()
    with contextlib.suppress(CudaError):
        host.stream_synchronize(session.stream)
    assert not session.context.execute_async_v3(session.stream)
    assert "an illegal memory access was encountered" in session.log.last


#: the last one ends the use of the device
CHECKS = [
    a_batch_of_each_type_has_the_right_numbers,
    half_precision_rounds_as_numpy_does,
    other_operations_have_the_right_numbers,
    the_engine_describes_itself,
    profiles_have_shapes_of_their_own,
    a_profile_of_8_6_has_one_context,
    inputs_without_a_shape_are_named,
    an_output_of_shapes_that_contradict_each_other_has_none,
    an_allocator_takes_an_output_whose_size_the_data_decide,
    an_allocator_without_memory_fails_the_run,
    shape_tensors_are_read_from_host_memory,
    a_shape_output_is_written_to_host_memory,
    ranges_of_shape_tensors_are_those_of_the_profile,
    inputs_may_be_written_again_after_their_event,
    a_captured_run_repeats,
    the_inspector_tells_the_layers,
    plans_that_do_not_fit_are_none_with_a_text,
    a_context_without_memory_is_none,
    objects_are_deleted_with_their_last_reference,
    a_device_that_is_lost_refuses_every_run,
]


def main() -> None:
    """Run all, and print the result of each."""
    names, results = collect(), {}
    for check in CHECKS:
        try:
            check()
        except Exception:
            results[check.__name__] = traceback.format_exc()
        else:
            results[check.__name__] = ""
    print(json.dumps({"checks": results, **names}), flush=True)
    os._exit(0)  # a device that is lost frees nothing


if __name__ == "__main__":
    main()
