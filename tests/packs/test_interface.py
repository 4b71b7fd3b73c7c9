"""The names of edge-serve that packs import: those of the interface whose number is `INTERFACE`."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from edge_serve.backends.packs import SOURCES

#: If a name is gone, packs that were installed before do not work: remove it here, and add 1 to `INTERFACE`. Add names
#: that packs import now
NAMES = {
    "edge_serve.backends.base": "BackendInstance BackendRequest DeviceLost InstanceSpec ModelSpec Reply Timing",
    "edge_serve.backends.binding_plan": "BindingPlan input_of make_plan not_joined wrong_rows",
    "edge_serve.backends.cuda.api": "says_sticky",
    "edge_serve.backends.file_kinds": "COPY_AGAIN FileKinds find_kind read_head",
    "edge_serve.backends": "host",
    "edge_serve.backends.loader": "pack_package",
    "edge_serve.backends.parameters": "boolean integer parameters_of",
    "edge_serve.backends.python.api.errors": "Refusal",
    "edge_serve.config.model.complete": "DEFAULT_MAX_BATCH_SIZE FoundTensor check_onnx complete_onnx config_dims",
    "edge_serve.config.model.layout": "advice_on_file",
    "edge_serve.errors": "EdgeServeError Internal InvalidArgument Unavailable Unsupported with_advice",
    "edge_serve.messages": "ragged",
    "edge_serve.messages.tensors": "Array BY_CONFIG_NAME DataType InferTensor from_array join split to_array",
    "edge_serve.tensors": "DataType Tensor from_array join split to_array",
}


def imported(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).startswith("edge_serve"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_a_pack_that_was_installed_before_finds_all_names() -> None:
    for module, names in NAMES.items():
        for name in names.split():
            found = hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")
            assert found


def test_all_names_are_recorded() -> None:
    used = {one for file in SOURCES.rglob("*.py") for one in imported(file)}
    assert used - {(module, name) for module, names in NAMES.items() for name in names.split()} == set()
