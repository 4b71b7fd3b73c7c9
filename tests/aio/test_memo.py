"""The bounded memo."""

from __future__ import annotations

from edge_serve.aio.memo import Memo


def test_the_oldest_entry_is_evicted_when_the_memo_is_full() -> None:
    memo = Memo[str, int](2)
    assert memo.add("a", 1) == 1
    memo.add("b", 2)
    memo.add("c", 3)
    assert memo == {"b": 2, "c": 3}


def test_an_entry_that_is_replaced_evicts_none() -> None:
    memo = Memo[str, int](2)
    memo.add("a", 1)
    memo.add("b", 2)
    memo.add("a", 3)
    assert memo == {"a": 3, "b": 2}
