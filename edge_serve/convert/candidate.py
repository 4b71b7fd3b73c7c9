"""One precision of a converted model: its plan is built, and the directory of its model is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge_serve.backends.tensorrt.plan import DEFAULT_FILENAME
from edge_serve.commands.build import wait_for_build
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.convert.samples import Sample
from edge_serve.convert.trial import Trial
from edge_serve.devices.device import Gpus
from edge_serve.engines.model import model_request
from edge_serve.engines.options import EngineOptions, over
from edge_serve.engines.request import BuildProgress, BuiltEngine
from edge_serve.engines.settings import CacheSettings
from edge_serve.golden.reader import GoldenBudget
from edge_serve.golden.writer import Recording, count_fitting, write_golden
from edge_serve.in_process.arrays import tensor_of
from edge_serve.init.config_text import config_text
from edge_serve.init.directory import ModelPlace
from edge_serve.init.onnx_file import copy_file

#: name of a precision -> the options of its build, which choose it
PRECISIONS: dict[str, EngineOptions] = {
    "fp32": EngineOptions(tf32=False),
    "tf32": EngineOptions(),
    **{name.lower(): EngineOptions((name,)) for name in ("FP16", "BF16", "INT8")},
}
#: how far each precision may be off, unless the user says so: rtol, atol
TOLERANCES = {
    "fp32": (1e-3, 1e-3), "tf32": (1e-2, 1e-2), "fp16": (1e-2, 1e-2), "bf16": (5e-2, 5e-2), "int8": (1e-1, 1e-1)
}  # fmt: skip

_TF32_CAPABILITY = (8, 0)


def default_precisions(gpus: Gpus) -> list[str]:
    """Return the precisions to try unless the user names some. Before compute capability 8.0, tf32 is fp32."""
    same = gpus.found and all(gpu.capability < _TF32_CAPABILITY for gpu in gpus.found)
    return ["fp32", "fp16"] if same else ["fp32", "tf32", "fp16"]


def configured(config: pb.ModelConfig, name: str, max_batch: int) -> pb.ModelConfig:
    """Return the configuration of the model on TensorRT, from that of the ONNX file."""
    made = pb.ModelConfig()
    made.CopyFrom(config)
    made.name, made.backend, made.platform, made.default_model_filename = name, "tensorrt", "", ""
    if made.max_batch_size > 0:
        made.max_batch_size = max_batch
    return made


def build(
    place: ModelPlace, config: pb.ModelConfig, onnx: Path, precision: str, options: EngineOptions, cache: CacheSettings,
    gpus: Gpus, on_progress: Callable[[BuildProgress], None],
) -> BuiltEngine:  # fmt: skip
    """Build the plan of one precision into the version directory, and write config.pbtxt.

    Raises:
        EdgeServeError: there is no plan, with the reason and advice.
    """
    copied = copy_file(onnx, place)
    options = over(options, PRECISIONS[precision])
    request = model_request(model_config_to_json(config), place.version, cache, gpus, {}, options)
    request = replace(request, output=str((place.version / DEFAULT_FILENAME).absolute()))
    built = wait_for_build(request, on_progress)
    for path in copied:
        path.unlink()
    rows = ["A batch has at most so many rows, which is what the plan was built for."]
    about = f"Configuration by `edge-serve convert` from {onnx.name!a}, {precision}."
    place.write("config.pbtxt", config_text(config, about, rows))
    return built


def record(place: ModelPlace, samples: list[Sample], reference: Trial, rtol: float, atol: float) -> str:
    """Write the golden test: as many of the samples as fit, and the reference's answers. Return what was written.

    Raises:
        InvalidArgument: it cannot be written.
    """
    recordings = [
        Recording(
            f"sample-{number}",
            {},
            [tensor_of(name, array, None) for name, array in sample.items()],
            [[tensor_of(name, array, None) for name, array in outputs.items()]],
            tolerance=(rtol, atol),
        )
        for number, (sample, outputs) in enumerate(zip(samples, reference.outputs, strict=True))
    ]
    count, problem = count_fitting(recordings)
    if not count:
        return f"without a golden test: the first sample does not fit ({problem})"
    write_golden(place.staged, recordings[:count], GoldenBudget())
    rest = f" to the first {count} of {len(recordings)} samples ({problem})" if problem else ""
    return f"with a golden test of the reference's answers{rest}"
