"""The response cache as a policy: the one used last stays, never more than its bytes."""

from __future__ import annotations

import gc
import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.models.extras.response_cache import ANSWER_BYTES, TENSOR_BYTES, CachedResponse, Key, ResponseCache

FRAME = ANSWER_BYTES + TENSOR_BYTES


def key(number: int, owner: int = 1) -> Key:
    return Key(owner, number.to_bytes(32, "little"), None)


def answer(nbytes: int = 100, most: int = 1 << 30) -> CachedResponse | None:
    return CachedResponse.copied([InferTensor("OUT", DataType.UINT8, (nbytes,), bytearray(nbytes))], {}, False, most)


def kept(nbytes: int = 100) -> CachedResponse:
    made = answer(nbytes)
    assert made is not None
    return made


def test_the_least_recently_used_is_evicted_first() -> None:
    cache = ResponseCache(2 * (FRAME + 100))
    for number in (1, 2):
        assert cache.put(key(number), kept())
    assert cache.find([key(1)]) is not None
    assert cache.put(key(3), kept())

    assert [number for number in (1, 2, 3) if key(number) in cache] == [1, 3]
    assert cache.evictions == 1


def test_a_request_counts_once_however_many_keys_may_have_its_response() -> None:
    cache = ResponseCache(FRAME + 100)
    assert cache.find([key(1), key(2)]) is None
    cache.put(key(2), kept())
    assert cache.find([key(1), key(2)]) is not None

    assert (cache.hits, cache.misses, cache.evictions) == (1, 1, 0)


def test_one_large_answer_moves_several_small_ones_out() -> None:
    cache = ResponseCache(4 * (FRAME + 100))
    for number in range(4):
        cache.put(key(number), kept())
    cache.put(key(9), kept(2 * FRAME))

    assert [number for number in range(4) if key(number) in cache] == [3]
    cache._check()


def test_an_answer_larger_than_the_cache_is_not_kept_and_moves_nothing_out() -> None:
    cache = ResponseCache(FRAME + 100)
    cache.put(key(1), kept())

    assert not cache.put(key(2), kept(101))
    assert key(1) in cache
    assert answer(101, cache.size) is None


def test_a_copy_shares_no_memory_with_the_tensors_it_was_made_of() -> None:
    memory = bytearray(b"abcd")
    made = CachedResponse.copied(
        [InferTensor("OUT", DataType.UINT8, (4,), memoryview(memory))], {"p": 1}, True, 1 << 20
    )
    memory[:] = b"zzzz"

    assert made is not None
    assert bytes(made.outputs[0].data) == b"abcd"


def test_entries_of_a_version_are_removed_with_it() -> None:
    cache = ResponseCache(1 << 20)
    cache.put(key(1, owner=1), kept())
    cache.put(key(1, owner=2), kept())
    assert not cache.remove_owner(1, 10)

    assert (key(1, owner=1) in cache, key(1, owner=2) in cache) == (False, True)
    assert not cache.remove_owner(2, 10)
    assert cache.used == 0


def test_the_sizes_are_not_below_what_python_takes() -> None:
    cache = ResponseCache(1 << 30)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2000):
            cache.put(key(number), kept(4))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken <= cache.used <= 3 * taken


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=True))
def test_a_walk_stays_within_its_bytes(rng: random.Random) -> None:
    cache = ResponseCache(rng.randint(FRAME, 20 * FRAME))
    for _ in range(200):
        number = rng.randrange(30)
        match rng.randrange(4):
            case 0:
                cache.find([key(number)])
            case 1:
                cache.remove_owner(rng.randrange(3), 1 + rng.randrange(3))
            case _:
                fits = cache.put(key(number, rng.randrange(3)), kept(rng.randrange(3 * FRAME)))
                assert fits or cache.size < 5 * FRAME
        cache._check()
