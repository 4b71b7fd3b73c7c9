"""Text of a new config.pbtxt, with comments that say what to change."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.complete import pbtxt_dims

#: Triton's page, because a pip installation has no docs/
_FIELDS_PAGE = "https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md"
_ALL_FIELDS = ["# After a change: edge-serve check. All fields, which are Triton's:", f"# {_FIELDS_PAGE}"]
_BATCHING = [
    "# Requests that wait are joined into one batch. A delay above 0 lets the first of them wait for",
    "# others: larger batches, slower answers.",
    "dynamic_batching { max_queue_delay_microseconds: 0 }",
    "",
]


def config_text(config: pb.ModelConfig, about: str, batch: Sequence[str]) -> str:
    """Return the text of a model with inputs and outputs of its own.

    Args:
        about: where the configuration comes from.
        batch: comment above max_batch_size.
    """
    head = ["# " + about, *_ALL_FIELDS, "", f"name: {_quoted(config.name)}", f"backend: {_quoted(config.backend)}", ""]
    size = [*(f"# {line}" for line in batch), f"max_batch_size: {config.max_batch_size}", ""]
    faces = [*tensors("input", config.input), *tensors("output", config.output)]
    parts = [*head, *size, *faces, *_instances(config)]
    if config.max_batch_size > 1:
        parts += _BATCHING
    return "\n".join([*parts, *_warmup(config)]) + "\n"


def tensors(side: str, specs: Sequence[pb.ModelInput | pb.ModelOutput]) -> list[str]:
    """Return the lines of `input` or `output`."""
    lines = [f"{side} ["]
    for number, spec in enumerate(specs):
        lines += [
            "  {",
            f"    name: {_quoted(spec.name)}",
            f"    data_type: {pb.DataType.Name(spec.data_type)}",
            f"    dims: {pbtxt_dims(spec.dims)}",
        ]
        if spec.HasField("reshape"):
            lines.append(f"    reshape {{ shape: {pbtxt_dims(spec.reshape.shape)} }}")
        lines.append("  }," if number < len(specs) - 1 else "  }")
    return [*lines, "]", ""]


def _instances(config: pb.ModelConfig) -> list[str]:
    if config.backend == "tensorrt":
        about = "Instances on each GPU. A second one overlaps what the first one does between two batches."
        return [f"# {about}", "instance_group [ { count: 1 kind: KIND_GPU } ]", ""]
    if config.backend == "python":
        count, about = 1, "Processes that run the model, each with its own copy of what `initialize` loads."
    else:
        count, about = 2, "Requests or batches that the model computes at the same time. More of them use more cores."
    return [f"# {about}", f"instance_group [ {{ count: {count} }} ]", ""]


def _warmup(config: pb.ModelConfig) -> list[str]:
    """Return an example in comments: a model need not accept zeros."""
    lines = [
        "# A request that each instance answers before the model is ready, so that the first client does not wait,",
        "# and that `edge-serve check --infer` sends. In place of zeros: random_data: true, or",
        '# input_data_file: "FILE" in the directory warmup/ beside this file.',
        "#model_warmup [",
        "#  {",
        '#    name: "zeros"',
        "#    batch_size: 1",
    ]
    for spec in config.input:
        dims = pbtxt_dims([max(1, dim) for dim in spec.dims])
        value = f"data_type: {pb.DataType.Name(spec.data_type)} dims: {dims} zero_data: true"
        lines += ["#    inputs {", f"#      key: {_quoted(spec.name)}", f"#      value {{ {value} }}", "#    }"]
    return [*lines, "#  }", "#]"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def ensemble_text(config: pb.ModelConfig, notes: Sequence[str]) -> str:
    """Return the text of an ensemble.

    Args:
        notes: comments above the steps.
    """
    members = ", ".join(step.model_name for step in config.ensemble_scheduling.step)
    lines = [
        f"# Ensemble of {members}, written by `edge-serve init`: the outputs of a model are the inputs of the next.",
        *_ALL_FIELDS,
        "",
        f"name: {_quoted(config.name)}",
        'platform: "ensemble"',
        "",
        "# at most that of each member; 0 = no batching",
        f"max_batch_size: {config.max_batch_size}",
        "",
        *tensors("input", config.input),
        *tensors("output", config.output),
        "# In input_map and output_map: key = name of the tensor in the model, value = its name in this ensemble.",
        *(f"# {note}" for note in notes),
        "ensemble_scheduling {",
        "  step [",
    ]
    steps = config.ensemble_scheduling.step
    for number, step in enumerate(steps):
        lines += ["    {", f"      model_name: {_quoted(step.model_name)}", "      model_version: -1  # the highest"]
        for field, entries in (("input_map", step.input_map), ("output_map", step.output_map)):
            pairs = sorted(entries.items())
            lines += [f"      {field} {{ key: {_quoted(key)} value: {_quoted(value)} }}" for key, value in pairs]
        lines.append("    }," if number < len(steps) - 1 else "    }")
    return "\n".join([*lines, "  ]", "}"]) + "\n"
