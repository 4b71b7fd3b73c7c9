"""Checks of a whole model configuration, in Triton's words (core src/model_config_utils.cc, ValidateModelConfig).

Pure functions: a configuration in, an EdgeServeError out. Two moments of a load ask for them: `check_model_config` when
the file has been read, and `check_inputs_and_outputs` (checks_io) when the model itself has filled in what was missing.
"""

from __future__ import annotations

import math
from itertools import pairwise

from edge_serve.config.checks.batching import check_dynamic_batching, check_sequence_batching
from edge_serve.config.checks.ensemble import ENSEMBLE, check_ensemble
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.normalise import PYTHON_RUNTIME, platforms_of
from edge_serve.errors import InvalidArgument, with_advice


def check_model_config(config: pb.ModelConfig) -> None:
    """Check all but inputs, outputs and instance groups of a normalised configuration.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if not config.name:
        raise InvalidArgument("model configuration must specify 'name'")
    _check_backend(config)
    if config.max_batch_size < 0:
        raise InvalidArgument(f"'max_batch_size' must be non-negative value for {config.name}")
    if not config.HasField("version_policy"):
        raise InvalidArgument(f"must specify 'version policy' for {config.name}")
    if config.HasField("dynamic_batching"):
        check_dynamic_batching(config.dynamic_batching, config.name, config.max_batch_size)
    if config.HasField("sequence_batching"):
        if config.response_cache.enable:
            raise InvalidArgument(_no_cache(config.name, "with sequence batching scheduler"))
        check_sequence_batching(config.sequence_batching, config.name, config.max_batch_size)
    if config.HasField("ensemble_scheduling"):
        check_ensemble(config)
    elif config.platform == ENSEMBLE:
        text = f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE}"
        raise InvalidArgument(text)
    check_cache(config, decoupled=config.model_transaction_policy.decoupled)
    _check_metrics(config.model_metrics)


def _check_backend(config: pb.ModelConfig) -> None:
    backend, platform, name = config.backend, config.platform, config.name
    if not backend and platform != ENSEMBLE:
        if not platform:
            text = f"must specify 'platform' or 'backend' for '{name}'"
            raise InvalidArgument(with_advice(text, _advice_on_backend(config.default_model_filename)))
        text = f"unexpected platform type '{platform}' for {name}"
        raise InvalidArgument(with_advice(text, f"in its place, {_advice_on_backend(platform)}"))
    if backend and platform == ENSEMBLE:
        text = f"Ensemble model '{name}' must have platform type '{ENSEMBLE}' and empty backend type"
        raise InvalidArgument(with_advice(text, f'remove the line backend: "{backend}"'))
    if (platforms := platforms_of(backend)) and platform not in platforms:
        text = f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"
        raise InvalidArgument(with_advice(text, f'remove the line platform: "{platform}"'))
    if config.runtime not in ("", "model.py", f"libtriton_{backend}.so"):
        refuse_runtime(config)


def _advice_on_backend(hint: str) -> str:
    """Return the line to write, from a file's name or a platform that resembles a backend."""
    if "onnx" in hint.lower():
        return 'write backend: "onnxruntime"'
    if hint.endswith(".py") or "python" in hint.lower():
        return 'write backend: "python"'
    return 'write backend: "onnxruntime" for an ONNX file, or backend: "python" for a model.py'


def refuse_runtime(config: pb.ModelConfig) -> None:
    """Raise InvalidArgument: `runtime` names a library that the backend does not have (core src/backend_model.cc)."""
    runtime, name = config.runtime, config.name
    if "/" in runtime:
        text = f"backend library name '{runtime}' escapes backend directory, for model '{name}'"
        raise InvalidArgument(f"{text}, check model config runtime field")
    text = f"unable to find backend library '{runtime}' for model '{name}'"
    if runtime == PYTHON_RUNTIME and config.backend == "pytorch":
        raise InvalidArgument(f"{text}; it is in the pack: edge-serve pack install pytorch")
    raise InvalidArgument(f"{text}; leave 'runtime' out: a backend is found by its name")


def check_cache(config: pb.ModelConfig, *, decoupled: bool) -> None:
    """Check that a decoupled model has no response cache. An ensemble may be decoupled because of its members.

    Raises:
        InvalidArgument: it has one.
    """
    if decoupled and config.response_cache.enable:
        raise InvalidArgument(_no_cache(config.name, "with 'decoupled' transaction policy"))


def _no_cache(name: str, why: str) -> str:
    return f"Response Cache does not currently support model {name} {why}. Please disable the response cache."


def _check_metrics(metrics: pb.ModelMetrics) -> None:
    for control in metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgument("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgument("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgument("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise InvalidArgument("histogram options must specify non-empty 'buckets'")
        buckets = list(control.histogram_options.buckets)
        if not all(map(math.isfinite, buckets)) or any(b <= a for a, b in pairwise(buckets)):
            raise InvalidArgument(f"histogram options must specify finite 'buckets' that ascend, found {buckets}")
