"""A GPU and the GPUs of a machine, as plain values."""

from __future__ import annotations

from edge_serve.errors import with_advice
from edge_serve.records import frozen

#: of a GPU that is used, unless a setting says otherwise
LEAST_COMPUTE_CAPABILITY = 6.0


@frozen
class Gpu:
    """A GPU as CUDA numbers it, after CUDA_VISIBLE_DEVICES.

    Attributes:
        uuid: `GPU-8ec7...`, as NVML and Triton's label `gpu_uuid` write it.
        capability: the compute capability, (8, 7) on an Orin.
        memory_bytes: all of its memory; the machine's where it is integrated.
        integrated: its memory is the CPU's, as on a Jetson.
    """

    id: int
    name: str
    uuid: str
    capability: tuple[int, int]
    memory_bytes: int
    integrated: bool = False

    def __str__(self) -> str:
        memory = "shared with the CPU" if self.integrated else f"{self.memory_bytes / 2**30:.1f} GiB"
        major, minor = self.capability
        return f"GPU {self.id}: {self.name}, compute capability {major}.{minor}, memory {memory}"


@frozen
class Gpus:
    """The GPUs of a machine.

    Attributes:
        cuda: the newest CUDA that the driver runs, (13, 0); (0, 0) = no driver answered.
        reason: why there is no GPU to use, for people; "" = there is one, or nothing hints at one.
        advice: the fix for the reason.
    """

    found: tuple[Gpu, ...] = ()
    cuda: tuple[int, int] = (0, 0)
    reason: str = ""
    advice: str = ""

    @property
    def supported(self) -> bool:
        """Return whether a CUDA driver answered, with or without a device."""
        return self.cuda > (0, 0)

    def ids(self, capability: float) -> list[int] | None:
        """Return the ids of the GPUs with at least this compute capability; None = there is no CUDA driver."""
        if not self.supported:
            return None
        return [device.id for device in self.found if _number(device.capability) >= capability]

    def lack(self, capability: float) -> str:
        """Return why no GPU of this compute capability can be used; "" = one can, or nothing hints at a GPU."""
        if self.reason:
            return with_advice(self.reason, self.advice)
        if self.ids(capability) or not self.found:
            return ""
        found = ", ".join(f"{one.id} has {one.capability[0]}.{one.capability[1]}" for one in self.found)
        return f"--min-supported-compute-capability is {capability:g}, and GPU {found}"

    def uuid(self, id: int) -> str:
        """Return the UUID of a GPU; "" = there is no such GPU."""
        return next((device.uuid for device in self.found if device.id == id), "")


def _number(capability: tuple[int, int]) -> float:
    """Return a compute capability as Triton compares it: 8.6 for (8, 6)."""
    return float(f"{capability[0]}.{capability[1]}")
