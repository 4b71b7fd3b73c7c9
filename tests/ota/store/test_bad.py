from __future__ import annotations

from dataclasses import replace

import pytest

from ota.layout import StateLayout
from ota.store import bad
from ota.store.bad import BadList, BadRelease
from ota.store.directories import prepare

GOLDEN = BadRelease("det", 18, "onnx", "facts-1", "trial", "the golden test failed", 1000.0, permanent=True)
NETWORK = BadRelease("det", 18, "onnx", "facts-1", "fetch", "the server is down", 1000.0, permanent=False)


@pytest.mark.fault("R6")
def test_a_permanent_failure_survives_a_restart_and_ends_with_other_facts_or_retry(layout: StateLayout) -> None:
    prepare(layout)
    bad.save(layout, BadList().add(GOLDEN))
    found = bad.load(layout)
    assert found.find("det", 18, "onnx", "facts-1", 1e9) is not None
    assert found.find("det", 18, "onnx", "facts-2", 1e9) is None
    assert found.find("det", 18, "plan", "facts-1", 1e9) is None
    assert found.find("det", 19, "onnx", "facts-1", 1e9) is None
    assert found.without("det").entries == found.without().entries == found.without("det", 18).entries == ()
    assert found.without("other").entries == found.entries
    assert found.releases("det") == {18}


def test_a_release_that_failed_as_a_whole_is_bad_in_all_variants() -> None:
    found = BadList().add(BadRelease("det", 18, bad.ANY_VARIANT, "f", "probation", "", 0.0, permanent=True))
    assert found.find("det", 18, "whatever", "f", 1.0) is not None
    assert found.without_variant("det", 18, "whatever").entries == ()


def test_a_variant_that_is_good_leaves_the_failures_of_others() -> None:
    kept = [replace(GOLDEN, variant="plan"), replace(GOLDEN, release=17), replace(GOLDEN, bundle="other")]
    assert list(BadList([GOLDEN, *kept]).without_variant("det", 18, "onnx").entries) == kept


def test_a_transient_failure_waits_longer_each_time() -> None:
    found = BadList().add(NETWORK)
    assert found.find("det", 18, "onnx", "facts-1", 1000.0 + bad.FIRST_WAIT - 1) is not None
    assert found.find("det", 18, "onnx", "facts-1", 1000.0 + bad.FIRST_WAIT) is None
    waits = []
    for _ in range(20):
        found = found.add(NETWORK)
        (entry,) = found.entries
        waits.append(entry.until - entry.time)
    assert waits[0] == 2 * bad.FIRST_WAIT
    assert waits[-1] == bad.LONGEST_WAIT
    assert found.find("det", 18, "onnx", "facts-1", 999.0) is None  # the clock went back: no wait for days


def test_a_message_of_several_lines_is_kept_on_one(layout: StateLayout) -> None:
    """A traceback in a message once made the whole list unreadable, so that a bad release was tried again."""
    prepare(layout)
    text = "ValueError: no weights\n\nAt:\n  model.py(2): <module>\x00\x1b[0m\u2028" + "é" * 5000
    bad.save(layout, BadList().add(BadRelease("det", 18, "onnx", "f", "trial", text, 0.0, permanent=True)))
    (entry,) = bad.load(layout).entries
    assert entry.message.startswith("ValueError: no weights At: model.py(2): <module>??[0m é")


def test_the_list_is_bounded_and_a_torn_one_is_empty(layout: StateLayout) -> None:
    prepare(layout)
    found = BadList()
    for release in range(bad.MOST + 10):
        found = found.add(BadRelease("det", release, "onnx", "f", "trial", "", 0.0, permanent=True))
    assert len(found.entries) == bad.MOST
    assert found.find("det", 9, "onnx", "f", 1.0) is None
    bad.save(layout, found)
    layout.bad.write_bytes(layout.bad.read_bytes()[:-40])
    assert bad.load(layout).entries == ()
