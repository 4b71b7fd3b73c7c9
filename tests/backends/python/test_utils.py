"""The module that models import: its helpers, logger, metrics, and the repository functions. Texts as Triton 2.51's."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edge_serve.backends import host
from edge_serve.backends.python.api.errors import TritonError, TritonModelException
from edge_serve.backends.python.api.logger import Logger
from edge_serve.backends.python.api.metrics import MetricFamily, MetricKind
from edge_serve.backends.python.api.request import MemoryType
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.backends.python.model import UTILS_DIRECTORY
from edge_serve.errors import Internal
from tests.backends.hosting import RecordingHost, installed

#: dir() of the module in Triton 2.51 and 2.73, without names that start with an underscore
TRITONS_NAMES = """
    InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory TRITONSERVER_MEMORY_CPU
    TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_RESPONSE_COMPLETE_FINAL
    TRITON_STRING_TO_NUMPY Tensor TritonError TritonModelException deserialize_bytes_tensor
    get_input_config_by_name get_input_tensor_by_name get_model_dir get_output_config_by_name
    get_output_tensor_by_name is_model_ready json load_model np numpy_to_triton_type serialize_byte_tensor struct
    triton_string_to_numpy triton_to_numpy_type unload_model using_decoupled_model_transaction_policy
"""


@pytest.fixture
def recorded() -> Iterator[RecordingHost]:
    gc.collect()  # metrics of earlier tests report that they are gone
    with installed(made := RecordingHost()):
        yield made


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(UTILS_DIRECTORY))
    return importlib.import_module("triton_python_backend_utils")


def test_the_names_of_tritons_module_are_there(pb_utils: ModuleType) -> None:
    assert set(TRITONS_NAMES.split()) - set(dir(pb_utils)) == set()
    inner = importlib.import_module("c_python_backend_utils")
    assert inner.Tensor is pb_utils.Tensor
    for name in ("InferenceResponseSender", "InferenceTrace", "MetricKind", "MemoryType", "ResponseIterator", "Metric"):
        assert getattr(inner, name).__module__ == "c_python_backend_utils"
    sys.modules.pop("c_python_backend_utils")


def test_the_objects_of_a_model_can_be_referred_to_weakly(pb_utils: ModuleType) -> None:
    inner = importlib.import_module("c_python_backend_utils")
    kinds = [kind for kind in vars(inner).values() if isinstance(kind, type) and not issubclass(kind, int)]
    assert pb_utils.InferenceRequest in kinds
    assert [kind for kind in kinds if not kind.__weakrefoffset__] == []
    sys.modules.pop("c_python_backend_utils")


def test_type_maps(pb_utils: ModuleType) -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert "TYPE_BF16" not in pb_utils.TRITON_STRING_TO_NUMPY
    for kind in (np.bool_, np.uint8, np.uint64, np.int8, np.int32, np.float16, np.float64):
        assert pb_utils.triton_to_numpy_type(pb_utils.numpy_to_triton_type(kind)) == kind
    assert pb_utils.numpy_to_triton_type(np.object_) == pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.numpy_to_triton_type(None) is None  # also of the number of BF16, which has no type of NumPy
    assert pb_utils.triton_to_numpy_type(14) is None


def test_serialized_strings(pb_utils: ModuleType) -> None:
    data = pb_utils.serialize_byte_tensor(np.array([[b"ab", ""], [7, None]], object))
    assert data == b"\x02\0\0\0ab" + b"\0\0\0\0" + b"\x01\0\0\x007" + b"\x04\0\0\0None"
    assert pb_utils.deserialize_bytes_tensor(data).tolist() == [b"ab", b"", b"7", b"None"]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array([1])) is None
    with pytest.raises(pb_utils.struct.error):
        pb_utils.deserialize_bytes_tensor(b"\x01\0\0\0")


def test_config_helpers(pb_utils: ModuleType) -> None:
    config: dict[str, Any] = {"input": [{"name": "A"}, {"name": "B"}], "output": [{"name": "C"}]}
    assert pb_utils.get_input_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name(config, "C") == {"name": "C"}
    assert pb_utils.get_input_config_by_name(config, "C") is None
    assert pb_utils.get_output_config_by_name({}, "C") is None
    assert not pb_utils.using_decoupled_model_transaction_policy(config)
    assert pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}})


def test_tensor_helpers(pb_utils: ModuleType) -> None:
    tensor = pb_utils.Tensor("A", np.zeros(1))
    request = pb_utils.InferenceRequest(model_name="m", requested_output_names=["Y"], inputs=[tensor])
    assert pb_utils.get_input_tensor_by_name(request, "A") is tensor
    assert pb_utils.get_input_tensor_by_name(request, "B") is None
    assert pb_utils.get_output_tensor_by_name(InferenceResponse([tensor]), "A") is tensor
    assert pb_utils.get_output_tensor_by_name(InferenceResponse([tensor]), "B") is None


def test_preferred_memory(pb_utils: ModuleType) -> None:
    pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    with pytest.raises(TypeError):
        pb_utils.PreferredMemory(5)


# -- responses and errors


@pytest.mark.parametrize(("tensors", "error"), [([None], TritonModelException), ([5], TypeError)])
def test_wrong_responses_are_refused(tensors: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        InferenceResponse(tensors)


def test_response_parameters_are_json() -> None:
    assert InferenceResponse([], parameters={"a": 1, "b": True}).parameters() == '{"a": 1, "b": true}'
    with pytest.raises(TritonModelException, match="found type <class 'list'>"):
        InferenceResponse([], parameters={"a": [1]})  # type: ignore[dict-item]  # the point


def test_triton_error() -> None:
    error = TritonError("m", TritonError.NOT_FOUND)
    assert (error.message(), error.code(), TritonError("m").code()) == ("m", 2, TritonError.INTERNAL)
    for arguments in ((None,), ("m", 999)):
        with pytest.raises(TypeError):
            TritonError(*arguments)


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (TritonError.NOT_FOUND, "__ErrorCode.NOT_FOUND"),
        (MetricFamily.COUNTER, "MetricKind.COUNTER"),
        (Logger.INFO, "LogLevel.INFO"),
        (MemoryType.TRITONSERVER_MEMORY_CPU, "MemoryType.TRITONSERVER_MEMORY_CPU"),
    ],
)
def test_members_of_enumerations_are_written_by_name(member: object, text: str) -> None:
    assert (str(member), f"{member}", f"{member:>40}") == (text, text, text.rjust(40))


def test_text_may_be_bytes(recorded: RecordingHost) -> None:
    """As elements of a string tensor are."""
    assert Tensor(b"X", np.zeros(1)).name() == "X"  # type: ignore[arg-type]  # the point
    assert Tensor.from_dlpack(b"X", np.zeros(1)).name() == "X"  # type: ignore[arg-type]  # the point
    assert TritonError(b"no").message() == "no"  # type: ignore[arg-type]  # the point
    Logger.log_info(b"line")  # type: ignore[arg-type]  # the point
    assert recorded.lines == [("INFO", "line")]
    family = MetricFamily(b"of_bytes", b"d", MetricFamily.GAUGE)  # type: ignore[arg-type]  # the point
    kept = family.Metric()
    assert [(one.name, one.description) for one in recorded.updates] == [("of_bytes", "d")]
    del kept
    for refused in (b"\xff", 5, None, np.array([65, 66], np.uint8)):
        with pytest.raises(TypeError, match="must be str"):
            Logger.log_info(refused)  # type: ignore[arg-type]  # the point


# -- logger


def test_log_lines_reach_the_host(pb_utils: ModuleType, recorded: RecordingHost) -> None:
    logger = pb_utils.Logger
    logger.log("plain")
    logger.log("warned", logger.WARNING)
    logger.log("level", level=logger.LogLevel.ERROR)
    logger.log_info("i")
    logger.log_warn("w")
    logger.log_error("e")
    logger.log_verbose("v")
    assert recorded.lines == [
        ("INFO", "plain"), ("WARNING", "warned"), ("ERROR", "level"), ("INFO", "i"), ("WARNING", "w"), ("ERROR", "e"),
        ("VERBOSE", "v"),
    ]  # fmt: skip
    with pytest.raises(TypeError):
        logger.log_info(5)
    with pytest.raises(TypeError):
        logger.log("x", 5)


# -- metrics


def test_changes_of_metrics_reach_the_host(recorded: RecordingHost) -> None:
    counter = MetricFamily(name="test_c", description="d", kind=MetricFamily.COUNTER)
    one = counter.Metric(labels={"a": "b"})
    one.increment(2.5)
    again = MetricFamily("test_c", "other words", MetricKind.COUNTER)
    same = again.Metric(labels={"a": "b"})
    same.increment(1)
    assert one.value() == same.value() == 3.5
    gauge = MetricFamily("test_g", "d", MetricFamily.GAUGE)
    level = gauge.Metric()
    level.set(4)
    level.increment(-1)
    assert level.value() == 3
    del counter, again, gauge
    assert [(u.name, u.kind, dict(u.labels), u.operation, u.value) for u in recorded.updates] == [
        ("test_c", "counter", {"a": "b"}, "create", 0),
        ("test_c", "counter", {"a": "b"}, "increment", 2.5),
        ("test_c", "counter", {"a": "b"}, "increment", 1),
        ("test_g", "gauge", {}, "create", 0),
        ("test_g", "gauge", {}, "set", 4),
        ("test_g", "gauge", {}, "increment", -1),
        ("test_c", "counter", {"a": "b"}, "remove", 0),
        ("test_g", "gauge", {}, "remove", 0),
    ]


def test_a_family_owns_its_series(recorded: RecordingHost) -> None:
    """A model may make the `Metric` where it counts."""
    family = MetricFamily("owned", "d", MetricFamily.COUNTER)
    family.Metric(labels={"a": "b"}).increment(2)
    assert family.Metric(labels={"a": "b"}).value() == 2
    other = MetricFamily("owned", "d", MetricFamily.COUNTER)
    other.Metric(labels={"a": "b"}).increment(1)
    del family
    assert other.Metric(labels={"a": "b"}).value() == 3
    del other
    assert [update.operation for update in recorded.updates] == ["create", "increment", "increment", "remove"]


def test_a_new_family_in_place_of_the_old_one_starts_again(recorded: RecordingHost) -> None:
    for _ in range(2):
        family = MetricFamily("again", "d", MetricFamily.COUNTER)
        series = family.Metric(labels={"a": "b"})
        series.increment(2)
    assert series.value() == 2


def test_a_series_is_of_no_use_after_its_family(recorded: RecordingHost) -> None:
    for kind, use in ((MetricKind.COUNTER, "increment"), (MetricKind.GAUGE, "set"), (MetricKind.GAUGE, "value")):
        family = MetricFamily(f"gone_{kind.name}", "d", kind)
        series = family.Metric()
        other = MetricFamily(f"gone_{kind.name}", "d", kind)
        other.Metric()
        del family
        with pytest.raises(TritonModelException) as caught:
            getattr(series, use)(*([1.0] if use != "value" else []))
        verb = "get" if use == "value" else use
        assert str(caught.value).startswith(
            f"Failed to {verb} metric value: Invalid metric operation as the corresponding 'MetricFamily' has been "
        )


@pytest.mark.parametrize("buckets", [lambda: [1, 2.5], lambda: iter((1, 2.5))], ids=["list", "iterator"])
def test_a_histogram_is_observed(recorded: RecordingHost, buckets: Callable[[], Iterable[float]]) -> None:
    family = MetricFamily("test_h", "d", MetricFamily.HISTOGRAM)
    metric = family.Metric(labels={}, buckets=buckets())
    metric.observe(2)
    assert [(u.operation, u.value, u.bounds) for u in recorded.updates] == [
        ("create", 0, (1.0, 2.5)),
        ("observe", 2, (1.0, 2.5)),
    ]


@pytest.mark.parametrize(
    ("kind", "method", "value", "text"),
    [
        (
            MetricKind.COUNTER,
            "increment",
            -1,
            "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically "
            "by non-negative values.",
        ),
        (
            MetricKind.COUNTER,
            "set",
            1,
            "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        ),
        (
            MetricKind.GAUGE,
            "observe",
            1,
            "Failed to observe metric value: TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
        ),
        (
            MetricKind.HISTOGRAM,
            "increment",
            1,
            "Failed to increment metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
        ),
    ],
)
def test_operations_that_a_kind_lacks(
    recorded: RecordingHost, kind: MetricKind, method: str, value: float, text: str
) -> None:
    family = MetricFamily(f"test_{kind.name}_{method}", "d", kind)
    metric = family.Metric(buckets=[1] if kind is MetricKind.HISTOGRAM else None)
    with pytest.raises(TritonModelException) as caught:
        getattr(metric, method)(value)
    assert str(caught.value) == text
    with pytest.raises(TypeError):
        getattr(metric, method)("1")


def test_a_histogram_has_no_value(recorded: RecordingHost) -> None:
    family = MetricFamily("test_v", "d", MetricFamily.HISTOGRAM)
    with pytest.raises(TritonModelException, match="does not support Value"):
        family.Metric(buckets=[1]).value()


def test_faulty_families_and_series(recorded: RecordingHost) -> None:
    counter = MetricFamily("test_f", "d", MetricFamily.COUNTER)
    histogram = MetricFamily("test_fh", "d", MetricFamily.HISTOGRAM)
    faults: list[tuple[Callable[[], object], str]] = [
        (lambda: MetricFamily("test_f", "d", MetricFamily.GAUGE), "Family name already exists with different type"),
        (lambda: MetricFamily("test f", "d", MetricFamily.GAUGE), "Invalid metric name"),
        (lambda: counter.Metric(labels={"a": 1}), "attempt to access JSON non-string as string"),  # type: ignore[dict-item]
        (lambda: counter.Metric(labels={1: "a"}), "Invalid label name '1'"),  # type: ignore[dict-item]
        (lambda: counter.Metric(labels=5), "Labels must be a dictionary."),  # type: ignore[arg-type]
        (lambda: counter.Metric(labels={"my-label": "a"}), "Invalid label name 'my-label': use letters"),
        (lambda: counter.Metric(labels={"a": "a", "": "a"}), "Invalid label name ''"),
        (lambda: counter.Metric(labels={"__name__": "a"}), "Invalid label name '__name__'"),
        (lambda: histogram.Metric(labels={"le": "1"}, buckets=[1]), "Invalid label name 'le': it is the label of a"),
        (lambda: counter.Metric(buckets=[1]), "Unexpected buckets found."),
        (lambda: histogram.Metric(), "Missing required buckets."),
        (lambda: histogram.Metric(buckets=("1", 2)), "Buckets must be a list."),  # type: ignore[arg-type]
        (lambda: histogram.Metric(buckets=5), "Buckets must be a list."),  # type: ignore[arg-type]
        (lambda: histogram.Metric(buckets="12"), "Buckets must be a list."),  # type: ignore[arg-type]
        (lambda: histogram.Metric(buckets=[2, 1]), "Bucket Boundaries must be strictly sorted"),
    ]
    for make, text in faults:
        with pytest.raises(TritonModelException, match=text):
            make()
    assert recorded.updates == []
    counter.Metric(labels={"le": "1", "_a": "b"})
    with pytest.raises(TypeError):
        MetricFamily("test_f", "d", 0)  # type: ignore[arg-type]  # the point


# -- the repository


class Repository(host.Alone):
    """Remembers what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self.asked.append((name, config, files))
        if name == "bad":
            raise Internal("failed to load 'bad', failed to poll from model repository")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self.asked.append((name, unload_dependents))

    def is_model_ready(self, name: str, version: str) -> bool:
        return (name, version) == ("m", "2")


def test_models_are_loaded_and_unloaded(pb_utils: ModuleType) -> None:
    with installed(repository := Repository()):
        pb_utils.load_model("m", config="{}", files={"file:1/model.py": b""})
        pb_utils.unload_model("m", unload_dependents=True)
        assert pb_utils.is_model_ready("m", "2")
        assert not pb_utils.is_model_ready("m")
        with pytest.raises(TritonModelException) as caught:
            pb_utils.load_model(model_name="bad")
    assert repository.asked[:2] == [("m", "{}", {"file:1/model.py": b""}), ("m", True)]
    assert str(caught.value) == ("Failed to load model: failed to load 'bad', failed to poll from model repository")


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (
            "load_model",
            ("m", "", 5),
            "failed to load model 'm', files should be a dictionary of file paths and file contents",
        ),
        (
            "is_model_ready",
            ("m", "x"),
            "Failed to check model readiness: failed to get model version from specified version string 'x' "
            "(details: stol), version should be an integral value > 0",
        ),
        ("load_model", ("m",), f"Failed to load model: model 'm' cannot be loaded: {host.NO_SERVER}"),
        ("unload_model", ("m",), f"Failed to unload model: model 'm' cannot be unloaded: {host.NO_SERVER}"),
    ],
)
def test_the_repository_functions_refuse_wrong_arguments(
    pb_utils: ModuleType, function: str, arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(TritonModelException) as caught:
        getattr(pb_utils, function)(*arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        ("unload_model", ("m", "x"), "unload_dependents must be bool, found 'x'"),
        ("is_model_ready", ("m", 1), "model_version must be str, found 1"),
    ],
)
def test_the_repository_functions_refuse_other_types(
    pb_utils: ModuleType, function: str, arguments: tuple[Any, ...], text: str
) -> None:
    with installed(Repository()), pytest.raises(TypeError, match=text):
        getattr(pb_utils, function)(*arguments)


def test_without_a_worker_log_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    host.log("INFO", "hello")
    assert capsys.readouterr().err == "INFO hello\n"
