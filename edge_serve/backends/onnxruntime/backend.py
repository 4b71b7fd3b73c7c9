"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT or OpenVINO.

Start in `instance` for what happens to a batch (on a GPU: `gpu_instance`), in `settings` for what the configuration can
say. docs/onnxruntime.md is the user's page, and has the measurements behind the defaults.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.binding_plan import BindingPlan, make_plan
from edge_serve.backends.cuda.api import CudaApi, load_cuda
from edge_serve.backends.cuda.path_settings import path_settings
from edge_serve.backends.cuda.registered_arena import registered_memory
from edge_serve.backends.cuda.tensor_path import TensorPath
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.backends.onnxruntime import settings as settings
from edge_serve.backends.onnxruntime.external import check_external_data
from edge_serve.backends.onnxruntime.gpu_instance import OnnxGpuInstance
from edge_serve.backends.onnxruntime.gpu_session import NO_WAIT, WAIT, GpuSession, SeatBinding
from edge_serve.backends.onnxruntime.instance import OnnxInstance, SharedSession
from edge_serve.backends.onnxruntime.providers import CPU, Provider, notes, on_stream, providers
from edge_serve.config.model.complete import DEFAULT_MAX_BATCH_SIZE, check_onnx, complete_onnx
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import Unavailable, with_advice


class OnnxRuntimeBackend:
    """One version of an ONNX model: a session for each instance on a GPU, and one or two that share the CPU.

    Args:
        cuda: returns the calls of CUDA, once an instance is on a GPU.
    """

    def __init__(self, cuda: Callable[[], CudaApi] = load_cuda) -> None:
        self._cuda = cuda
        #: why it cannot be called
        self._no_cuda = ""
        #: sessions on GPUs that no instance has taken yet, by their devices
        self._gpu_sessions: dict[int, GpuSession] = {}
        #: sessions on GPUs of models with strings, whose instances copy nothing themselves
        self._text_sessions: list[GpuSession] = []
        self._shared: dict[tuple[str, int], SharedSession] = {}
        #: number of instances that were opened on each device, and the settings of their second session
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
        kind, device = sessions.first_place(config)
        gpu = self._gpu_session(spec, device) if kind == "GPU" else None
        if gpu is not None:
            self._gpu_sessions[device] = gpu
        session = self._shared_session(spec, kind, device).alone if gpu is None else gpu.session
        default = settings.default_max_batch_size(spec.backend_config, DEFAULT_MAX_BATCH_SIZE)
        return complete_onnx(config, sessions.inputs(session), sessions.outputs(session), default)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[OnnxInstance | OnnxGpuInstance]:
        """Load the model.

        Raises:
            InvalidArgument: the configuration contradicts the model, or has a value that is not known.
            Internal, Unavailable: the model does not load.
        """
        opened: list[OnnxInstance | OnnxGpuInstance] = []
        for note in notes(spec.config):
            host.log("WARNING", f"model '{spec.name}': {note}")
        places = [("GPU", each.device_id) if each.kind == "GPU" else ("CPU", 0) for each in instances]
        try:
            for place in places:
                opened.append(self._open_one(spec, *place))
        except BaseException:
            for instance in opened:
                instance.close()
            raise
        self._opened.update(places)
        for place in dict.fromkeys(places):
            self._divide(spec, place)
        return opened

    def close(self) -> None:
        """Release the sessions."""
        self._shared.clear()
        for gpu in (*self._gpu_sessions.values(), *self._text_sessions):
            gpu.close()
        self._gpu_sessions.clear()
        self._text_sessions.clear()

    def _open_one(self, spec: ModelSpec, kind: str, device: int) -> OnnxInstance | OnnxGpuInstance:
        gpu = self._gpu_session(spec, device) if kind == "GPU" else None
        if gpu is not None:
            try:
                return self._on_gpu(spec, gpu)
            except BaseException:
                gpu.close()
                raise
        shared = self._shared_session(spec, kind, device)
        if kind == "GPU":
            host.log("WARNING", f"model '{spec.name}': ONNX Runtime copies inputs and outputs itself: {self._no_cuda}")
        return OnnxInstance(shared, _checked_plan(spec, shared.alone), sessions.run_options(self._settings(spec)))

    def _on_gpu(self, spec: ModelSpec, gpu: GpuSession) -> OnnxInstance | OnnxGpuInstance:
        plan, made = _checked_plan(spec, gpu.session), self._settings(spec)
        if plan.has_text:  # strings have no place on the device: the library copies the other tensors
            instance = OnnxInstance(SharedSession(gpu.session), plan, sessions.run_options(made))
            self._text_sessions.append(gpu)
            return instance
        most = int(spec.config.get("max_batch_size", 0))
        gpu.path.use(registered_memory(gpu.cuda, spec, gpu.device))
        options, waiting = (sessions.run_options(made, more) for more in (NO_WAIT, WAIT))
        bindings = [SeatBinding(gpu, seat.inputs, options, waiting, most) for seat in gpu.path.seats]
        return OnnxGpuInstance(gpu, plan, bindings)

    def _gpu_session(self, spec: ModelSpec, device: int) -> GpuSession | None:
        """Return a session on a stream of its own; None if the library has to copy tensors itself."""
        if device in self._gpu_sessions:
            return self._gpu_sessions.pop(device)
        wanted = providers(spec.config, "GPU", device)
        try:
            cuda = self._cuda()
        except Unavailable as error:
            self._no_cuda = error.message
            return None
        cuda.set_device(device)
        path = TensorPath(cuda, _seats(spec), path_settings(spec.config.get("optimization") or {}))
        try:
            return GpuSession(cuda, device, path, self._make(spec, on_stream(wanted, path.compute_stream)))
        except BaseException:
            path.close()
            raise

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

    def _shared_session(self, spec: ModelSpec, kind: str, device: int) -> SharedSession:
        shared = self._shared.get((kind, device))
        if shared is None:
            session = self._make(spec, providers(spec.config, kind, device))
            shared = self._shared[kind, device] = SharedSession(session)
        return shared

    def _make(self, spec: ModelSpec, wanted: list[Provider]) -> sessions.Session:
        path = self._path(spec)
        pool = settings.global_threads(spec.backend_config)
        if pool is not None:
            sessions.use_global_threads(pool)
        check_external_data(path, spec.model_directory)
        return sessions.make(path, self._settings(spec), wanted, spec.name)

    def _path(self, spec: ModelSpec) -> Path:
        path = settings.model_path(spec.version_directory, spec.config)
        if not path.is_file():
            text = f"unable to find '{path}' for model instance '{spec.name}'"
            raise Unavailable(with_advice(text, advice_on_file(path.parent, path.name, spec.name)))
        return path


def _checked_plan(spec: ModelSpec, session: sessions.Session) -> BindingPlan:
    inputs, outputs = sessions.inputs(session), sessions.outputs(session)
    overridable = sessions.overridable(session)
    check_onnx(spec.config, inputs, outputs, overridable)
    return make_plan(spec.config, [*inputs, *overridable], outputs)


def _seats(spec: ModelSpec) -> int:
    """Return how many batches of an instance may be on their way; one, where the next needs the states of the last."""
    return 1 if (spec.config.get("sequence_batching") or {}).get("state") else 2


#: the names that `backends.loader` looks for
Backend = OnnxRuntimeBackend
warm_up = sessions.warm_up
