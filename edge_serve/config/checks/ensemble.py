"""Checks of `ensemble_scheduling`: the ensemble by itself, and against the completed configurations of its members.

The second half is Triton's core src/ensemble_scheduler/ensemble_utils.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import same_shape, shape_text
from edge_serve.records import frozen

ENSEMBLE = "ensemble"
#: between a namespace and a name, where models go by both (`--model-namespacing`)
NAMESPACE_END = "::"


def check_ensemble(config: pb.ModelConfig) -> None:
    """Check an ensemble without its members: steps are whole, tensors flow from inputs to outputs, none is unused.

    Raises:
        InvalidArgument: with Triton's text.
    """
    name = config.name
    if config.platform != ENSEMBLE:
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
        raise InvalidArgument(text)
    if config.instance_group:
        raise InvalidArgument(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise InvalidArgument(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidArgument(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        raise InvalidArgument(f"must specify 'step' for ensemble '{name}'")
    _check_steps(config)
    _check_flow(config)


def _check_steps(config: pb.ModelConfig) -> None:
    written: set[str] = set()
    for index, step in enumerate(config.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidArgument(f"must specify '{field}' in step {index} of ensemble '{config.name}'")
        for tensor in step.output_map.values():
            if tensor in written:
                raise InvalidArgument(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{config.name}' "
                    f"step {index}"
                )
            written.add(tensor)


def _check_flow(config: pb.ModelConfig) -> None:
    name = config.name
    sources: dict[str, set[str]] = {}
    read: set[str] = set()
    for step in config.ensemble_scheduling.step:
        read.update(step.input_map.values())
        for tensor in step.output_map.values():
            sources[tensor] = set(step.input_map.values())
    known = read | sources.keys()
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for tensor in inputs:
        if tensor not in known:
            raise InvalidArgument(f"ensemble input '{tensor}' for ensemble {name}' is not used")
    ready = _reachable(inputs, sources)
    for tensor in outputs:
        if tensor not in known:
            raise InvalidArgument(f"ensemble output '{tensor}' for ensemble {name}' is not used")
        if tensor not in ready:
            raise InvalidArgument(
                f"output '{tensor}' for ensemble '{name}' is not written{_why(tensor, sources, ready)}"
            )
    for tensor in sorted(known - set(outputs)):
        if tensor not in ready or tensor not in read:
            raise InvalidArgument(f"ensemble tensor '{tensor}' is unused in ensemble '{name}'")


def _reachable(inputs: Sequence[str], sources: Mapping[str, set[str]]) -> set[str]:
    """Return the tensors that have a value once all steps have run."""
    ready = set(inputs)
    while more := {tensor for tensor, needs in sources.items() if tensor not in ready and needs <= ready}:
        ready |= more
    return ready


def _why(tensor: str, sources: Mapping[str, set[str]], ready: set[str]) -> str:
    """Return the end of a message: the furthest tensor upstream that never gets a value."""
    seen: set[str] = set()
    last = tensor
    while missing := sorted(sources.get(last, set()) - ready - seen):
        last = missing[0]
        seen.add(last)
    if last == tensor:
        return ""
    return f": at least one of its depending tensors, '{last}', is not connected"


@frozen
class _Known:
    """An ensemble tensor's type and shape, and the model they come from; `full` has the batch dimension in front."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    full: tuple[int, ...]


def member_key(step: pb.ModelEnsembling.Step) -> str:
    """Return the name of a step's model in messages and in `members` below: `name`, or `namespace::name`."""
    return f"{step.model_namespace}{NAMESPACE_END}{step.model_name}" if step.model_namespace else step.model_name


def check_ensemble_members(config: pb.ModelConfig, members: Mapping[str, pb.ModelConfig]) -> bool:
    """Check that the ensemble and its members agree in types, shapes and batch sizes. Return whether it is decoupled.

    Args:
        members: completed configurations by `member_key`.

    Raises:
        InvalidArgument: with Triton's text.
    """
    tensors: dict[str, _Known] = {}
    own: list[pb.ModelInput | pb.ModelOutput] = [*config.input, *config.output]
    for tensor in own:
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        tensors.setdefault(tensor.name, _known(config.name, config, tensor.data_type, dims))
    for step in config.ensemble_scheduling.step:
        member = members[member_key(step)]
        if 0 < member.max_batch_size < config.max_batch_size:
            raise InvalidArgument(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}"
            )
        _check_inputs(config.name, step, member, tensors)
        _check_outputs(config.name, step, member, tensors)
    return _check_decoupled(config, members)


def _known(model: str, config: pb.ModelConfig, data_type: int, dims: Sequence[int]) -> _Known:
    batch = (-1,) if config.max_batch_size > 0 else ()
    return _Known(model, data_type, tuple(dims), (*batch, *dims))


def _check_inputs(name: str, step: pb.ModelEnsembling.Step, member: pb.ModelConfig, tensors: dict[str, _Known]) -> None:
    model, inputs = member_key(step), {tensor.name for tensor in member.input}
    for inner, outer in step.input_map.items():
        if inner not in inputs:
            raise InvalidArgument(
                f"in ensemble {name}, ensemble tensor {outer} is mapping to non-existing input {inner} in model {model}"
                f"; the inputs of {model} are {', '.join(sorted(inputs))} (input_map has its own name as key)"
            )
    for tensor in member.input:
        if tensor.name in step.input_map:
            outer = step.input_map[tensor.name]
            _agree(name, outer, _known(model, member, tensor.data_type, tensor.dims), tensors)
        elif not tensor.optional:
            raise InvalidArgument(
                f"in ensemble {name}, input {tensor.name} in model {model} is not mapped to any ensemble tensors"
                f'; add to its step: input_map {{ key: "{tensor.name}" value: "TENSOR" }}'
            )


def _check_outputs(
    name: str, step: pb.ModelEnsembling.Step, member: pb.ModelConfig, tensors: dict[str, _Known]
) -> None:
    outputs = {tensor.name: tensor for tensor in member.output}
    for inner, outer in step.output_map.items():
        if inner not in outputs:
            raise InvalidArgument(
                f"in ensemble {name}, ensemble tensor {outer} is mapped from non-existing output {inner} in model "
                f"{step.model_name}; its outputs are {', '.join(sorted(outputs))} (output_map has its own name as key)"
            )
    for inner, outer in step.output_map.items():
        found = _known(member_key(step), member, outputs[inner].data_type, outputs[inner].dims)
        _agree(name, outer, found, tensors)


def _agree(name: str, tensor: str, found: _Known, tensors: dict[str, _Known]) -> None:
    """Record `found`, or compare it with the record that an earlier model made of the same tensor."""
    known = tensors.setdefault(tensor, found)
    where = f"in ensemble {name}, ensemble tensor {tensor}: inconsistent"
    if known.data_type != found.data_type:
        raise InvalidArgument(
            f"{where} data type: {_type(known.data_type)} is inferred from model {known.model} while "
            f"{_type(found.data_type)} is inferred from model {found.model}{_advice_on_types(name, known, found)}"
        )
    # a batch of one crosses between a batching and a non-batching model, so bare dims may agree too
    if not same_shape(known.dims, found.dims) and not same_shape(known.full, found.full):
        raise InvalidArgument(
            f"{where} shape: {shape_text(known.full)} is inferred from model {known.model} while "
            f"{shape_text(found.full)} is inferred from model {found.model}{_advice_on_shapes(name, known, found)}"
        )


def _advice_on_types(name: str, known: _Known, found: _Known) -> str:
    if known.model == name:
        return f"; write data_type: {_type(found.data_type)} for it in {name}/config.pbtxt"
    return "; put a model between the two that converts it"


def _advice_on_shapes(name: str, known: _Known, found: _Known) -> str:
    if (known.dims == known.full) != (found.dims == found.full) and same_shape(known.dims, found.dims):
        return "; max_batch_size is 0 in one of the two and not in the other: make it 0 or not in both"
    if known.model == name:
        return f"; write dims: {shape_text(found.dims)} for it in {name}/config.pbtxt"
    return "; put a model between the two that reshapes it"


def _type(data_type: int) -> str:
    """Return the type's name. The ensemble's own may be an unknown number until it is compared with its members."""
    return pb.DataType.Name(data_type) if data_type in pb.DataType.values() else str(data_type)


def _check_decoupled(config: pb.ModelConfig, members: Mapping[str, pb.ModelConfig]) -> bool:
    """Follow replies downstream: neither a step nor the ensemble's response mixes those of two decoupled models."""
    origin = {tensor.name: 0 for tensor in config.input}
    origins = 0
    waiting = list(config.ensemble_scheduling.step)
    while runnable := [step for step in waiting if all(t in origin for t in step.input_map.values())]:
        for step in runnable:
            waiting.remove(step)
            source = _only_origin(config, member_key(step), {origin[tensor] for tensor in step.input_map.values()})
            if members[member_key(step)].model_transaction_policy.decoupled:
                source = origins = origins + 1
            origin.update((tensor, source) for tensor in step.output_map.values())
    _only_origin(config, config.name, {origin[tensor.name] for tensor in config.output if tensor.name in origin} or {0})
    return origins > 0


def _only_origin(config: pb.ModelConfig, receiver: str, origins: set[int]) -> int:
    if len(origins) > 1:
        raise InvalidArgument(
            f"in ensemble {config.name}, step of model '{receiver}' receives inputs originated from "
            "different decoupled models"
        )
    return origins.pop()
