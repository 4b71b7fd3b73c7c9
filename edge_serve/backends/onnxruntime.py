"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT or OpenVINO.

Start in `onnxruntime_instance` for what happens to a batch, in `onnxruntime_settings` for what the configuration can
say. docs/onnxruntime.md is the user's page, and has the measurements behind the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends import onnxruntime_session as sessions
from edge_serve.backends import onnxruntime_settings as settings
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.onnxruntime_instance import OnnxInstance, make_plan
from edge_serve.config.complete import DEFAULT_MAX_BATCH_SIZE, check_onnx, complete_onnx
from edge_serve.errors import Unavailable


class Backend:
    """One version of an ONNX model: one session for each device that its instances are on."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, int], sessions.Session] = {}

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration with the model's own inputs and outputs filled in, and whether it batches.

        Raises:
            InvalidArgument: the configuration contradicts the model.
            Internal, Unavailable: the model does not load.
        """
        config = spec.config
        if (config.get("input") or config.get("batch_input")) and config.get("output"):
            return config
        kind, device = sessions.kinds(config)[0]
        session = self._session(spec, kind, device)
        default = settings.default_max_batch_size(spec.backend_config, DEFAULT_MAX_BATCH_SIZE)
        return complete_onnx(config, sessions.inputs(session), sessions.outputs(session), default)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[OnnxInstance]:
        """Load the model.

        Raises:
            InvalidArgument: the configuration contradicts the model, or asks for what nobody knows.
            Internal, Unavailable: the model does not load.
        """
        opened = []
        for instance in instances:
            kind = "GPU" if instance.kind == "GPU" else "CPU"
            session = self._session(spec, kind, instance.device_id if kind == "GPU" else 0)
            inputs, outputs = sessions.inputs(session), sessions.outputs(session)
            overridable = sessions.overridable(session)
            check_onnx(spec.config, inputs, outputs, overridable)
            plan = make_plan(spec.config, [*inputs, *overridable], outputs)
            size = settings.model_bytes(self._path(spec))
            options = sessions.run_options(settings.session_settings(spec.config, spec.backend_config, size))
            opened.append(OnnxInstance(session, plan, options))
        return opened

    def close(self) -> None:
        """Let go of the sessions."""
        self._sessions.clear()

    def _session(self, spec: ModelSpec, kind: str, device: int) -> sessions.Session:
        session = self._sessions.get((kind, device))
        if session is None:
            path = self._path(spec)
            pool = settings.global_threads(spec.backend_config)
            if pool is not None:
                sessions.use_global_threads(pool)
            made = settings.session_settings(spec.config, spec.backend_config, settings.model_bytes(path))
            session = sessions.make(path, made, settings.providers(spec.config, kind, device))
            self._sessions[kind, device] = session
        return session

    def _path(self, spec: ModelSpec) -> Path:
        path = settings.model_path(spec.version_directory, spec.config)
        if not path.is_file():
            raise Unavailable(f"unable to find '{path}' for model instance '{spec.name}'")
        return path
