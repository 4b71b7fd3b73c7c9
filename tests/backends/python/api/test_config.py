"""`auto_complete_config` and the ModelConfig that it is given. Texts as recorded from Triton 2.51."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.backends.python import backend as python
from edge_serve.backends.python.api.config import ModelConfig
from edge_serve.errors import Internal
from tests.backends.hosting import PythonScene, model_spec, write_model

INPUT = {"name": "X", "data_type": "TYPE_INT32", "dims": [-1]}


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


def completed(scene: PythonScene, body: str, **fields: Any) -> dict[str, Any]:
    source = f"""
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(c):
            {body}

        def execute(self, requests):
            return []
    """
    spec = model_spec(write_model(scene.directory / "m", source), fields)
    backend = python.PythonBackend()
    try:
        return backend.complete_config(spec)
    finally:
        backend.close()


def test_additions_of_the_model_are_in_the_configuration(scene: PythonScene) -> None:
    body = (
        "c.add_input({'name': 'X', 'data_type': 'TYPE_INT32', 'dims': [-1], 'optional': True}); "
        "c.add_output({'name': 'Y', 'data_type': 'TYPE_FP32', 'dims': [2]}); c.set_max_batch_size(8); "
        "c.set_dynamic_batching(); c.set_model_transaction_policy({'decoupled': True}); return c"
    )
    assert completed(scene, body) == {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [-1], "optional": True}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }


def test_other_fields_stay_as_they_are(scene: PythonScene) -> None:
    body = (
        "d = c.as_dict(); d['name'] = 'other'; d['foo'] = 1; d['version_policy'] = {'all': {}}; "
        "d['instance_group'][0]['count'] = 2; d['parameters'] = {'a': {'string_value': 'b'}}; "
        "d['max_batch_size'] = 4; return c"
    )
    groups = [{"count": 1, "kind": "KIND_CPU"}]

    made = completed(scene, body, instance_group=groups, parameters={})
    assert (made["name"], made["instance_group"], made["parameters"]) == ("m", groups, {})
    assert made["max_batch_size"] == 4
    assert not made.keys() & {"foo", "version_policy"}


def test_a_model_without_the_function_leaves_the_configuration(scene: PythonScene) -> None:
    source = "class TritonPythonModel:\n    def execute(self, requests): return []\n"
    spec = model_spec(write_model(scene.directory / "m", source), {"input": [INPUT]})
    backend = python.PythonBackend()
    assert backend.complete_config(spec) == spec.config
    (instance,) = backend.open(spec, [InstanceSpec("m_0")])
    instance.close()
    backend.close()


@pytest.mark.parametrize("returned", ["None", "7", "c.as_dict()"])
def test_auto_complete_must_return_the_configuration_object(scene: PythonScene, returned: str) -> None:
    with pytest.raises(Internal) as caught:
        completed(scene, f"return {returned}")
    assert caught.value.message == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
    )


def test_an_error_of_auto_complete_is_reported_with_its_place(scene: PythonScene) -> None:
    with pytest.raises(Internal) as caught:
        completed(scene, "raise RuntimeError('auto complete failed')")
    path = scene.directory / "m/1/model.py"
    assert caught.value.message == f"RuntimeError: auto complete failed\n\nAt:\n  {path}(5): auto_complete_config\n"


def test_an_input_is_completed_where_the_configuration_names_it() -> None:
    made = config(input=[{"name": "X", "data_type": "TYPE_INVALID", "dims": [], "format": "FORMAT_NONE"}])
    made.add_input(INPUT)
    assert made.as_dict()["input"] == [{**INPUT, "format": "FORMAT_NONE"}]


REFUSALS: list[tuple[dict[str, Any], Callable[[ModelConfig], None], str]] = [
    (
        {},
        lambda c: c.add_input({**INPUT, "color": "red"}),
        "input 'X' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', "
        "'dims' and 'optional'.",
    ),
    (
        {},
        lambda c: c.add_output({**INPUT, "optional": True}),
        "output 'X' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type' "
        "and 'dims'.",
    ),
    (
        {},
        lambda c: c.add_input({"data_type": "TYPE_INT32", "dims": [1]}),
        "input in auto-complete-config function for model 'm' is missing 'name' property.",
    ),
    (
        {},
        lambda c: c.add_output({"name": "Y", "dims": [1]}),
        "output 'Y' in auto-complete-config function for model 'm' is missing 'data_type' property.",
    ),
    (
        {},
        lambda c: c.add_output({"name": "Y", "data_type": "TYPE_INT32"}),
        "output 'Y' in auto-complete-config function for model 'm' is missing 'dims' property.",
    ),
    (
        {"input": [{**INPUT, "data_type": "TYPE_FP32"}]},
        lambda c: c.add_input(INPUT),
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'X', model provides TYPE_INT32",
    ),
    (
        {"output": [{**INPUT, "dims": [4]}]},
        lambda c: c.add_output(INPUT),
        "model 'm', tensor 'X': the model expects dims [-1] but the model configuration specifies dims [4]",
    ),
    (
        {"input": [{**INPUT, "optional": False}]},
        lambda c: c.add_input({**INPUT, "optional": True}),
        "model 'm', tensor 'X': the model expects optional True but the model configuration specifies optional False",
    ),
    (
        {"max_batch_size": 8},
        lambda c: c.set_max_batch_size(4),
        "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 4",
    ),
    (
        {"sequence_batching": {}},
        lambda c: c.set_dynamic_batching(),
        "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model "
        "'m' tries to set scheduling_choice as 'dynamic_batching'",
    ),
    (
        {},
        lambda c: c.set_model_transaction_policy({"coupled": True}),
        "model transaction property in auto-complete-config function for model 'm' contains property other than "
        "'decoupled'.",
    ),
    (
        {"model_transaction_policy": {"decoupled": False}},
        lambda c: c.set_model_transaction_policy({"decoupled": True}),
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'.",
    ),
]


@pytest.mark.parametrize(("fields", "change", "text"), REFUSALS)
def test_contradictions_are_refused(fields: dict[str, Any], change: Callable[[ModelConfig], None], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        change(config(**fields))
    assert str(caught.value) == text
