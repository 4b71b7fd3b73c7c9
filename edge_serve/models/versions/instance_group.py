"""The instances that `instance_group` asks for, and which existing instances a new one keeps.

As in Triton (core src/backend_model.cc, PrepareInstances), an instance is kept when its group says the same but for
name and count, and it is on the same device.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_serve.backends.base import InstanceSpec
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.records import frozen


@frozen
class Placed:
    """An instance, and the group that asks for it.

    Attributes:
        signature: its group without name and count, serialized.
    """

    spec: InstanceSpec
    group: pb.ModelInstanceGroup
    signature: bytes

    def replaces(self, other: Placed) -> bool:
        """Return whether the instance `other` is what this one asks for."""
        return (self.signature, self.spec.device_id) == (other.signature, other.spec.device_id)


def place_instances(config: pb.ModelConfig) -> list[Placed]:
    """Return every instance, in the order of the groups; one per GPU and count where the group names GPUs."""
    found = []
    for group in config.instance_group:
        kind, signature = pb.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"), _signature(group)
        for device in list(group.gpus) if kind == "GPU" else [0]:
            suffix = f"_gpu{device}" if kind == "GPU" and len(group.gpus) > 1 else ""
            specs = [InstanceSpec(f"{group.name}{suffix}_{i}", kind, device) for i in range(group.count)]
            found += [Placed(spec, group, signature) for spec in specs]
    return found


def _signature(group: pb.ModelInstanceGroup) -> bytes:
    plain = pb.ModelInstanceGroup()
    plain.CopyFrom(group)
    plain.ClearField("name")
    plain.ClearField("count")
    return plain.SerializeToString(deterministic=True)


def compare(now: Mapping[int, Placed], wanted: list[Placed]) -> tuple[dict[int, Placed], list[Placed], list[int]]:
    """Return the change that a new `instance_group` makes. It keeps as many instances as possible: those of the same
    name first.

    Returns:
        Instance number -> the new configuration of an instance that stays; those to add; the numbers to remove.
    """
    kept: dict[int, Placed] = {}
    added = []
    for one in wanted:
        names = [number for number, other in now.items() if other.spec.name == one.spec.name and one.replaces(other)]
        number = next((number for number in names if number not in kept), None)
        if number is None:
            added.append(one)
        else:
            kept[number] = one
    for one in list(added):
        number = next((n for n, other in now.items() if n not in kept and one.replaces(other)), None)
        if number is not None:
            kept[number] = one
            added.remove(one)
    return kept, added, [number for number in now if number not in kept]
