"""The defaults that Triton fills into a model configuration (core src/model_config_utils.cc).

Each function returns a completed copy. `normalise` runs when the file has been read and again when the model has
filled in its part; `normalise_instance_groups` when the machine's GPUs are known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen


class UnknownBackend(InvalidArgument):
    """No backend is named, and none can be told from the files."""


DEFAULT_SEQUENCE_IDLE_MICROSECONDS = 1_000_000

#: `runtime` of a model whose backend is one of Triton's python-based ones
PYTHON_RUNTIME = "model.py"

#: instances on the CPU when the group gives no count; 1 for every other backend
_CPU_COUNT = {"onnxruntime": 2}


@frozen
class _Known:
    """A backend that is found by its platform or by the name of the model's file, in this order of preference.

    Attributes:
        may_be_directory: a directory of this name is a model, too.
        is_default: a model of this backend that has none of its files is expected to have this one.
    """

    backend: str
    platforms: tuple[str, ...]
    filename: str
    may_be_directory: bool = False
    is_default: bool = True


#: as in Triton, but for the files that Triton's OpenVINO and FIL backends read under a configuration only
_KNOWN = (
    _Known("tensorflow", ("tensorflow_savedmodel",), "model.savedmodel", True),
    _Known("tensorflow", ("tensorflow_graphdef",), "model.graphdef"),
    _Known("tensorrt", ("tensorrt_plan",), "model.plan"),
    _Known("onnxruntime", ("onnxruntime_onnx",), "model.onnx", True),
    _Known("openvino", (), "model.xml", True),
    _Known("pytorch", ("pytorch_libtorch",), "model.pt"),
    _Known("pytorch", ("torch_aoti",), "model.pt2"),
    _Known("python", (), "model.py", True),
    _Known("openvino", (), "model.tflite"),
    _Known("openvino", (), "model.pdmodel"),
    _Known("openvino", (), "model.onnx"),
    _Known("openvino", (), "model.savedmodel", True),
    _Known("openvino", (), "model.graphdef"),
    _Known("fil", (), "xgboost.json", is_default=False),
    _Known("fil", (), "xgboost.ubj", is_default=False),
    _Known("fil", (), "model.txt", is_default=False),
    _Known("fil", (), "checkpoint.tl", is_default=False),
)


def platforms_of(backend: str) -> set[str]:
    """Return the only platforms that a backend may have; empty = it takes any."""
    return {platform for known in _KNOWN if known.backend == backend for platform in known.platforms}


def normalise(config: pb.ModelConfig, model_name: str, files: Collection[str] = ()) -> pb.ModelConfig:
    """Return a copy with name, backend, platform, file name, version policy, batch sizes and memory settings.

    Args:
        files: entries of the first version's directory, directories with a `/` at the end.

    Raises:
        UnknownBackend: no backend is named and none can be told from the files.
    """
    result = pb.ModelConfig()
    result.CopyFrom(config)
    result.name = result.name or model_name
    _find_backend(result, files)
    # Triton joins it to the version's directory as text, whether or not it begins with a slash
    result.default_model_filename = result.default_model_filename.lstrip("/")
    if not result.HasField("version_policy"):
        result.version_policy.latest.num_versions = 1
    if result.max_batch_size > 0:
        _prefer_full_batches(result)
    if result.HasField("sequence_batching") and not result.sequence_batching.max_sequence_idle_microseconds:
        result.sequence_batching.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_MICROSECONDS
    if not result.HasField("ensemble_scheduling"):
        for side in ("input_pinned_memory", "output_pinned_memory"):
            if not result.optimization.HasField(side):
                getattr(result.optimization, side).enable = True
    return result


def _prefer_full_batches(config: pb.ModelConfig) -> None:
    if config.HasField("dynamic_batching") and not config.dynamic_batching.preferred_batch_size:
        config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    if config.sequence_batching.HasField("oldest") and not config.sequence_batching.oldest.preferred_batch_size:
        config.sequence_batching.oldest.preferred_batch_size.append(config.max_batch_size)


def _find_backend(config: pb.ModelConfig, files: Collection[str]) -> None:
    """Fill in `backend`, `platform` and `default_model_filename` from whichever of them, or the files, are there."""
    fitting = [known for known in _KNOWN if _is(known, config, files)]
    if fitting:
        chosen = next((known for known in fitting if _has_file(known, config, files)), fitting[0])
        config.backend = chosen.backend
        if not config.platform and chosen.platforms:
            config.platform = chosen.platforms[0]
        if config.runtime == PYTHON_RUNTIME and chosen.backend != "python":
            return  # the backend's own model.py finds the files
        if not config.default_model_filename and (chosen.is_default or _has_file(chosen, config, files)):
            config.default_model_filename = chosen.filename
    elif not (config.backend or config.platform or config.default_model_filename):
        _name_backend_after_model(config)


def _has_file(known: _Known, config: pb.ModelConfig, files: Collection[str]) -> bool:
    """Return whether the model's file is the one of `known`, as the configuration says or as it lies there."""
    if config.default_model_filename:
        return config.default_model_filename == known.filename
    return known.filename in files or (known.may_be_directory and f"{known.filename}/" in files)


def _is(known: _Known, config: pb.ModelConfig, files: Collection[str]) -> bool:
    if config.platform and known.platforms and config.platform not in known.platforms:
        return False
    if config.backend:
        return config.backend == known.backend
    if config.platform in known.platforms or config.default_model_filename == known.filename:
        return True
    return not (config.platform or config.default_model_filename) and _has_file(known, config, files)


def _name_backend_after_model(config: pb.ModelConfig) -> None:
    _, dot, backend = config.name.partition(".")
    if not dot:
        raise UnknownBackend(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


def is_python(config: pb.ModelConfig) -> bool:
    """Return whether the model is Python code: its own, or that of a python-based backend."""
    return config.backend == "python" or config.runtime == PYTHON_RUNTIME


def normalise_instance_groups(config: pb.ModelConfig, gpus: Sequence[int] = (), *, auto: bool = True) -> pb.ModelConfig:
    """Return a copy with the name, kind, count and GPUs of each instance group. Ensembles have none.

    Args:
        gpus: ids of the usable GPUs.
        auto: KIND_AUTO may be a GPU: the backend can use one.
    """
    result = pb.ModelConfig()
    result.CopyFrom(config)
    if result.HasField("ensemble_scheduling"):
        return result
    if not result.instance_group:
        result.instance_group.add(name=result.name)
    for index, group in enumerate(result.instance_group):
        group.name = group.name or f"{result.name}_{index}"
        if group.kind == pb.ModelInstanceGroup.KIND_AUTO:
            fits = auto and bool(gpus) and all(gpu in gpus for gpu in group.gpus)
            group.kind = pb.ModelInstanceGroup.KIND_GPU if fits else pb.ModelInstanceGroup.KIND_CPU
        on_cpu = group.kind == pb.ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            group.count = _CPU_COUNT.get(result.backend, 1) if on_cpu else 1
        if group.kind == pb.ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
    return result
