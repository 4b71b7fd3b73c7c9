"""Checks of `instance_group`, after normalise.normalise_instance_groups (ValidateInstanceGroup)."""

from __future__ import annotations

from collections.abc import Sequence

from edge_serve.config.checks.io import TENSORRT
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.normalise import is_python
from edge_serve.errors import Internal, InvalidArgument, with_advice

_KIND = pb.ModelInstanceGroup.Kind
_NO_GPU = (
    "write kind: KIND_AUTO in its instance_group, which is a GPU where there is one and the CPU elsewhere, or "
    "kind: KIND_CPU; edge-serve doctor looks for GPUs"
)
_NO_DRIVER = "no NVIDIA driver was found; edge-serve doctor looks for GPUs"
#: of one model. A slip of the finger must not fill the machine with processes, or the server with their descriptions
MOST_INSTANCES = 1024
#: of one model in one process, as of all but Python models: the kernel passes 253 descriptors at once (SCM_MAX_FD), one
#: for each instance and one for the tensor memory
MOST_IN_PROCESS = 252


def check_instance_groups(
    config: pb.ModelConfig, gpus: Sequence[int] | None = None, min_compute_capability: float = 0.0, lack: str = ""
) -> None:
    """Check that every group can have its instances on this machine, and has a name of its own.

    Args:
        gpus: ids of the usable GPUs; None = this server has no GPU support at all.
        lack: why no GPU is usable; "" = one is, or nothing hints at a GPU.

    Raises:
        InvalidArgument: with Triton's text. Group names used twice pass in Triton; metrics and logs then mix them up.
            So do any number of instances, and none that would ever run a request.
        Internal: a group's kind was never settled.
    """
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        raise InvalidArgument(f"must specify one or more 'instance group's for {config.name}")
    seen: set[str] = set()
    for group in config.instance_group:
        where = f"instance group {group.name} of model {config.name}"
        _check_kind(group, config, gpus, min_compute_capability, lack)
        _check_profiles(group, where, config.platform)
        if group.name in seen:
            raise InvalidArgument(f"{where} has the name of another group of the model")
        seen.add(group.name)
    if all(group.passive for group in config.instance_group):
        raise InvalidArgument(f"all instances of model {config.name} are passive, so that none would run a request")
    count = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    most = MOST_INSTANCES if is_python(config) else MOST_IN_PROCESS
    if count > most:
        text = f"model {config.name} asks for {count} instances, at most {most} are possible"
        raise InvalidArgument(with_advice(text, "lower count in its instance_group"))


def _check_kind(
    group: pb.ModelInstanceGroup, config: pb.ModelConfig, gpus: Sequence[int] | None, capability: float, lack: str
) -> None:
    where = f"instance group {group.name} of model {config.name}"
    without_gpu = _advice_without_gpu(group, config.platform, lack)
    match group.kind:
        case pb.ModelInstanceGroup.KIND_GPU:
            _check_gpus(group, where, gpus, capability, without_gpu)
        case pb.ModelInstanceGroup.KIND_CPU | pb.ModelInstanceGroup.KIND_MODEL:
            if group.gpus:
                text = f"{where} has kind {_KIND.Name(group.kind)} but specifies one or more GPUs"
                raise InvalidArgument(with_advice(text, "remove the line gpus: [...] from its instance_group"))
            if config.platform == TENSORRT:
                text = f"unable to load model '{config.name}', TensorRT backend supports only GPU device"
                advice = "write instance_group [ { kind: KIND_GPU } ]" if gpus else without_gpu
                raise InvalidArgument(with_advice(text, advice))
        case _:
            kind = _KIND.Name(group.kind) if group.kind in _KIND.values() else str(group.kind)
            raise Internal(f"{where} has unexpected kind {kind}")


def _advice_without_gpu(group: pb.ModelInstanceGroup, platform: str, lack: str) -> str:
    """Return the advice where no GPU is usable. A plan of TensorRT has instances on GPUs only."""
    if platform == TENSORRT:
        return f"no GPU is usable: {lack or _NO_DRIVER}; or serve the ONNX file of this plan, which the CPU runs too"
    return lack or (f"{_NO_GPU}, and remove gpus: [...]" if group.gpus else _NO_GPU)


def _check_gpus(
    group: pb.ModelInstanceGroup, where: str, gpus: Sequence[int] | None, capability: float, without_gpu: str
) -> None:
    if gpus is None:
        text = f"{where} has kind KIND_GPU but server does not support GPUs"
        raise InvalidArgument(with_advice(text, without_gpu))
    if not group.gpus:
        reason = "specifies no GPUs" if gpus else "no GPUs are available"
        raise InvalidArgument(with_advice(f"{where} has kind KIND_GPU but {reason}", "" if gpus else without_gpu))
    for gpu in group.gpus:
        if gpu not in gpus:
            raise InvalidArgument(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {capability:f} are: {', '.join(map(str, gpus))}"
            )


def _check_profiles(group: pb.ModelInstanceGroup, where: str, platform: str) -> None:
    if group.profile and platform != TENSORRT:
        raise InvalidArgument(
            f"{where} and platform {platform} specifies profile field which is only supported for TensorRT models"
        )
    for profile in group.profile:
        if not profile.isascii() or not profile.isdigit():
            raise InvalidArgument(
                f"{where} and platform {platform} specifies invalid profile {profile}. The field should contain the "
                "string representation of a non-negative integer."
            )
