"""The status document out of facts."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import LATENCY_BUCKETS
from edge_serve.observe.status.document import Troubles, condition_of, state_of, troubles_of
from edge_serve.observe.status.probe import Readings
from edge_serve.observe.status.rates import totals_by_model
from tests.observe.status.documents import document, facts, served, server


def test_a_version_that_serves_comes_with_its_figures() -> None:
    (row,) = document()["models"]

    assert {name: row[name] for name in ("name", "version", "state", "condition", "reason", "backend")} == {
        "name": "det",
        "version": "1",
        "state": "READY",
        "condition": "ready",
        "reason": "",
        "backend": "onnxruntime",
    }
    assert (row["instances"], row["workers"], row["pending"], row["in_flight"]) == (2, [20], 3, 4)
    assert (row["oldest_batch_seconds"], row["client_errors"]) == (None, 0)
    totals = row["totals"]
    assert (totals["requests"], totals["failures"]["BACKEND"], totals["executions"]) == (10, 1, 0)
    assert totals["request_ns"] == 96_000_000
    assert sum(totals["duration_counts"]) == 10
    assert len(totals["duration_counts"]) == len(LATENCY_BUCKETS) + 1


def test_a_version_that_does_not_serve_says_why_and_has_no_figures() -> None:
    made = document(index=[IndexEntry("bad", "1", "UNAVAILABLE", "Internal: no file"), IndexEntry("idle")], models=[])

    assert made["models"] == [
        {"name": "bad", "version": "1", "state": "UNAVAILABLE", "condition": "failed", "reason": "Internal: no file"},
        {"name": "idle", "version": "", "state": "", "condition": "unloaded", "reason": "never loaded"},
    ]
    assert (made["server"]["failed"], made["server"]["waiting_for"]) == (["bad"], [])


def test_a_version_that_drains_comes_with_what_it_still_has() -> None:
    (row,) = document(
        index=[IndexEntry("det", "1", "UNLOADING")], models=[served(in_flight=1, oldest_batch_seconds=3.25)]
    )["models"]

    assert (row["condition"], row["in_flight"], row["oldest_batch_seconds"]) == ("unloading", 1, 3.25)


def test_totals_include_unloaded_models() -> None:
    made = document()
    later = document(index=[], models=[], totals=facts().totals)

    assert made["totals"]["requests"] == later["totals"]["requests"] == 10
    assert made["totals"]["client_errors"] == 0
    assert made["totals"].keys() == made["models"][0]["totals"].keys() | {"client_errors"}


def test_a_version_that_is_in_no_index_is_reported() -> None:
    assert [row["name"] for row in document(index=[], models=[served("det")])["models"]] == ["det"]


def test_models_of_one_name_in_two_repositories_have_rows_of_their_own() -> None:
    index = [IndexEntry("det", "1", "READY", namespace=one) for one in ("/a", "/b")]
    models = [served(namespace=one, pids=(pid,)) for one, pid in (("/a", 20), ("/b", 21))]
    made = document(index=index, models=models)

    assert [(row["namespace"], row["workers"]) for row in made["models"]] == [("/a", [20]), ("/b", [21])]
    assert set(totals_by_model(made)) == {("/a", "det", "1"), ("/b", "det", "1")}
    assert "namespace" not in document()["models"][0]


def test_workers_come_with_what_is_known_of_their_process() -> None:
    (worker,) = document()["workers"]
    (unread,) = document(readings=Readings())["workers"]

    assert worker == {
        "label": "onnxruntime", "pid": 20, "lost": False, "restarts": 2, "models": ["det:1"],
        "rss_bytes": 90 << 20, "pss_bytes": 70 << 20, "uptime_seconds": 60.0, "gpu_memory_bytes": 300 << 20,
    }  # fmt: skip
    assert "gpu_memory_bytes" not in unread
    assert (unread["rss_bytes"], unread["pss_bytes"], unread["uptime_seconds"]) == (None, None, None)


def test_the_rest_is_there() -> None:
    made = document()

    assert made["schema"] == 2
    assert made["server"]["state"] == "ready"
    assert made["server"]["pss_bytes"] == 40 << 20
    assert made["server"]["doors"] == {"HTTP": ["127.0.0.1:8000"]}
    assert made["http"] == {"connections": 5, "requests": {"200": 10, "404": 1}}
    assert made["tensor_memory"] == {"used_bytes": 1 << 20, "limit_bytes": 1 << 30}
    assert made["device"]["cpu_utilization"] == 0.25
    assert made["device"]["temperatures"] == [{"name": "cpu", "celsius": 48.5}]
    assert made["device"]["gpus"] == [{
        "uuid": "GPU-1", "utilization": 0.5, "memory_total": 4 << 30, "memory_used": 1 << 30, "memory_free": 2 << 30,
        "power_usage": 12.5, "power_limit": None, "energy": None, "temperature": 51.0, "throttling": None,
        "problem": "",
    }]  # fmt: skip
    assert made["events"][0]["text"] == "model det is ready"
    assert made["errors"][0]["count"] == 3
    assert made["versions"]["edge-serve"] == "1.2.3"


def test_memory_of_gpus_is_there_for_models_that_took_some() -> None:
    on_gpu, on_cpu = document(models=[served("a", gpu_memory_bytes=7), served("b")], index=[])["models"]

    assert on_gpu["gpu_memory_bytes"] == 7
    assert "gpu_memory_bytes" not in on_cpu


def test_document_is_json() -> None:
    assert json.loads(json.dumps(document())) == document()


LEAVE = "; 'edge-serve safe-mode --leave' loads what is left out"


BAD = {"bad": "Internal: no\nfile\n\nAt:\n  /models/bad/1/model.py(1): <module>\n"}


@pytest.mark.parametrize(
    ("changes", "troubles", "expected"),
    [
        ({}, Troubles(), ("ready", "")),
        ({"stopping": True, "safe_mode": "x"}, Troubles(), ("stopping", "requests that were accepted are answered")),
        ({"stopping": True, "unanswered": "det version 1"}, Troubles(), ("stopping", "waiting for det version 1")),
        ({"safe_mode": "det crashed it"}, Troubles(), ("safe mode", f"det crashed it{LEAVE}")),
        ({"started": False, "ready": False}, Troubles(["a", "b"]), ("starting", "loading a, b")),
        ({"started": False, "ready": False}, Troubles(), ("starting", "looking for models")),
        (
            {"started": False, "ready": False},
            Troubles(["a"], BAD),
            ("starting", "1 model failed: bad (Internal: no file); 0 serve; loading a"),
        ),
        ({"ready": False}, Troubles(["a"]), ("not ready", "waiting for a")),
        (
            {"ready": False, "lacking": (("a", "no\nlicence"),)},
            Troubles(["a", "b"]),
            ("not ready", "waiting for a (no licence), b"),
        ),
        (
            {"ready": False, "required": ("a", "bad"), "lacking": (("a", "no licence"), ("bad", "no file"))},
            Troubles(["a"], BAD, 11),
            ("not ready", "1 model failed: required bad (Internal: no file); 11 serve; waiting for a (no licence)"),
        ),
        ({"ready": False}, Troubles(), ("not ready", "a model that counts is not ready")),
    ],
)
def test_the_state_of_the_server_in_a_word(
    changes: dict[str, Any], troubles: Troubles, expected: tuple[str, str]
) -> None:
    assert state_of(server(**changes), troubles) == expected


@pytest.mark.parametrize(
    ("required", "rows", "waiting", "failed"),
    [
        (
            [],
            [("a", "ready"), ("b", "failed"), ("c", "unloaded"), ("d", "restarting"), ("e", "loading")],
            ["d", "e"],
            {"b": "b 1 failed"},
        ),
        (["a"], [("a", "ready"), ("b", "failed")], [], {}),
        (["a", "x"], [("a", "ready"), ("a", "failed")], ["x"], {"a": "version 2: a 2 failed"}),
        (["a"], [("a", "unloaded")], ["a"], {}),
        (["a"], [("a", "busy")], [], {}),
        ([], [("a", "busy")], [], {}),
    ],
)
def test_which_models_are_waited_for_and_which_failed(
    required: list[str], rows: list[tuple[str, str]], waiting: list[str], failed: dict[str, str]
) -> None:
    versions = Counter[str]()
    documents = []
    for name, condition in rows:
        versions[name] += 1
        reason = f"{name} {versions[name]} {condition}"
        documents.append({"name": name, "version": str(versions[name]), "condition": condition, "reason": reason})
    found = troubles_of(required, documents)

    assert (found.waiting, found.failed) == (waiting, failed)
    assert found.serving == len({name for name, condition in rows if condition in ("ready", "busy")})


@pytest.mark.parametrize(
    ("state", "reason", "model", "expected"),
    [
        ("READY", "", served(), ("ready", "")),
        ("READY", "", None, ("ready", "")),
        ("READY", "", served(oldest_batch_seconds=10.0), ("ready", "")),
        (
            "READY",
            "",
            served(oldest_batch_seconds=95.4, in_flight=1),
            ("busy", "a batch has been running for 95 s; requests in flight: 1"),
        ),
        ("READY", "", served(healthy=False, complete=False), ("restarting", "its worker is started again")),
        ("READY", "worker x died", served(healthy=False, complete=False), ("restarting", "worker x died")),
        ("READY", "", served(healthy=False, refusal="it says no"), ("unready", "it says no")),
        ("LOADING", "", None, ("loading", "")),
        ("UNLOADING", "", None, ("unloading", "")),
        ("UNAVAILABLE", "unloaded", None, ("unloaded", "")),
        ("UNAVAILABLE", "Internal: x", None, ("failed", "Internal: x")),
        ("", "", None, ("unloaded", "never loaded")),
    ],
)
def test_the_condition_of_a_version(state: str, reason: str, model: Any, expected: tuple[str, str]) -> None:
    assert condition_of(IndexEntry("det", "1", state, reason), model) == expected


def test_a_version_whose_failure_no_longer_counts_is_no_trouble() -> None:
    made = document(index=[IndexEntry("det", "2", "UNAVAILABLE", "Internal: x", dismissed=True)], models=[])

    (row,) = made["models"]
    assert (row["condition"], row["reason"]) == ("unloaded", "it failed to load, and no longer counts: Internal: x")
    assert (made["server"]["failed"], made["server"]["waiting_for"]) == ([], [])
