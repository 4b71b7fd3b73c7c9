"""The status file of edge-ota: what it says of releases and updates, read for the status document and the metrics.

The two programs share no code. The file is JSON, schema 1; members that are not known here are ignored, and a file that
is no such JSON counts as unreadable, because nothing that the agent writes may harm the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeGuard

from edge_serve.files import read_small
from edge_serve.records import frozen

SCHEMA = 1
#: more bundles than a device has
MOST_BUNDLES = 256
#: failed releases of a bundle that are shown, the newest
MOST_FAILED = 16
_MOST_TEXT = 500


@frozen
class BundleStatus:
    """One bundle: a model, or models that are released together.

    Attributes:
        release: the one that serves; 0 = none. `next`: the one that is on its way; 0 = none.
        stage: how far that is, in the agent's word: PLANNED, INSTALLED, ..., PROBATION; "" = nothing is on its way.
        done_bytes, total_bytes: of its download.
        reason: why the last try failed, or why an update is not applied.
        failed: the releases that failed on this device for good.
    """

    name: str
    models: tuple[str, ...] = ()
    release: int = 0
    previous: int = 0
    next: int = 0
    stage: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    reason: str = ""
    failed: tuple[int, ...] = ()

    @property
    def state(self) -> str:
        """How far the next release is; GOOD when one serves and none is on its way; "" when there is none at all."""
        return self.stage or ("GOOD" if self.release else "")


@frozen
class Updates:
    """The status of updates from the agent's file.

    Attributes:
        age_seconds: since the file was written; an agent that is dead does not write it any more.
        problem: why the file cannot be read; "" = it can.
        state: of the agent: idle, checking, fetching, ..., paused.
        last_check, last_success: seconds since the epoch; 0 = never.
        error: why the last run failed; error_reason: the same in a word.
        expires: role -> when its metadata expires, seconds since the epoch.
        failures: `step/reason` -> how often.
    """

    age_seconds: float = 0.0
    problem: str = ""
    state: str = ""
    agent: str = ""
    last_check: float = 0.0
    last_success: float = 0.0
    error: str = ""
    error_reason: str = ""
    clock_unset: bool = False
    paused: str = ""
    bundles: tuple[BundleStatus, ...] = ()
    expires: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    bytes_total: int = 0
    rollbacks: int = 0
    bad_releases: int = 0
    build_seconds: float = 0.0
    disk_free_bytes: int | None = None


def read_updates(path: str, now: float) -> Updates | None:
    """Return what the file says; None = there is none, so no agent is set up. Blocks: not in the event loop.

    Args:
        now: seconds since the epoch.
    """
    if not path:
        return None
    try:
        data = read_small(path)
        age = max(0.0, now - os.stat(path).st_mtime)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Updates(problem=f"{path} cannot be read: {error.strerror or error}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return Updates(
            age, f"{path} is no status file of edge-ota with schema {SCHEMA}: update edge-serve and edge-ota"
        )
    return parse(found, age)


def parse(found: Mapping[str, Any], age: float) -> Updates:
    """Return the values of a status file; members of a wrong type count as absent."""
    counters, error = _table(found, "counters"), _table(found, "error")
    bundles = [_bundle(name, one) for name, one in _table(found, "models").items() if isinstance(one, dict)]
    free = _number(found, "disk_free_bytes", -1)
    return Updates(
        age_seconds=age,
        state=_text(found, "state"),
        agent=_text(found, "agent"),
        last_check=_number(found, "last_check"),
        last_success=_number(found, "last_success"),
        error=_text(error, "message"),
        error_reason=_text(error, "reason"),
        clock_unset=found.get("clock_unset") is True,
        paused=_text(found, "paused"),
        bundles=tuple(sorted(bundles, key=lambda one: one.name)[:MOST_BUNDLES]),
        expires=_numbers(found, "metadata_expires"),
        failures={key: int(count) for key, count in _numbers(counters, "failures").items()},
        bytes_total=int(_number(counters, "bytes_total")),
        rollbacks=int(_number(counters, "rollbacks")),
        bad_releases=int(_number(counters, "bad_releases")),
        build_seconds=_number(counters, "engine_build_seconds"),
        disk_free_bytes=int(free) if free >= 0 else None,
    )


def _bundle(name: str, found: Mapping[str, Any]) -> BundleStatus:
    progress, models = _table(found, "progress"), found.get("models")
    return BundleStatus(
        name=name[:_MOST_TEXT],
        models=tuple(one for one in models if isinstance(one, str)) if isinstance(models, list) else (),
        release=int(_number(found, "release")),
        previous=int(_number(found, "previous")),
        next=int(_number(found, "next")),
        stage=_text(found, "stage"),
        done_bytes=int(_number(progress, "done_bytes")),
        total_bytes=int(_number(progress, "total_bytes")),
        reason=_text(found, "reason"),
        failed=_releases(found.get("failed")),
    )


def _releases(found: Any) -> tuple[int, ...]:
    rows = found[-MOST_FAILED:] if isinstance(found, list) else []
    return tuple(sorted({int(one) for one in rows if _is_number(one)}))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -(2.0**63) < value < 2.0**63


def _number(found: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = found.get(name)
    return value if _is_number(value) else default


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _numbers(found: Mapping[str, Any], name: str) -> dict[str, float]:
    rows = list(_table(found, name).items())[:MOST_BUNDLES]
    return {key[:_MOST_TEXT]: value for key, value in rows if _is_number(value)}
