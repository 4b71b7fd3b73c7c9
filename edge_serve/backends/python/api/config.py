"""`pb_utils.ModelConfig`: the configuration in the hands of a model's `auto_complete_config`.

Rules and texts: triton-inference-server/python_backend src/resources/triton_python_backend_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ModelConfig:
    """A configuration that a model may complete, and may not contradict."""

    def __init__(self, model_config: str) -> None:
        """Read the configuration, which is JSON."""
        absent = {"max_batch_size": 0, "input": [], "output": []}
        self._model_config: dict[str, Any] = absent | json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration, to read."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set it, where the configuration says none or a smaller one.

        Raises:
            ValueError: the configuration says a larger one.
        """
        said = self._model_config["max_batch_size"]
        if said > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {said}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Set the dynamic batcher, where the configuration has no scheduler.

        Raises:
            ValueError: the configuration has another scheduler.
        """
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input: name, data_type, dims and perhaps optional.

        Raises:
            ValueError: a key is missing or unknown, or the configuration says otherwise.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output: name, data_type and dims.

        Raises:
            ValueError: a key is missing or unknown, or the configuration says otherwise.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set {"decoupled": bool}.

        Raises:
            ValueError: another key, or the configuration says otherwise.
        """
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        self._check_keys(kind, tensor, keys)
        for said in self._model_config[kind]:
            if said.get("name") == tensor["name"]:
                self._check_agrees(kind, said, tensor)
                said.update(tensor)
                return
        self._model_config[kind].append(dict(tensor))

    def _check_keys(self, kind: str, tensor: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        function = f"auto-complete-config function for model '{self._name}'"
        if any(key not in keys for key in tensor):
            allowed = f"{', '.join(map(repr, keys[:-1]))} and {keys[-1]!r}"
            raise ValueError(f"{kind} '{tensor.get('name', '')}' in {function} contains property other than {allowed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} in {function} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' in {function} is missing '{key}' property.")

    def _check_agrees(self, kind: str, said: Mapping[str, Any], tensor: Mapping[str, Any]) -> None:
        name, data_type, dims = tensor["name"], said.get("data_type", "TYPE_INVALID"), said.get("dims")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} for {kind} '{name}', "
                f"model provides {tensor['data_type']}"
            )
        if dims and dims != tensor["dims"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {tensor['dims']} but the model "
                f"configuration specifies dims {dims}"
            )
        # Triton's JSON always says `optional`, so a model may only repeat what the configuration says.
        if "optional" in said and "optional" in tensor and said["optional"] != tensor["optional"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects optional {tensor['optional']} but the model "
                f"configuration specifies optional {said['optional']}"
            )


ModelConfig.__module__ = "triton_python_backend_utils"
