"""The status document for clients that may not read the log: without log lines, reasons of errors, and paths.

Log lines and reasons quote paths, and texts of models; faults of a device quote its settings. Clients on this device,
and clients with a token or a certificate of the role `read`, get the whole document
(`access.policy.Policy.may_read_log`).
"""

from __future__ import annotations

from typing import Any

from edge_serve.models.repository.repository import plain_name

Document = dict[str, Any]

HIDDEN = "the reason is shown to clients with a token, and on the device itself if the URL has its address or host name"


def redact(document: Document) -> Document:
    """Return a document for clients that may not read the log; `log_hidden` marks it."""
    return {
        **document,
        "server": _redact_server(document["server"]),
        "models": [_redact_model(row) for row in document["models"]],
        "workers": [_redact_worker(row) for row in document["workers"]],
        "updates": _redact_updates(document.get("updates")),
        "system": _redact_system(document.get("system")),
        "events": [],
        "errors": [],
        "log_hidden": True,
    }


def _redact_server(server: Document) -> Document:
    waiting, failed = (list(map(plain_name, server[key])) for key in ("waiting_for", "failed"))
    reason = server["reason"]
    if reason and server["state"] != "stopping":
        parts = [
            f"failed: {', '.join(failed)}" if failed else "",
            f"waiting for {', '.join(waiting)}" if waiting else "",
        ]
        reason = "; ".join(filter(None, parts)) or HIDDEN
    return {
        **server,
        "reason": reason,
        "waiting_for": waiting,
        "failed": failed,
        "safe_mode": HIDDEN if server["safe_mode"] else "",
        "doors": {name: [one for one in addresses if "/" not in one] for name, addresses in server["doors"].items()},
    }


def _redact_model(row: Document) -> Document:
    return {**row, "name": plain_name(row["name"]), "reason": HIDDEN if row["reason"] else ""}


def _redact_updates(updates: Document | None) -> Document | None:
    if updates is None:
        return None
    hidden = {key: HIDDEN if updates[key] else "" for key in ("problem", "error", "paused")}
    bundles = [{**one, "reason": HIDDEN if one["reason"] else ""} for one in updates["bundles"]]
    return {**updates, **hidden, "bundles": bundles}


def _redact_system(system: Document | None) -> Document | None:
    if system is None:
        return None
    problem = HIDDEN if system["problem"] else ""
    faults = [{**one, "text": f"{one['code']}: {HIDDEN}"} for one in system["faults"]]
    return {**system, "problem": problem, "faults": faults}


def _redact_worker(row: Document) -> Document:
    return {**row, "label": plain_name(row["label"]), "models": [plain_name(name) for name in row["models"]]}
