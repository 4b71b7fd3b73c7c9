"""ModelConfig <-> Triton's JSON, and JSON as protobuf's C++ parser reads it."""

from __future__ import annotations

import json
import time

import orjson
import pytest

from edge_serve.config.model.json_form import loads_loosely, model_config_from_json, model_config_to_json
from edge_serve.config.model.model_config_pb2 import (
    ModelConfig,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelSequenceBatching,
)
from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import InvalidArgument


def test_prints_defaults_but_not_absent_messages() -> None:
    document = model_config_to_json(parse_model_config('name: "m" input { name: "x" dims: [ 4 ] }'))

    assert document["max_batch_size"] == 0
    assert document["parameters"] == {}
    assert document["input"][0]["format"] == "FORMAT_NONE"
    assert "reshape" not in document["input"][0]
    assert "dynamic_batching" not in document


def test_fields_stand_in_the_order_of_the_proto() -> None:
    text = """
    name: "m" backend: "python"
    input { name: "x" dims: [ 4 ] data_type: TYPE_FP32 optional: true }
    dynamic_batching { default_queue_policy { max_queue_size: 10 timeout_action: REJECT } }
    """
    document = model_config_to_json(parse_model_config(text))

    assert list(document)[:3] == ["name", "platform", "backend"]
    assert list(document["input"][0])[:4] == ["name", "data_type", "format", "dims"]
    assert list(document["dynamic_batching"]["default_queue_policy"]) == [
        "timeout_action",
        "default_timeout_microseconds",
        "allow_timeout_override",
        "max_queue_size",
    ]


def test_long_integers_are_numbers_except_where_triton_forgot_them() -> None:
    text = """
    input { dims: [ 9007199254740993 ] reshape { shape: [ 2 ] } }
    version_policy { specific { versions: [ 1, 3 ] } }
    instance_group { secondary_devices { device_id: 7 } }
    optimization { cuda { graph_spec { input { key: "x" value { dim: [ 5 ] } } } } }
    model_warmup { inputs { key: "x" value { dims: [ 6 ] } } }
    dynamic_batching {
      max_queue_delay_microseconds: 100
      priority_queue_policy { key: 2 value { default_timeout_microseconds: 18446744073709551615 } }
    }
    """
    document = model_config_to_json(parse_model_config(text))

    assert document["input"][0]["dims"] == [9007199254740993]
    assert document["input"][0]["reshape"]["shape"] == [2]
    assert document["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert document["model_warmup"][0]["inputs"]["x"]["dims"] == [6]
    assert document["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert document["dynamic_batching"]["priority_queue_policy"]["2"]["default_timeout_microseconds"] == 2**64 - 1
    assert document["instance_group"][0]["secondary_devices"][0]["device_id"] == "7"
    assert document["optimization"]["cuda"]["graph_spec"][0]["input"]["x"]["dim"] == ["5"]


def test_states_keep_their_initial_dims_as_strings() -> None:
    text = "sequence_batching { state { dims: [ 1 ] initial_state { dims: [ 1 ] zero_data: true } } }"
    state = model_config_to_json(parse_model_config(text))["sequence_batching"]["state"][0]

    assert state["dims"] == [1]
    assert state["initial_state"][0]["dims"] == ["1"]


def test_floats_have_the_digits_of_triton() -> None:
    values = {
        0.0: "0", 1.0: "1", 0.1: "0.1", 1 / 3: "0.333333343", 1e6: "1000000.0", 123456789: "123456792", 1e30: "1e+30"
    }  # fmt: skip
    control = ModelSequenceBatching.Control(fp32_false_true=list(values))
    tensor = ModelSequenceBatching.ControlInput(name="S", control=[control])
    direct = ModelSequenceBatching.StrategyDirect()
    config = ModelConfig(sequence_batching=ModelSequenceBatching(control_input=[tensor], direct=direct))
    batching = model_config_to_json(config)["sequence_batching"]

    assert json.dumps(batching["direct"]["minimum_slot_utilization"]) == "0"
    assert list(map(json.dumps, batching["control_input"][0]["control"][0]["fp32_false_true"])) == list(values.values())
    assert model_config_from_json({"sequence_batching": batching}) == config


def test_the_values_of_a_oneof_come_last() -> None:
    config = parse_model_config('sequence_batching { state { initial_state { zero_data: true name: "z" } } }')
    (initial,) = model_config_to_json(config)["sequence_batching"]["state"][0]["initial_state"]

    assert list(initial) == ["data_type", "dims", "name", "zero_data"]


def test_a_limit_on_ensemble_requests_is_printed_only_when_set() -> None:
    without = model_config_to_json(parse_model_config("ensemble_scheduling { step { model_version: -1 } }"))
    limited = model_config_to_json(parse_model_config("ensemble_scheduling { max_inflight_requests: 3 }"))

    assert without["ensemble_scheduling"]["step"][0]["model_version"] == -1
    assert "max_inflight_requests" not in without["ensemble_scheduling"]
    assert limited["ensemble_scheduling"]["max_inflight_requests"] == 3


def test_result_is_plain_json() -> None:
    config = parse_model_config("model_metrics { metric_control { histogram_options { buckets: [ 1, 1.5, inf ] } } }")
    document = model_config_to_json(config)

    assert json.loads(orjson.dumps(document)) == document
    assert model_config_from_json(orjson.dumps(document)) == config


@pytest.mark.parametrize("kind", ["kind_cpu", "KIND_CPU", "Kind_Cpu", "kind-cpu", 2])
def test_enums_in_any_case_and_by_number(kind: object) -> None:
    config = model_config_from_json(json.dumps({"instance_group": [{"kind": kind}]}))

    assert config == parse_model_config("instance_group { kind: KIND_CPU }")


def test_enums_inside_maps_and_quoted_integers() -> None:
    document = {
        "max_batch_size": "4",
        "input": [{"dims": ["1", 2]}],
        "dynamic_batching": {"priority_queue_policy": {"1": {"timeout_action": "delay"}}},
    }
    config = model_config_from_json(document)

    assert (config.max_batch_size, list(config.input[0].dims)) == (4, [1, 2])
    assert config.dynamic_batching.priority_queue_policy[1].timeout_action == ModelQueuePolicy.DELAY


def test_a_repeated_field_takes_its_only_value_without_a_list() -> None:
    document = {"instance_group": {"count": 2, "kind": "kind_cpu"}, "input": {"name": "X", "dims": 3}}
    config = model_config_from_json(document)

    assert [(group.count, group.kind) for group in config.instance_group] == [(2, ModelInstanceGroup.KIND_CPU)]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("X", [3])]


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("y", True), ("1", True), ("No", False), ("0", False)])
def test_booleans_in_quotes(text: str, value: bool) -> None:
    control = {"name": "S", "control": [{"bool_false_true": [text, not value]}]}
    config = model_config_from_json({"input": [{"optional": text}], "sequence_batching": {"control_input": [control]}})

    assert config.input[0].optional is value
    assert list(config.sequence_batching.control_input[0].control[0].bool_false_true) == [value, not value]


def test_null_is_no_element_of_a_list_and_the_default_in_a_map() -> None:
    document = {"input": [None, {"name": "X"}], "parameters": {"a": None}, "metric_tags": {"b": None}, "output": None}
    config = model_config_from_json(document)

    assert [tensor.name for tensor in config.input] == ["X"]
    assert (config.parameters["a"].string_value, dict(config.metric_tags)) == ("", {"b": ""})


def test_argument_is_left_alone() -> None:
    document = {"instance_group": [{"kind": "kind_cpu"}]}
    model_config_from_json(document)

    assert document == {"instance_group": [{"kind": "kind_cpu"}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "found a JSON list, expected an object"),
        ("null", "expected an object"),
        ('{"no_such_field": 1}', "unknown field 'no_such_field' in ModelConfig"),
        ('{"input": [{"nme": "x"}]}', "did you mean 'name'?"),
        ('{"input": [{"data_type": "TYPE_INT33"}]}', "TYPE_INT33"),
        ('{"input": "x"}', "input"),
        ('{"parameters": [1]}', "parameters"),
        ('{"name": 1}', "name"),
        ('{"input": [{"optional": "on"}]}', "optional"),
        ('{"input": [{"optional": 1}]}', "optional"),
        ('{"max_batch_size": 1.5}', "Couldn't parse integer: 1.5"),
        ('{"max_batch_size": 99999999999}', "99999999999"),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "oneof"),
        ('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}", ""),
    ],
)
def test_refuses(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        model_config_from_json(text)

    assert said in caught.value.message


def test_empty_object_is_an_empty_configuration() -> None:
    assert model_config_from_json(b"{}") == ModelConfig()


@pytest.mark.parametrize(
    "document",
    [
        {"a" * 100_000: 1},
        {"input": [{"data_type": "T" * 100_000}]},
        {"input": [["x" * 100_000]]},
    ],
)
def test_quotes_are_cut(document: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        model_config_from_json(document)
    assert len(caught.value.message) < 700
    assert "..." in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, b_2 : [1, 2,], }", {"a": 1, "b_2": [1, 2]}),
        ("{'a': 'say \"it\\'s\"'}", {"a": 'say "it\'s"'}),
        ('{"a: 1,}": "b: [c,]"}', {"a: 1,}": "b: [c,]"}),
        ('{"a": "x\\"y: 1"}', {"a": 'x"y: 1'}),
        ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
        (r"""{"a": "\q\x41\v\'\\\\q\u0041"}""", {"a": "qx41\v'\\\\qA"}),
        (r"""{'a': 'say \"it\\'}""", {"a": 'say "it\\'}),
        ('{"a": true, "b": NaN}', {"a": True, "b": pytest.approx(float("nan"), nan_ok=True)}),
    ],
)
def test_loose_json_is_read(text: str, value: object) -> None:
    assert loads_loosely(text) == value


@pytest.mark.parametrize("text", ["{", "{a}", "{a: b}", "[1,,2]", "{'a: 1}", ""])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads_loosely(text)


def test_a_configuration_with_bare_keys() -> None:
    config = model_config_from_json("{sequence_batching: {direct: {max_queue_delay_microseconds: 7}},}")

    assert config.sequence_batching.direct.max_queue_delay_microseconds == 7


@pytest.mark.parametrize(
    "text", ["NaN" * 20_000, '{"a":1' + "e" * 60_000, '"' + '\\"' * 30_000, "'" + "\\'" * 30_000 + "\\"]
)
def test_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgument):
        model_config_from_json(text)
    assert time.process_time() - began < 1.0
