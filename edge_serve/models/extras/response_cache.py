"""The response cache as a policy: what is kept, within how many bytes, and what has to go first.

`--cache-config=local,size=<bytes>`; one for the whole server, as in Triton (core src/cache_manager.cc and the local
cache of triton-inference-server/local_cache). The least recently used answer goes first. It holds bytes of its own,
never views of memory that somebody else writes. `caching.py` decides what is asked and what is put in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import InferTensor

#: what an answer costs beside its tensors: key, digest, place in the table, the answer itself
ANSWER_BYTES = 900
#: what a tensor costs beside its data: the object, its shape, the header of its bytes
TENSOR_BYTES = 350


class Key(NamedTuple):
    """What must be equal for an answer to fit.

    Attributes:
        owner: the loaded version; a version that is loaded again is another one, so it never sees old answers.
        digest: of everything in the request that the answer may depend on.
        outputs: those asked for; None = all of the model.
    """

    owner: int
    digest: bytes
    outputs: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """What a model answered.

    Attributes:
        personal: it may depend on more than the inputs (`Reply.personal`).
        size: bytes that it takes, with what belongs to it.
    """

    outputs: tuple[InferTensor, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    personal: bool = False
    size: int = 0

    @classmethod
    def copied(
        cls, outputs: Iterable[InferTensor], parameters: Mapping[str, Parameter], personal: bool, most_bytes: int
    ) -> CachedResponse | None:
        """An answer whose tensors share no memory with `outputs`; None when it would take more than `most_bytes`."""
        tensors = tuple(outputs)
        size = ANSWER_BYTES + sum(TENSOR_BYTES + len(tensor.data) for tensor in tensors)
        size += sum(200 + len(name) + len(str(value)) * 4 for name, value in parameters.items())
        if size > most_bytes:
            return None
        copies = tuple(InferTensor(one.name, one.datatype, one.shape, bytes(one.data)) for one in tensors)
        return cls(copies, dict(parameters), personal, size)


class ResponseCache:
    """Answers by key, the one that was not used for longest first.

    Args:
        size: bytes that all answers may take together.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._used = 0
        self._answers: OrderedDict[Key, CachedResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    @property
    def used(self) -> int:
        """Bytes taken; never more than `size`."""
        return self._used

    def get(self, key: Key) -> CachedResponse | None:
        """The answer, which is now the one used last."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: Key, answer: CachedResponse) -> bool:
        """Keep an answer; others go to make room. False when it is larger than the whole cache."""
        if answer.size > self.size:
            return False
        self._drop(key)
        while self._used + answer.size > self.size:
            self._drop(next(iter(self._answers)))
        self._answers[key] = answer
        self._used += answer.size
        return True

    def forget(self, owner: int) -> None:
        """A version is gone: so are its answers."""
        for key in [key for key in self._answers if key.owner == owner]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._used -= answer.size

    def _check(self) -> None:
        assert self._used == sum(answer.size for answer in self._answers.values())
        assert 0 <= self._used <= self.size
