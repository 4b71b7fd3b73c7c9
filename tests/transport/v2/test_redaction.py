"""The status document for clients of other hosts."""

from __future__ import annotations

from typing import Any

from edge_serve.transport.v2.redaction import HIDDEN, redact


def _document(**server: Any) -> dict[str, Any]:
    about = {
        "state": "not ready", "reason": "1 model failed: a (no /srv/models/a/1/model.py); 0 serve", "safe_mode": "",
        "waiting_for": ["/srv/models::b"], "failed": ["/srv/models::a"],
        "doors": {"HTTP": ["0.0.0.0:8000", "/run/http.sock"], "admin": ["/run/a.sock"]},
    }  # fmt: skip
    model = {"name": "/srv/models::a", "condition": "failed", "reason": "no /srv/models/a/1/model.py"}
    worker = {"label": "/srv/models::a:1", "models": ["/srv/models::a:1"], "pid": 7}
    return {
        "server": {**about, **server}, "models": [model, {**model, "reason": ""}], "workers": [worker],
        "events": [1], "errors": [2], "device": {"cores": 2},
        "system": {"problem": "", "name": "edge-1", "faults": [{"code": "a-1", "text": "found /a", "help": "x"}]},
    }  # fmt: skip


def test_paths_and_reasons_are_left_out_and_the_rest_is_there() -> None:
    document = _document()
    seen = redact(document)

    assert seen["server"] == {
        "state": "not ready", "reason": "failed: a; waiting for b", "safe_mode": "", "waiting_for": ["b"],
        "failed": ["a"], "doors": {"HTTP": ["0.0.0.0:8000"], "admin": []},
    }  # fmt: skip
    assert [(row["name"], row["reason"]) for row in seen["models"]] == [("a", HIDDEN), ("a", "")]
    assert seen["workers"] == [{"label": "a:1", "models": ["a:1"], "pid": 7}]
    assert (seen["events"], seen["errors"], seen["log_hidden"], seen["device"]) == ([], [], True, {"cores": 2})
    assert seen["system"] == {
        "problem": "", "name": "edge-1", "faults": [{"code": "a-1", "text": f"a-1: {HIDDEN}", "help": "x"}],
    }  # fmt: skip
    assert document == _document(), "it belongs to other readers too"


def test_the_state_of_the_server_keeps_its_words() -> None:
    stopping = "requests that were accepted are answered"

    assert redact(_document(state="stopping", reason=stopping))["server"]["reason"] == stopping
    assert redact(_document(state="ready", reason="", waiting_for=[], failed=[]))["server"]["reason"] == ""
    safe = redact(_document(state="safe mode", reason="left out a", safe_mode="left out a", waiting_for=[], failed=[]))
    assert (safe["server"]["reason"], safe["server"]["safe_mode"]) == (HIDDEN, HIDDEN)
