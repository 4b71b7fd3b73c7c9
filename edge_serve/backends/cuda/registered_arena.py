"""The part of a model's arena that is registered with its device, which copies from and to it by itself (ADR 26)."""

from __future__ import annotations

import contextlib
import itertools
import threading

from edge_serve.backends import host
from edge_serve.backends.base import ArenaMemory, ModelSpec
from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.cuda.device_data import address_of
from edge_serve.backends.cuda.tensor_path import RegisteredMemory
from edge_serve.errors import EdgeServeError

#: bytes that are registered at once: some milliseconds
STEP = 8 << 20


class RegisteredArena(RegisteredMemory):
    """Registers an arena step by step from its low end, which is the part in use, as far as it has tensors.

    A thread asks for a step and registers it, so no batch waits for that; until then its tensors are copied as those in
    ordinary memory. After a refusal the rest stays ordinary memory.

    Args:
        model: its name, for the log.
        device: of the model's first instance; the registration counts for all.
        step: bytes of a step.
    """

    def __init__(self, cuda: CudaApi, model: str, device: int, memory: ArenaMemory, step: int = STEP) -> None:
        self._cuda = cuda
        self._model = model
        self._device = device
        self._memory = memory
        self._step = step
        self._start = address_of(memory.view)
        self._end = self._start + len(memory.view)
        self._registered = self._start
        self._grower: threading.Thread | None = None
        self._refused = False
        self._users = 0
        #: of `_grower`: instances have threads of their own
        self._start_lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Return how many bytes are registered."""
        return self._registered - self._start

    def covers(self, address: int, nbytes: int) -> bool:
        """Return whether these bytes are registered. If not, start to register the arena up to them."""
        if not self._start <= address < self._end:
            return False
        if address + nbytes <= self._registered:
            return True
        if self._grower is None and not self._refused:
            self._start_grower(address + nbytes - self._start)
        return False

    def _start_grower(self, wanted: int) -> None:
        with self._start_lock:
            if self._grower is None and not self._refused:
                grower = threading.Thread(target=self._grow, args=(wanted,), daemon=True)
                self._grower = grower
                grower.start()

    def pieces(self, address: int, nbytes: int) -> list[int]:
        """Return the sizes of the pieces that each lie in one step, because CUDA refuses a copy of memory that is
        registered in part. A step that is not registered yet may be at any time, so it is cut off too: no copy has to
        exclude the registration, and wait for other copies.
        """
        if not self._start <= address < self._end:
            return [nbytes]
        first = self._step - (address - self._start) % self._step
        cuts = [0, *range(first, nbytes, self._step), nbytes]
        return [end - start for start, end in itertools.pairwise(cuts)]

    def device_address(self, address: int) -> int:
        """See `RegisteredMemory`. The steps may lie elsewhere for the device."""
        offset = (address - self._start) % self._step
        return self._cuda.host_device_pointer(address - offset) + offset

    def _grow(self, wanted: int) -> None:
        """Register further steps, until `wanted` bytes are registered."""
        try:
            self._cuda.set_device(self._device)
            while self.nbytes < wanted:
                goal = min(self.nbytes + self._step, self._end - self._start)
                self._memory.pin(goal)
                self._cuda.host_register(self._registered, self._start + goal - self._registered)
                self._registered = self._start + goal
        except Exception as error:  # a refusal, a library that fails, no descriptor left: copies go on without it
            self._refused = True
            reason = error.message if isinstance(error, EdgeServeError) else f"{type(error).__name__}: {error}"
            host.log(
                "WARNING",
                f"model '{self._model}': {self.nbytes} bytes of its tensor memory are registered with the device, and "
                f"no more: {reason}; copies of the rest are slower",
            )
        finally:
            self._grower = None

    def acquire(self) -> None:
        """Count one more instance that copies from it."""
        self._users += 1

    def release(self) -> None:
        """Unregister everything with the last instance. Nothing may still be copied."""
        self._users -= 1
        if self._users:
            return
        with self._start_lock:
            grower, self._refused = self._grower, True
        if grower is not None:
            grower.join()
        starts, self._registered = range(self._start, self._registered, self._step), self._start
        for start in starts:
            with contextlib.suppress(CudaError):  # a device that is lost takes its registrations along
                self._cuda.host_unregister(start)


def registered_memory(cuda: CudaApi, spec: ModelSpec, device: int) -> RegisteredMemory:
    """Return the registration of a model's arena, one for all instances that are opened together."""
    if spec.arena is None:
        return RegisteredMemory()
    if spec.arena.registered is None:
        spec.arena.registered = RegisteredArena(cuda, spec.name, device, spec.arena)
    registered: RegisteredArena = spec.arena.registered
    return registered
