"""A new ensemble: a chain of models of the repository, each with the outputs of those before it as inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.config.checks.ensemble import ENSEMBLE, check_ensemble, check_ensemble_members
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.stages import load_model_config
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.init.config_text import ensemble_text
from edge_serve.init.directory import VERSION, ModelPlace
from edge_serve.messages.tensors import same_shape
from edge_serve.models.repository.repository import Repository, versions
from edge_serve.records import slotted
from edge_serve.workers.front.workers import Workers

#: makes git keep the version directory, which an ensemble needs and has nothing in
PLACEHOLDER = ".gitkeep"
_WHY = "An ensemble has no files of its own, but needs a version directory; git keeps no directory that is empty.\n"

_Tensor = pb.ModelInput | pb.ModelOutput


def make(place: ModelPlace, members: Sequence[str]) -> pb.ModelConfig:
    """Write the ensemble. Return its configuration.

    Raises:
        InvalidArgument: a member is not there or cannot be read, or they do not fit each other.
    """
    configs = asyncio.run(_completed(place.repository, members))
    config, notes = connect(place.name, configs)
    try:
        check_ensemble(config)
        check_ensemble_members(config, {one.name: one for one in configs})
    except InvalidArgument as error:
        raise InvalidArgument(f"{', '.join(members)} make no ensemble: {error.message}") from error
    place.write("config.pbtxt", ensemble_text(config, notes))
    place.write(f"{VERSION}/{PLACEHOLDER}", _WHY)
    return config


async def _completed(repository: Path, members: Sequence[str]) -> list[pb.ModelConfig]:
    """Return the members' configurations, completed by their models."""
    found = Repository([repository]).scan()
    workers = Workers()
    configs: dict[str, pb.ModelConfig] = {}
    try:
        for name in dict.fromkeys(members):
            if name not in found:
                there = ", ".join(found) or "no models"
                raise InvalidArgument(f"--ensemble: there is no model '{name}' in '{repository}': found {there}")
            try:
                configs[name] = await _complete(found[name].directory, name, workers)
            except EdgeServeError as error:
                raise InvalidArgument(f"--ensemble: model '{name}': {error.message}") from error
    finally:
        await workers.stop()
    return [configs[name] for name in members]


async def _complete(directory: Path, name: str, workers: Workers) -> pb.ModelConfig:
    config = load_model_config(directory, auto_complete=True, name=name)
    newest = versions(directory)[-1:]
    if not config.backend or not newest or (config.input and config.output):
        return config
    spec = ModelSpec(config.name, newest[0], directory, directory / str(newest[0]), model_config_to_json(config))
    return model_config_from_json(await workers.describe(spec, config.backend, own_worker=True))


@slotted
class _Written:
    """A tensor of the ensemble that an earlier step writes.

    Attributes:
        name: in the ensemble; "" until something reads it.
    """

    model: str
    spec: pb.ModelOutput
    entries: pb.ModelEnsembling.Step
    batched: bool
    name: str = ""


@slotted
class _Chain:
    """The ensemble as far as it is made."""

    config: pb.ModelConfig
    batched: bool
    written: list[_Written] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def unused(self, name: str, model: str) -> str:
        """Return `name`, or one made of it that no other tensor has."""
        for candidate in (name, f"{model}_{name}", *(f"{model}_{name}_{number}" for number in range(2, 1000))):
            if candidate not in self.names:
                break
        self.names.add(candidate)
        return candidate


def connect(name: str, members: Sequence[pb.ModelConfig]) -> tuple[pb.ModelConfig, list[str]]:
    """Return the ensemble of a chain of models, and notes for its author.

    An input is connected to the output of an earlier model that has its name, else to the only one of the model before
    that has its type and shape. Inputs that are left are inputs of the ensemble; the outputs of the last model are its
    outputs.

    Raises:
        InvalidArgument: nothing connects a model to those before it.
    """
    batched = all(member.max_batch_size > 0 for member in members)
    config = pb.ModelConfig(name=name, platform=ENSEMBLE)
    config.max_batch_size = min(member.max_batch_size for member in members) if batched else 0
    chain = _Chain(config, batched)
    last = members[-1]
    for member in members:
        for side, specs in (("inputs", member.input), ("outputs", member.output)):
            if not specs:
                raise InvalidArgument(f"model '{member.name}' declares no {side}: add them to its config.pbtxt")
    chain.names.update(tensor.name for tensor in last.output)
    for member in members:
        _add_step(chain, member)
    for one in chain.written[-len(last.output) :]:
        one.name = one.spec.name
        one.entries.output_map[one.spec.name] = one.name
        config.output.add(name=one.name, data_type=one.spec.data_type, dims=_dims(one.spec, one.batched, batched))
    return config, chain.notes


def _add_step(chain: _Chain, member: pb.ModelConfig) -> None:
    step = chain.config.ensemble_scheduling.step.add(model_name=member.name, model_version=-1)
    has_batch = member.max_batch_size > 0
    sources = [_source(chain.written, spec, has_batch) for spec in member.input]
    if chain.written and not any(sources):
        raise InvalidArgument(
            f"no output of the models before '{member.name}' fits one of its inputs: it takes "
            f"{_faces(member.input)}, and they give {_faces([one.spec for one in chain.written])}"
        )
    for spec, source in zip(member.input, sources, strict=True):
        if source is not None:
            name = source.name = source.name or chain.unused(f"{source.model}_{source.spec.name}", source.model)
            source.entries.output_map[source.spec.name] = name
        else:
            name = chain.unused(spec.name, member.name)
            chain.config.input.add(name=name, data_type=spec.data_type, dims=_dims(spec, has_batch, chain.batched))
            if chain.written:
                chain.notes.append(f"'{name}' is an input of the ensemble, because no model before '{member.name}' "
                                   "writes such a tensor.")  # fmt: skip
        step.input_map[spec.name] = name
    chain.written += [_Written(member.name, spec, step, has_batch) for spec in member.output]


def _source(written: Sequence[_Written], spec: pb.ModelInput, has_batch: bool) -> _Written | None:
    fitting = [one for one in written if _fits(one, spec, has_batch)]
    if named := [one for one in fitting if one.spec.name == spec.name]:
        return named[-1]
    before = [one for one in fitting if one.entries is written[-1].entries]
    return before[0] if len(before) == 1 else None


def _fits(one: _Written, spec: pb.ModelInput, has_batch: bool) -> bool:
    if one.spec.data_type != spec.data_type:
        return False
    bare = (tuple(one.spec.dims), tuple(spec.dims))
    full = ((-1,) * one.batched + bare[0], (-1,) * has_batch + bare[1])
    return same_shape(*bare) or same_shape(*full)


def _dims(spec: _Tensor, has_batch: bool, batched: bool) -> list[int]:
    """Return dims as the ensemble declares them: with the batch of a member where the ensemble has none itself."""
    return [-1, *spec.dims] if has_batch and not batched else list(spec.dims)


def _faces(specs: Sequence[_Tensor]) -> str:
    return ", ".join(f"{spec.name} {pb.DataType.Name(spec.data_type)} {list(spec.dims)}" for spec in specs) or "nothing"
