"""Which models need which: ensembles and their members, cycles, and the models to unload together.

Pure functions on names and configurations. Texts and rules: triton-inference-server/core
src/model_repository_manager/model_repository_manager.cc (DependencyGraph, CheckNode).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from edge_serve.config.checks.checks import check_cache
from edge_serve.config.checks.ensemble import check_ensemble_members, member_key
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.records import frozen

#: the text before the name of a similar model, in the failure of a model that is in no repository
_DID_YOU_MEAN = ", did you mean "
#: model -> the models that it needs itself
Needs = Mapping[str, Collection[str]]


class LoadFailure(InvalidArgument):
    """A model could not be loaded.

    Attributes:
        reason: the message without the name of the model, as it is quoted for the ensembles that need it.
        invalid: the ensemble itself cannot work, rather than that loading it failed.
    """

    def __init__(self, name: str, reason: str, *, invalid: bool = False) -> None:
        super().__init__(f"load failed for model '{name}': {reason}\n")
        self.reason = reason
        self.invalid = invalid


@frozen
class MemberFacts:
    """The state of a model that an ensemble needs.

    Attributes:
        config: the completed configuration of its highest version; None if no version serves.
        versions: the versions that serve.
        failure: the error of its last load; known: whether its configuration could be read, now or before.
    """

    config: pb.ModelConfig | None = None
    versions: Collection[int] = ()
    failure: EdgeServeError | None = None
    known: bool = True


def members_of(config: pb.ModelConfig) -> dict[str, set[int]]:
    """Return the members of an ensemble, and the versions that its steps name (-1: any); empty for other models."""
    members: dict[str, set[int]] = {}
    for step in config.ensemble_scheduling.step:
        members.setdefault(member_key(step), set()).add(step.model_version)
    return members


def _meant(failure: EdgeServeError | None) -> str:
    """Return the end of a failure that names the model with the most similar name; "" = it names none."""
    _, found, name = failure.message.partition(_DID_YOU_MEAN) if failure is not None else ("", "", "")
    return found + name.strip()


def check_members(config: pb.ModelConfig, member: Callable[[str], MemberFacts]) -> bool:
    """Check an ensemble against its members as they are now. Return whether it is decoupled.

    Raises:
        LoadFailure: the ensemble cannot work with them.
    """
    name, needed = config.name, members_of(config)
    members = {model: member(model) for model in needed}
    missing = sorted(model for model, found in members.items() if not found.known)
    if missing:
        text = f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}"
        text += "; put them into the repository, or correct model_name in its steps"
        text += "".join(dict.fromkeys(_meant(members[model].failure) for model in missing))
        raise LoadFailure(name, text, invalid=True)
    for model, found in members.items():
        _check_member(name, model, found, needed[model])
    configs = {
        member_key(step): completed
        for step in config.ensemble_scheduling.step
        if (completed := members[member_key(step)].config) is not None
    }
    try:
        decoupled = check_ensemble_members(config, configs)
        check_cache(config, decoupled=decoupled)
    except InvalidArgument as error:
        raise LoadFailure(name, error.message, invalid=True) from error
    return decoupled


def _check_member(name: str, model: str, member: MemberFacts, versions: Collection[int]) -> None:
    start, failure = f"ensemble '{name}' depends on '{model}'", member.failure
    if isinstance(failure, LoadFailure) and failure.invalid and not member.versions:
        text = f"{start} which is not valid. Model '{model}' failed with error: {failure.reason}"
        raise LoadFailure(name, text, invalid=True)
    if not member.versions:
        text = f"{start} which has no loaded version."
        if failure is not None:
            reason = failure.reason if isinstance(failure, LoadFailure) else failure.message
            text += f" Model '{model}' loading failed with error: {reason}"
        raise LoadFailure(name, text, invalid=True)
    for version in sorted(versions):
        if version != -1 and version not in member.versions:
            text = f"{start} whose required version {version} is not loaded."
            raise LoadFailure(name, text, invalid=True)


def circles(needs: Needs) -> dict[str, LoadFailure]:
    """Return a failure for each model that needs itself, directly or through others."""
    found = {}
    for start in needs:
        last = next((model for model in sorted(needed_by(start, needs)) if start in needs.get(model, ())), None)
        if last is not None:
            text = f"circular dependency between ensembles: {start} -> ... -> {last} -> {start}"
            text += "; change model_name in one of their steps: an ensemble cannot be a step of itself"
            found[start] = LoadFailure(start, text, invalid=True)
    return found


def dependents(names: Collection[str], needs: Needs) -> set[str]:
    """Return every model that needs one of `names`, directly or through others, without `names` themselves."""
    found = set(names)
    while more := {model for model, others in needs.items() if model not in found and not found.isdisjoint(others)}:
        found |= more
    return found - set(names)


def needed_by(name: str, needs: Needs) -> set[str]:
    """Return `name`, and every model that it needs, directly or through others."""
    found, left = {name}, [name]
    while left:
        more = [other for other in needs.get(left.pop(), ()) if other not in found]
        found.update(more)
        left += more
    return found


def find_unneeded(name: str, needs: Needs, explicit: Callable[[str], bool]) -> set[str]:
    """Return the models to unload with `name`: it, and members that were not asked for and that no other model needs.

    Args:
        explicit: whether a model was asked for by its own name.
    """
    going, left = {name}, [name]
    while left:
        for member in needs.get(left.pop(), ()):
            others = {model for model, needed in needs.items() if member in needed}
            if member not in going and not explicit(member) and others <= going:
                going.add(member)
                left.append(member)
    return going


def outermost_first(names: Collection[str], needs: Needs) -> list[list[str]]:
    """Return `names` in waves: a model comes after all the others that need it. Models in a cycle come last."""
    waves = []
    left = set(names)
    while left:
        wave = {name for name in left if not any(name in needs.get(other, ()) for other in left)}
        waves.append(sorted(wave or left))
        left -= set(waves[-1])
    return waves
