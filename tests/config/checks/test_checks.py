"""Every check of config/checks*.py: one configuration that fails it, with Triton's text, beside one that passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge_serve.config.checks.checks import check_model_config
from edge_serve.config.checks.instances import check_instance_groups
from edge_serve.config.checks.io import check_inputs_and_outputs
from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.config.model.normalise import normalise, normalise_instance_groups
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.stages import settle_instances
from edge_serve.errors import InvalidArgument
from tests.texts import without_advice

Case = tuple[str, str, str]


def _model(text: str) -> ModelConfig:
    return parse_model_config('name: "m" backend: "python" version_policy { latest { num_versions: 1 } } ' + text)


def _refuse(check: Callable[[ModelConfig], object], bad: str, good: str, said: str) -> None:
    check(_model(good))
    with pytest.raises(InvalidArgument) as caught:
        check(_model(bad))

    assert without_advice(caught.value.message, said) == said


_SEQUENCE = "sequence_batching { control_input [ %s ] }"
_START = '{ name: "%s" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
_CORRID = '{ name: "C" control { kind: CONTROL_SEQUENCE_CORRID %s } }'
_STATE = "sequence_batching { state { %s } }"
_FULL_STATE = 'input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ 2, -1 ] '
_INITIAL = "initial_state { %s }"

BATCHING: list[Case] = [
    ("max_batch_size: -1", "", "'max_batch_size' must be non-negative value for m"),
    (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }",
        "dynamic batching preferred size must be positive for m",
    ),
    (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }",
        "dynamic_batching { max_queue_delay_microseconds: 1 }",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        "dynamic_batching { priority_levels: 2 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "dynamic_batching { priority_levels: 3 default_priority_level: 3 }",
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 value {} } }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 2 value {} } }",
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        "dynamic_batching { preserve_ordering: true "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { default_timeout_microseconds: 1 } } }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
]

SEQUENCE: list[Case] = [
    (
        "sequence_batching {} response_cache { enable: true }",
        "sequence_batching {} response_cache { enable: false }",
        "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
        "response cache.",
    ),
    (
        _SEQUENCE % (_START % ""),
        _SEQUENCE % (_START % "S"),
        "sequence batching control tensor must have a name for m",
    ),
    (
        _SEQUENCE % f"{_START % 'S'}, {_CORRID.replace('C', 'S', 1) % 'data_type: TYPE_INT32'}".replace('"C"', '"S"'),
        _SEQUENCE % f"{_START % 'S'}, {_CORRID % 'data_type: TYPE_INT32'}",
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    (
        _SEQUENCE % f"{_START % 'A'}, {_START % 'B'}",
        _SEQUENCE % (_START % "A"),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        _SEQUENCE % '{ name: "S" control { kind: CONTROL_SEQUENCE_READY } }',
        _SEQUENCE % '{ name: "S" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }',
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_READY for m",
    ),
    (
        _SEQUENCE
        % '{ name: "S" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0,1] fp32_false_true: [0,1] } }',
        _SEQUENCE % '{ name: "S" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0,1] } }',
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for "
        "CONTROL_SEQUENCE_END for m",
    ),
    (
        _SEQUENCE % '{ name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0 ] } }',
        "sequence_batching {}",
        "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
    ),
    (
        _SEQUENCE % (_CORRID % "int32_false_true: [ 0, 1 ]"),
        _SEQUENCE % (_CORRID % "data_type: TYPE_STRING"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        _SEQUENCE % (_CORRID % "data_type: TYPE_FP32"),
        _SEQUENCE % (_CORRID % "data_type: TYPE_UINT64"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, "
        "TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 0 } }",
        "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 1 } }",
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 3 } }",
        "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 2 } }",
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    (
        "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (
        _STATE % 'input_name: "I" output_name: "O" data_type: TYPE_INT32',
        _STATE % _FULL_STATE,
        "sequence batching state must specify 'dims' for m",
    ),
    (
        _STATE % 'input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ 0 ]',
        _STATE % _FULL_STATE,
        "sequence batching state 'I' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        f"sequence_batching {{ state {{ {_FULL_STATE} }} state {{ {_FULL_STATE} }} }}",
        _STATE % _FULL_STATE,
        "State input name 'I' specified more than once.",
    ),
]

INITIAL_STATES: list[Case] = [
    (
        _STATE % (_FULL_STATE + (_INITIAL % "") * 2),
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 2, 5 ] zero_data: true'),
        "initial_state field for state input 'I' must contain exactly one or zero element. Found '2' elements.",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % "data_type: TYPE_FP32"),
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 2, 5 ] data_file: "f"'),
        "The data type used for 'initial_state' field of state 'I' does not match the state data type.",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % "data_type: TYPE_INT32"),
        "",
        "Field 'name' must be set when using initial_state for state input 'I'.",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 2 ]'),
        "",
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'I'. 1 "
        "!= 2",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 2, -1 ]'),
        "",
        "'initial_state' field for state input name 'I' contains variable dimensions.",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 3, 1 ]'),
        "",
        "'initial_state' dim for input name 'I' doesn't match 'state' dim description. 3 != 2",
    ),
    (
        _STATE % (_FULL_STATE + _INITIAL % 'name: "i" data_type: TYPE_INT32 dims: [ 2, 1 ]'),
        "",
        "initial_state setting expects state'I' to have state_data set",
    ),
]

_METRICS = "model_metrics { metric_control { %s } }"
_WHOLE = 'metric_identifier { family: "f" } histogram_options { buckets: 1 }'
GENERAL: list[Case] = [
    (
        'platform: "ensemble"',
        "",
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        "response_cache { enable: true } model_transaction_policy { decoupled: true }",
        "response_cache { enable: true } model_transaction_policy { decoupled: false }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the "
        "response cache.",
    ),
    (_METRICS % "", _METRICS % _WHOLE, "metric control must specify 'metric_identifier'"),
    (_METRICS % "metric_identifier {}", "", "metric identifier must specify non-empty 'family'"),
    (_METRICS % 'metric_identifier { family: "f" }', "", "metric control must specify 'histogram_options'"),
    (
        _METRICS % 'metric_identifier { family: "f" } histogram_options {}',
        "",
        "histogram options must specify non-empty 'buckets'",
    ),
    *(
        (
            _METRICS % _WHOLE.replace("buckets: 1", f"buckets: [{buckets}]"),
            _METRICS % _WHOLE.replace("buckets: 1", "buckets: [-1, 1.5, 3000]"),
            f"histogram options must specify finite 'buckets' that ascend, found [{buckets}]",
        )
        for buckets in ("3000.0, 1.0", "1.0, 1.0", "nan, 1.0", "1.0, inf")
    ),
]


@pytest.mark.parametrize(("bad", "good", "said"), INITIAL_STATES)
def test_initial_states(bad: str, good: str, said: str) -> None:
    _refuse(settle_instances, bad, good, said)


@pytest.mark.parametrize("text", [bad for bad, _, _ in INITIAL_STATES])
def test_initial_states_are_not_checked_with_the_file(text: str) -> None:
    check_model_config(normalise(parse_model_config(f'backend: "python" {text}'), "m"))


@pytest.mark.parametrize(("bad", "good", "said"), BATCHING + SEQUENCE + GENERAL)
def test_model(bad: str, good: str, said: str) -> None:
    _refuse(check_model_config, bad, good, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "model configuration must specify 'name'"),
        ('name: "m"', "must specify 'platform' or 'backend' for 'm'"),
        ('name: "m" platform: "caffe"', "unexpected platform type 'caffe' for m"),
        (
            'name: "m" backend: "onnxruntime" platform: "tensorrt_plan"',
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        ('name: "m" backend: "onnxruntime"', "unexpected 'platform' and 'backend' pair, got:, onnxruntime"),
        ('name: "m" backend: "python"', "must specify 'version policy' for m"),
        (
            'name: "m" backend: "python" runtime: "other.so"',
            "unable to find backend library 'other.so' for model 'm'; leave 'runtime' out: a backend is found by its "
            "name",
        ),
        (
            'name: "m" backend: "python" runtime: "../libtriton_python.so"',
            "backend library name '../libtriton_python.so' escapes backend directory, for model 'm', check model "
            "config runtime field",
        ),
        ('name: "m" backend: "python" runtime: "libtriton_python.so"', "must specify 'version policy' for m"),
        (
            'name: "m" platform: "ensemble" version_policy { all {} }',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
    ],
)
def test_name_and_backend(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_model_config(parse_model_config(text))

    assert without_advice(caught.value.message, said) == said


@pytest.mark.parametrize("backend", ["python", "no_such_backend", "openvino"])
def test_other_backends_take_any_platform(backend: str) -> None:
    check_model_config(normalise(parse_model_config(f'backend: "{backend}" platform: "anything"'), "m"))


def _with_input(text: str, more: str = "") -> str:
    return f'input {{ name: "X" data_type: TYPE_INT32 {text} }} {more}'


_DIMENSION = "must be integer >= 1, or -1 to indicate a variable-size dimension"
TENSORS: list[Case] = [
    ("input { dims: [ 1 ] }", _with_input("dims: [ 1 ]"), "model input must specify 'name' for m"),
    ('input { name: "X" dims: [ 1 ] }', "", "model input 'X' must specify 'data_type' for m"),
    ('input { name: "X" data_type: 99 dims: [ 1 ] }', "", "model input 'X' must specify 'data_type' for m"),
    (_with_input(""), "", "model input 'X' must specify 'dims' for m"),
    (_with_input("dims: [ 0 ]"), _with_input("dims: [ -1 ]"), f"model input 'X' dimension {_DIMENSION} for m"),
    (_with_input("dims: [ -2 ]"), "", f"model input 'X' dimension {_DIMENSION} for m"),
    (
        _with_input("dims: [ 9223372036854775807, 2 ]"),
        _with_input("dims: [ 9223372036854775807 ]"),
        "model input 'X' dimension product must be at most 9223372036854775807 for m",
    ),
    (
        _with_input("dims: [ 1 ] reshape {}"),
        _with_input("dims: [ 1, 1 ] reshape {}", "max_batch_size: 1"),
        "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
    ),
    (_with_input("dims: [ 1 ] reshape { shape: 0 }"), "", f"model input 'X' reshape dimensions {_DIMENSION} for m"),
    (
        _with_input("dims: [ 4 ] reshape { shape: 3 }"),
        _with_input("dims: [ 4 ] reshape { shape: [ 2, 2 ] }"),
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        _with_input("dims: [ -1 ] reshape {}", "max_batch_size: 1"),
        "",
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        _with_input("dims: [ -1, -1 ] reshape { shape: [ -1 ] }"),
        _with_input("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }"),
        "model input 'X' has different number of variable-size dimensions for dims and reshape for m",
    ),
    (
        _with_input("dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }"),
        _with_input("dims: [ 2, -1, 3 ] reshape { shape: [ 2, -1, 3 ] }"),
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        _with_input("dims: [ -1 ] format: FORMAT_NCHW"),
        _with_input("dims: [ 3, 2, 2 ] format: FORMAT_NHWC"),
        "model input NHWC/NCHW require 3 dims for m",
    ),
    (
        _with_input("dims: [ 1 ] is_shape_tensor: true"),
        _with_input("dims: [ 1 ] is_shape_tensor: true", 'platform: "tensorrt_plan"'),
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        _with_input("dims: [ 1 ] is_non_linear_format_io: true"),
        _with_input("dims: [ 1, 2, 3 ] is_non_linear_format_io: true", 'platform: "tensorrt_plan"'),
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
    (
        _with_input("dims: [ 1 ] is_non_linear_format_io: true", 'platform: "tensorrt_plan"'),
        "",
        "Non-linear IO format input requires 3 dims for m",
    ),
    (
        'output { name: "Y" data_type: TYPE_INT32 dims: [ 0 ] }',
        'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }',
        f"model output 'Y' dimension {_DIMENSION} for m",
    ),
    (
        'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }',
        "",
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        _with_input("dims: [ 1 ]") * 2,
        _with_input("dims: [ 1 ]") + 'output { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }',
        "model input 'X' is specified more than once for m",
    ),
    (
        'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }' * 2,
        "",
        "model output 'Y' is specified more than once for m",
    ),
]

_X = _with_input("dims: [ 1 ]")
_Y = 'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } '
_GOOD_BATCH_INPUT = _X + 'batch_input { target_name: "T" data_type: TYPE_FP32 source_input: "X" }'
_GOOD_BATCH_OUTPUT = _X + _Y + 'batch_output { target_name: "Y" source_input: "X" }'
BATCH_TENSORS: list[Case] = [
    (
        'batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_FP32 }',
        _GOOD_BATCH_INPUT,
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
    ),
    ("batch_input { kind: 77 }", _GOOD_BATCH_INPUT, "unknown batch input kind '77' for m"),
    (
        _X + 'batch_input { data_type: TYPE_INT64 source_input: "X" }',
        _GOOD_BATCH_INPUT,
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        _X + 'batch_input { data_type: TYPE_INT32 source_input: "N" }',
        _GOOD_BATCH_INPUT,
        "unknown source input name 'N' for m",
    ),
    (
        _X + 'batch_output { source_input: [ "X", "X" ] }',
        _GOOD_BATCH_OUTPUT,
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m",
    ),
    ("batch_output { kind: 77 }", _GOOD_BATCH_OUTPUT, "unknown batch output kind '77' for m"),
    ('batch_output { source_input: "N" }', _GOOD_BATCH_OUTPUT, "unknown source input name 'N' for m"),
    (
        _X + 'batch_output { source_input: "X" target_name: "N" }',
        _GOOD_BATCH_OUTPUT,
        "unknown target output name 'N' for m",
    ),
    (
        _X + _Y + 'batch_output { source_input: "X" target_name: [ "Y", "Y" ] }',
        _GOOD_BATCH_OUTPUT,
        "target output name 'Y' can only be specified once for m",
    ),
]


@pytest.mark.parametrize(("bad", "good", "said"), TENSORS + BATCH_TENSORS)
def test_inputs_and_outputs(bad: str, good: str, said: str) -> None:
    _refuse(check_inputs_and_outputs, bad, good, said)


@pytest.mark.parametrize(
    ("text", "gpus", "said"),
    [
        ("kind: KIND_CPU gpus: 0", None, "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: 0", None, "has kind KIND_MODEL but specifies one or more GPUs"),
        ("kind: KIND_GPU", None, "has kind KIND_GPU but server does not support GPUs"),
        ("kind: KIND_GPU", [], "has kind KIND_GPU but no GPUs are available"),
        (
            "kind: KIND_GPU gpus: 3",
            [0, 1],
            "specifies invalid or unsupported gpu id 3. GPUs with at least the minimum required CUDA compute "
            "compatibility of 0.000000 are: 0, 1",
        ),
        (
            'profile: "0"',
            None,
            "and platform  specifies profile field which is only supported for TensorRT models",
        ),
    ],
)
def test_instance_group(text: str, gpus: list[int] | None, said: str) -> None:
    config = normalise_instance_groups(_model(f"instance_group {{ {text} }}"), gpus or ())
    with pytest.raises(InvalidArgument) as caught:
        check_instance_groups(config, gpus)

    said = f"instance group m_0 of model m {said}"
    assert without_advice(caught.value.message, said) == said


@pytest.mark.parametrize(
    ("kind", "gpus", "said"),
    [
        ("", None, "unable to load model 'm', TensorRT backend supports only GPU device"),
        ("kind: KIND_CPU", [], "unable to load model 'm', TensorRT backend supports only GPU device"),
        ("kind: KIND_MODEL", [], "unable to load model 'm', TensorRT backend supports only GPU device"),
        ("kind: KIND_GPU", None, "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"),
        (
            "kind: KIND_GPU gpus: 0",
            None,
            "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs",
        ),
        ("kind: KIND_GPU", [], "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
    ],
)
def test_a_plan_without_a_gpu_gets_no_advice_to_run_on_the_cpu(kind: str, gpus: list[int] | None, said: str) -> None:
    config = normalise_instance_groups(_model(f'platform: "tensorrt_plan" instance_group {{ {kind} }}'), gpus or ())
    for lack, reason in (
        ("", "no NVIDIA driver was found; edge-serve doctor looks for GPUs"),
        ("no device", "no device"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check_instance_groups(config, gpus, lack=lack)

        advice = f"no GPU is usable: {reason}; or serve the ONNX file of this plan, which the CPU runs too"
        assert caught.value.message == f"{said}; {advice}"


def test_a_plan_goes_to_the_gpu_that_is_there() -> None:
    config = normalise_instance_groups(_model('platform: "tensorrt_plan" instance_group { kind: KIND_CPU }'), [0])
    with pytest.raises(InvalidArgument, match=r"only GPU device; write instance_group \[ { kind: KIND_GPU } \]"):
        check_instance_groups(config, [0])


def test_instance_groups_that_fit() -> None:
    text = 'instance_group [ { kind: KIND_GPU gpus: 1 profile: "0" }, { name: "g" kind: KIND_GPU } ]'
    config = normalise_instance_groups(_model('platform: "tensorrt_plan"' + text), [0, 1])
    check_instance_groups(config, [0, 1])

    config.instance_group[0].profile[:] = ["-1"]
    with pytest.raises(InvalidArgument, match="string representation of a non-negative integer"):
        check_instance_groups(config, [0, 1])


def test_instance_group_names_are_unique() -> None:
    config = normalise_instance_groups(_model('instance_group [ { name: "g" }, { name: "g" } ]'))
    with pytest.raises(InvalidArgument, match="instance group g of model m has the name of another group of the model"):
        check_instance_groups(config)


def test_instances_are_not_without_number() -> None:
    count = "instance_group [ { count: 1000 }, { count: %d kind: KIND_GPU gpus: [ 0, 1 ] } ]"
    check_instance_groups(normalise_instance_groups(_model(count % 12)), [0, 1])

    with pytest.raises(InvalidArgument, match="model m asks for 1026 instances, at most 1024 are possible"):
        check_instance_groups(normalise_instance_groups(_model(count % 13)), [0, 1])


def test_instances_that_share_a_process_are_fewer() -> None:
    config = normalise_instance_groups(_model("instance_group { count: 253 }"))
    check_instance_groups(config)  # each instance of a Python model has a process
    config.backend = "onnxruntime"
    with pytest.raises(InvalidArgument, match="253 instances, at most 252 are possible; lower count in its instance"):
        check_instance_groups(config)
    config.instance_group[0].count = 252
    check_instance_groups(config)


def test_one_instance_at_least_is_not_passive() -> None:
    groups = "instance_group [ { passive: true }, { passive: %s } ]"
    check_instance_groups(normalise_instance_groups(_model(groups % "false")))

    with pytest.raises(InvalidArgument, match="all instances of model m are passive"):
        check_instance_groups(normalise_instance_groups(_model(groups % "true")))


def test_no_instance_group_at_all() -> None:
    with pytest.raises(InvalidArgument, match="must specify one or more 'instance group's for m"):
        check_instance_groups(_model(""))
