"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT or OpenVINO.

Start in `instance` for what happens to a batch, in `settings` for what the configuration can say. docs/onnxruntime.md
is the user's page, and has the measurements behind the defaults.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.backends.onnxruntime import settings as settings
from edge_serve.backends.onnxruntime.external import check_external_data
from edge_serve.backends.onnxruntime.instance import OnnxInstance, SharedSession
from edge_serve.backends.onnxruntime.plan import make_plan
from edge_serve.backends.onnxruntime.providers import CPU, notes, providers
from edge_serve.config.model.complete import DEFAULT_MAX_BATCH_SIZE, check_onnx, complete_onnx
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import Unavailable, with_advice


class OnnxRuntimeBackend:
    """One version of an ONNX model: one session for each device that its instances are on, two on a shared CPU."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, int], sessions.Session] = {}
        self._shared: dict[tuple[str, int], SharedSession] = {}
        #: how many instances were opened on each device, and what their second session was made with
        self._opened: Counter[tuple[str, int]] = Counter()
        self._divided: dict[tuple[str, int], settings.SessionSettings] = {}

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration with the model's own inputs and outputs filled in, and whether it batches.

        Raises:
            InvalidArgument: the configuration contradicts the model.
            Internal, Unavailable: the model does not load.
        """
        config = spec.config
        if (config.get("input") or config.get("batch_input")) and config.get("output"):
            return config
        session = self._session(spec, *sessions.first_place(config))
        default = settings.default_max_batch_size(spec.backend_config, DEFAULT_MAX_BATCH_SIZE)
        return complete_onnx(config, sessions.inputs(session), sessions.outputs(session), default)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[OnnxInstance]:
        """Load the model.

        Raises:
            InvalidArgument: the configuration contradicts the model, or has a value that is not known.
            Internal, Unavailable: the model does not load.
        """
        opened = []
        for note in notes(spec.config):
            host.log("WARNING", f"model '{spec.name}': {note}")
        places = [("GPU", each.device_id) if each.kind == "GPU" else ("CPU", 0) for each in instances]
        for place in places:
            session = self._session(spec, *place)
            inputs, outputs = sessions.inputs(session), sessions.outputs(session)
            overridable = sessions.overridable(session)
            check_onnx(spec.config, inputs, outputs, overridable)
            plan = make_plan(spec.config, [*inputs, *overridable], outputs)
            options = sessions.run_options(self._settings(spec))
            shared = self._shared.setdefault(place, SharedSession(session))
            opened.append(OnnxInstance(shared, plan, options))
        self._opened.update(places)
        for place in dict.fromkeys(places):
            self._divide(spec, place)
        return opened

    def close(self) -> None:
        """Release the sessions."""
        self._sessions.clear()
        self._shared.clear()

    def _settings(self, spec: ModelSpec) -> settings.SessionSettings:
        size = settings.model_bytes(self._path(spec))
        return settings.session_settings(spec.config, spec.backend_config, size)

    def _divide(self, spec: ModelSpec, place: tuple[str, int]) -> None:
        wanted = providers(spec.config, *place)
        if [provider.name for provider in wanted] != [CPU]:
            return
        path, cores = self._path(spec), len(os.sched_getaffinity(0))
        size, instances = settings.model_bytes(path), self._opened[place]
        made = settings.settings_together(self._settings(spec), size, instances, cores)
        if made is not None and made != self._divided.get(place):
            self._shared[place].divide(sessions.make(path, made, wanted, spec.name))
            self._divided[place] = made

    def _session(self, spec: ModelSpec, kind: str, device: int) -> sessions.Session:
        session = self._sessions.get((kind, device))
        if session is None:
            path = self._path(spec)
            pool = settings.global_threads(spec.backend_config)
            if pool is not None:
                sessions.use_global_threads(pool)
            check_external_data(path, spec.model_directory)
            wanted = providers(spec.config, kind, device)
            session = sessions.make(path, self._settings(spec), wanted, spec.name)
            self._sessions[kind, device] = session
        return session

    def _path(self, spec: ModelSpec) -> Path:
        path = settings.model_path(spec.version_directory, spec.config)
        if not path.is_file():
            text = f"unable to find '{path}' for model instance '{spec.name}'"
            raise Unavailable(with_advice(text, advice_on_file(path.parent, path.name, spec.name)))
        return path


#: the name that `backends.loader` looks for
Backend = OnnxRuntimeBackend
