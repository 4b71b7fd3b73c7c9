"""The response cache as a policy: keys, sizes, and which responses are evicted first.

`--cache-config=local,size=<bytes>`; one for the whole server, as in Triton (core src/cache_manager.cc and the local
cache of triton-inference-server/local_cache). The least recently used response is evicted first. The cache owns its
bytes, and never refers to memory that another part writes. `cached_runner.py` decides what to look up and to store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import islice
from typing import NamedTuple

from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import InferTensor
from edge_serve.records import frozen

#: bytes of a response beside its tensors: key, digest, table entry, object
ANSWER_BYTES = 900
#: bytes of a tensor beside its data: object, shape, header of its bytes
TENSOR_BYTES = 350


class Key(NamedTuple):
    """The key of a cached response; a response fits requests with an equal key.

    Attributes:
        owner: the load of a version; each load has a number of its own, so it never finds old responses.
        digest: the digest of all parts of the request that the response may depend on.
        outputs: the requested outputs; None = all of the model.
    """

    owner: int
    digest: bytes
    outputs: frozenset[str] | None


@frozen
class CachedResponse:
    """A response of a model, copied.

    Attributes:
        personal: whether it may depend on more than the inputs (`Reply.personal`).
        size: bytes that it takes, with its key and table entry.
    """

    outputs: tuple[InferTensor, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    personal: bool = False
    size: int = 0

    @classmethod
    def copied(
        cls, outputs: Iterable[InferTensor], parameters: Mapping[str, Parameter], personal: bool, most_bytes: int
    ) -> CachedResponse | None:
        """Return a response whose tensors share no memory with `outputs`; None if it takes more than `most_bytes`."""
        tensors = tuple(outputs)
        size = ANSWER_BYTES + sum(TENSOR_BYTES + len(tensor.data) for tensor in tensors)
        size += sum(200 + len(name) + len(str(value)) * 4 for name, value in parameters.items())
        if size > most_bytes:
            return None
        copies = tuple(InferTensor(one.name, one.datatype, one.shape, bytes(one.data)) for one in tensors)
        return cls(copies, dict(parameters), personal, size)


class ResponseCache:
    """Responses by key, the least recently used first.

    Args:
        size: bytes that all answers may take together.

    Attributes:
        used: bytes taken; never more than `size`.
        hits, misses: requests whose response was found, and was not.
        evictions: responses that were removed to make room.
        lookup_ns, insertion_ns: time that looking up and storing took.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.hits = self.misses = self.evictions = 0
        self.lookup_ns = self.insertion_ns = 0
        self._answers: OrderedDict[Key, CachedResponse] = OrderedDict()
        #: owner -> its keys
        self._keys: dict[int, set[Key]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    def find(self, keys: Iterable[Key]) -> CachedResponse | None:
        """Return the response of the first key that has one, and mark it as used last. Count one hit or one miss."""
        for key in keys:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
                self.hits += 1
                return answer
        self.misses += 1
        return None

    def put(self, key: Key, answer: CachedResponse) -> bool:
        """Store a response; evict others to make room. Return False if it is larger than the whole cache."""
        if answer.size > self.size:
            return False
        self._remove(key)
        while self.used + answer.size > self.size:
            self._remove(next(iter(self._answers)))
            self.evictions += 1
        self._answers[key] = answer
        self._keys.setdefault(key.owner, set()).add(key)
        self.used += answer.size
        return True

    def remove_owner(self, owner: int, most: int) -> bool:
        """Remove at most `most` responses of a version. Return whether it has more."""
        keys = self._keys.get(owner, set())
        for key in list(islice(keys, most)):
            self._remove(key)
        return bool(keys)

    def _remove(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is None:
            return
        self.used -= answer.size
        keys = self._keys[key.owner]
        keys.remove(key)
        if not keys:
            del self._keys[key.owner]

    def _check(self) -> None:
        assert self.used == sum(answer.size for answer in self._answers.values())
        assert 0 <= self.used <= self.size
        assert all(self._keys.values())
        assert sorted(key for keys in self._keys.values() for key in keys) == sorted(self._answers)
