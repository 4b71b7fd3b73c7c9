"""One line about all models, failed ones first: for the service manager, the log, and the status document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_serve.messages.line import MOST_NAMES, failed_line, models_text, shortened
from edge_serve.models.control.records import ModelSummary

#: in the order of a status line: what a technician looks for first
_MOVING = ("unready", "restarting", "loading", "unloading")


def status_line(
    summaries: Sequence[ModelSummary],
    *,
    loaded: bool,
    safe: str = "",
    unreadable: str = "",
    lacking: Sequence[ModelSummary] = (),
    unread: Mapping[str, str] | None = None,
) -> str:
    """`3 of 5 models ready, loading det`; `1 model failed: seg (no such file); 2 serve, loading det`

    Args:
        loaded: the models of the start are loaded, or failed to.
        safe: why the server runs without some or all of its models; "" = it does not.
        unreadable: why the model repositories cannot be read; "" = they can.
        lacking: required models that are not ready; told once the models of the start are loaded.
        unread: models of the repository that could not be read, and why: they failed, too.
    """
    counted = [one for one in summaries if one.word != "unloaded"]
    troubled = [one for one in counted if one.word != "ready"]
    serving = len(counted) - sum(not one.serves for one in troubled)
    required = {one.name: one.reason for one in lacking if loaded and not safe and one.reason}
    failed = {one.name: one.reason for one in troubled if one.word == "failed"}
    failed |= {name: reason for name, reason in (unread or {}).items() if name not in failed}
    groups = [_group(word, [one.name for one in troubled if one.word == word]) for word in _MOVING]
    if failed:
        head = failed_line(failed, required, serving)
    elif not loaded and not counted:
        head = "looking for models"
    elif serving < len(counted):
        head = f"{serving} of {models_text(len(counted))} ready"
    else:
        head = f"{models_text(serving)} ready"
    notes = [f"required {name}: {shortened(reason)}" for name, reason in required.items() if name not in failed]
    if len(notes) > MOST_NAMES:
        notes[MOST_NAMES:] = [f"and {len(notes) - MOST_NAMES} more"]
    if unreadable:
        notes.insert(0, shortened(unreadable))
    text = "; ".join([", ".join([head, *filter(None, groups)]), *notes])
    return f"safe mode: {safe}; {text}" if safe else text


def _group(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = " ".join(names[:MOST_NAMES])
    return f"{word} {shown}" + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
